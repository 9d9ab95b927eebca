// Tests loads of image archives in the variants that tools write. Needs root.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { failure } from "../expect.ts";
import {
  blob,
  descriptor,
  dockerArchive,
  makeImage,
  makeLayer,
  mediaTypes,
  ociArchive,
  tar,
  writeOciLayout,
  type Blob,
  type TestImage,
} from "../image_maker.ts";
import { openFixture, within, type Fixture } from "./fixture.ts";

let fixture: Fixture;
beforeEach(async () => {
  fixture = await openFixture();
});
afterEach(async () => await fixture[Symbol.asyncDispose]());

function save(bytes: Uint8Array): string {
  const file = join(fixture.graph, "archive");
  fs.writeFileSync(file, bytes);
  return file;
}

async function load(bytes: Uint8Array, name?: string) {
  return await fixture.store.load(save(bytes), { ...(name && { name }), signal: within() });
}

function randomImage(): TestImage {
  return makeImage([makeLayer([{ name: "f", data: randomBytes(1000) }])]);
}
const image = randomImage();

describe("an archive", () => {
  test("may be padded with zeros after its compressed part", async () => {
    const archive = ociArchive([{ image, name: "docker.io/x/y:1" }]);
    for (const packed of [gzipSync(archive), Bun.zstdCompressSync(archive)]) {
      const [loaded] = await load(Buffer.concat([packed, Buffer.alloc(512)]));
      expect(loaded!.repoTags).toEqual(["docker.io/x/y:1"]);
    }
  });

  test("may begin with a skippable frame, as pzstd writes it", async () => {
    const frame = Buffer.from("502a4d180400000000010000", "hex");
    const packed = Bun.zstdCompressSync(ociArchive([{ image, name: "x/y:1" }]));
    expect(await load(Buffer.concat([frame, packed]))).toHaveLength(1);
  });

  test("without layers is loaded, whether its list is empty or missing", async () => {
    const text = JSON.stringify({ architecture: "amd64", os: "linux", rootfs: { diff_ids: null } });
    const config = blob("", text);
    const manifest = blob(
      mediaTypes.manifest,
      JSON.stringify({ schemaVersion: 2, config: descriptor(config), layers: null }),
    );
    const none = { ...image, config, manifest, layers: [] };
    const docker = [{ Config: "config.json", RepoTags: ["x/y:2"], Layers: null }];
    const files = [
      { name: "config.json", data: text },
      { name: "manifest.json", data: JSON.stringify(docker) },
    ];
    for (const bytes of [ociArchive([{ image: none, name: "x/y:1" }]), tar(files)]) {
      const [loaded] = await load(bytes);
      expect(loaded).toMatchObject({ id: config.digest, layers: [] });
    }
    expect(fixture.store.find("x/y:2")!.repoTags).toHaveLength(2);
  });
});

test.each([
  [
    "with endless names",
    () =>
      Array.from({ length: 40 }, (_, i) => ({
        name: "f",
        pax: { path: `${i}${"x".repeat(500_000)}` },
      })),
    "the names in it",
  ],
  [
    "with endless files",
    () => Array.from({ length: 100_001 }, (_, i) => ({ name: String(i) })),
    "more than 100000 entries",
  ],
  [
    "that shares one large config among many images",
    () => sharedConfig(20),
    "the configs of its images",
  ],
])("an archive %s is refused", async (_, make, why) => {
  const error = await failure(load(tar(make())));
  expect(error.code).toBe("RESOURCE_EXHAUSTED");
  expect(error.message).toContain(why);
});

function sharedConfig(images: number) {
  const config = { os: "linux", rootfs: { diff_ids: [] }, note: "x".repeat(3 << 20) };
  const one = { Config: "config.json", RepoTags: null, Layers: [] };
  return [
    { name: "config.json", data: JSON.stringify(config) },
    { name: "manifest.json", data: JSON.stringify(Array.from({ length: images }, () => one)) },
  ];
}

