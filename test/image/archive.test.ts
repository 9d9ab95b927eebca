// Image archives as tools write them: what they say, leave out and pack differently. Needs root.
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
  test("may be filled up with zeros behind its compressed part", async () => {
    const archive = ociArchive([{ image, name: "docker.io/x/y:1" }]);
    for (const packed of [gzipSync(archive), Bun.zstdCompressSync(archive)]) {
      const [loaded] = await load(Buffer.concat([packed, Buffer.alloc(512)]));
      expect(loaded!.repoTags).toEqual(["docker.io/x/y:1"]);
    }
  });

  test("without layers gives its image, whether it says so by an empty list or by none", async () => {
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
  ])("%s gives its image", async (_, write) => {
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

  test("without names take the given one; several images come out of one file", async () => {
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

  test("for another machine, damaged, cut off, or no archive are refused", async () => {
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