describe("the names of an OCI layout", () => {
  /** Its index names each image so, as skopeo and umoci do; other: a manifest and its blobs. */
  async function layout(named: [TestImage, string?][], other: Blob[] = []): Promise<string> {
    const folder = join(fixture.graph, "layout");
    await writeOciLayout(
      folder,
      named.map(([one]) => ({ image: one })),
    );
    for (const part of other) {
      fs.writeFileSync(join(folder, "blobs/sha256", part.digest.slice(7)), part.bytes);
    }
    const entries = named.map(([{ manifest }, name]) => ({
      ...descriptor(manifest),
      annotations: name === undefined ? null : { "org.opencontainers.image.ref.name": name },
    }));
    const manifests = [...other.slice(0, 1).map(descriptor), ...entries];
    fs.writeFileSync(join(folder, "index.json"), JSON.stringify({ schemaVersion: 2, manifests }));
    return folder;
  }
  const from = async (folder: string, name?: string) =>
    await fixture.store.load(folder, { ...(name && { name }), signal: within() });

  test.each(["latest", "My-Tag", "v9", "", "My App/for you"])(
    "that are no more than %p give none, or one of the given repository, and a given tag counts",
    async (tag) => {
      const folder = await layout([[image, tag]]);
      const [nameless] = await from(folder);
      expect(nameless).toMatchObject({ id: image.config.digest, repoTags: [], repoDigests: [] });
      const [completed] = await from(folder, "me/mine");
      const isTag = /^[\w-]+$/.test(tag);
      const names = [`docker.io/me/mine:${isTag ? tag : "latest"}`];
      expect(completed!.repoTags).toEqual(names);
      const [named] = await from(folder, "me/mine:2");
      expect(named!.repoTags).toEqual([...names, "docker.io/me/mine:2"]); // the same image
    },
  );

  test("are used if they are full references, beside the given one", async () => {
    const [named] = await from(await layout([[image, "quay.io/me/mine:3"]]), "me/other:1");
    expect(named!.repoTags).toEqual(["quay.io/me/mine:3", "docker.io/me/other:1"]);
  });

  test("may be missing for one image if a name is given, not for two", async () => {
    const other = randomImage();
    const folder = await layout([[image], [other]]);
    const error = await failure(from(folder, "me/mine:2"));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain("2 images without a name");
    expect(fixture.store.list()).toEqual([]);
    expect(await from(folder)).toHaveLength(2);
    const [, tagged] = await from(await layout([[image, "v1"], [other]]), "me/mine:2");
    expect(tagged!.repoTags).toEqual(["docker.io/me/mine:2"]);
  });

  test("of other artifacts are ignored next to an image; alone, an artifact is refused", async () => {
    const empty = blob("application/vnd.oci.empty.v1+json", "{}");
    const signature = blob(
      mediaTypes.manifest,
      JSON.stringify({
        schemaVersion: 2,
        artifactType: "application/vnd.example.signature",
        config: descriptor(empty),
        layers: [descriptor(empty)],
        subject: descriptor(image.manifest),
      }),
    );
    const loaded = await from(await layout([[image, "x/y:1"]], [signature, empty]));
    expect(loaded.map(({ id }) => id)).toEqual([image.config.digest]);
    const error = await failure(from(await layout([], [signature, empty])));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain("no container image");
  });
});

describe("archives", () => {
  test.each<[string, (image: TestImage) => Promise<string> | string]>([
    ["an OCI archive", (one) => save(ociArchive([{ image: one, name: "docker.io/x/y:1" }]))],
    ["a gzipped OCI archive", (one) => save(gzipSync(ociArchive([{ image: one, name: "x/y:1" }])))],
    ["a docker archive", (one) => save(dockerArchive([{ image: one, name: "x/y:1" }]))],
    [
      "a gzipped docker archive",
      (one) => save(gzipSync(dockerArchive([{ image: one, name: "x/y:1" }]))),
    ],
    [
      "an OCI layout folder",
      async (one) => {
        await writeOciLayout(join(fixture.graph, "layout"), [{ image: one, name: "x/y:1" }]);
        return join(fixture.graph, "layout");
      },
    ],
  ])("%s is loaded", async (_, write) => {
    const made = makeImage([
      makeLayer([{ name: "one", data: randomBytes(100_000) }]),
      makeLayer([{ name: "two", data: "2" }], "none"),
    ]);
    const [loaded, ...more] = await fixture.store.load(await write(made), { signal: within() });
    expect(more).toEqual([]);
    expect(loaded!.id).toBe(made.config.digest);
    expect(loaded!.repoTags).toEqual(["docker.io/x/y:1"]);
    expect(loaded!.layers).toHaveLength(2);
    await fixture.store.remove("x/y:1");
    expect(fixture.remains()).toEqual([]);
  });

  test("without names get the given one; one file may hold several images", async () => {
    const file = save(ociArchive([{ image }]));
    const [named] = await fixture.store.load(file, { name: "me/mine:2", signal: within() });
    expect(named!.repoTags).toEqual(["docker.io/me/mine:2"]);
    expect(named!.repoDigests).toEqual([`docker.io/me/mine@${image.manifest.digest}`]);
    const other = randomImage();
    const both = [
      { image, name: "me/a:1" },
      { image, name: "me/b:1" },
      { image: other, name: "me/c:1" },
    ];
    const loaded = await fixture.store.load(save(ociArchive(both)), { signal: within() });
    expect(loaded).toHaveLength(2);
    expect(fixture.store.find("me/b:1")!.id).toBe(image.config.digest);
    expect(fixture.store.find("me/c:1")!.id).toBe(other.config.digest);
  });

  test("for another platform, damaged, truncated or not archives are refused", async () => {
    const foreign = makeImage(image.layers, {}, { os: "linux", architecture: "s390x" });
    const good = ociArchive([{ image, name: "x" }]);
    const damaged = Buffer.from(good);
    damaged[damaged.indexOf('"diff_ids"')]! ^= 1;
    for (const [bytes, code] of [
      [ociArchive([{ image: foreign, name: "x" }]), "NOT_FOUND"],
      [damaged, "DATA_LOSS"],
      [good.subarray(0, good.length - 4000), "DATA_LOSS"],
      [gzipSync(good).subarray(0, 900), "DATA_LOSS"],
      [makeLayer([{ name: "f" }]).bytes, "INVALID_ARGUMENT"],
      [randomBytes(5000), "INVALID_ARGUMENT"],
      [Buffer.alloc(0), "INVALID_ARGUMENT"],
      [tar([{ name: "manifest.json", data: "<html>" }]), "INVALID_ARGUMENT"],
    ] as const) {
      expect((await failure(fixture.store.load(save(bytes), { signal: within() }))).code).toBe(
        code,
      );
    }
    const nowhere = failure(fixture.store.load("/nowhere/x.tar", { signal: within() }));
    expect((await nowhere).code).toBe("NOT_FOUND");
    expect(fixture.remains()).toEqual([]);
  });
});
