// Tests reading archives and layouts without unpacking their layers.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gunzipSync, gzipSync } from "node:zlib";
import { readArchive } from "../../../src/image/archive.ts";
import { imagesOfArchive } from "../../../src/image/load.ts";
import { hostPlatforms } from "../../../src/image/platform.ts";
import { failure } from "../../expect.ts";
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
} from "../../image_maker.ts";

let dir: string;
beforeEach(() => {
  dir = fs.mkdtempSync(join(tmpdir(), "isulad-archive-"));
});
afterEach(() => fs.rmSync(dir, { recursive: true }));

const image = makeImage([makeLayer([{ name: "f", data: "x" }])]);
const other = makeImage([makeLayer([{ name: "g", data: "y" }])]);
const foreign = makeImage(image.layers, {}, { os: "linux", architecture: "s390x" });
const layer = image.layers[0]!;

async function read(bytes: Uint8Array | string) {
  const path = join(dir, "archive");
  if (typeof bytes !== "string") fs.writeFileSync(path, bytes);
  const inflate = async (from: string, to: string) =>
    fs.writeFileSync(to, gunzipSync(fs.readFileSync(from)));
  const o = { scratch: dir, inflate, signal: new AbortController().signal };
  return await readArchive(typeof bytes === "string" ? bytes : path, o);
}
const codeFor = async (bytes: Uint8Array | string) => (await failure(read(bytes))).code;
const bytesOf = ({ path, offset, size }: { path: string; offset: number; size: number }) =>
  fs.readFileSync(path).subarray(offset, offset + size);

/** An OCI layout whose index has these entries. */
async function layout(entries: object[]): Promise<string> {
  await writeOciLayout(dir, [{ image }, { image: other }, { image: foreign }]);
  fs.writeFileSync(join(dir, "index.json"), JSON.stringify({ manifests: entries }));
  return dir;
}
const entry = ({ manifest, platform }: typeof image, annotations = {}) => ({
  ...descriptor(manifest),
  platform,
  annotations,
});

describe("readArchive", () => {
  test("finds names, config and layers in an OCI archive, compressed or not", async () => {
    const archive = ociArchive([{ image, name: "docker.io/x/y:1" }, { image: foreign }]);
    for (const bytes of [archive, gzipSync(archive)]) {
      const [found, ...more] = await read(bytes);
      expect(more).toEqual([]);
      expect(found).toMatchObject({
        names: ["docker.io/x/y:1"],
        manifestDigest: image.manifest.digest,
        configDigest: image.config.digest,
      });
      expect(bytesOf(found!.layers[0]!)).toEqual(Buffer.from(layer.bytes));
    }
  });

  test("names the reason why a path cannot be read", async () => {
    const path = join(dir, "absent.tar");
    const { code, message } = await failure(read(path));
    expect([code, message]).toEqual([
      "NOT_FOUND",
      `cannot read ${path} on the daemon's host: no such file`,
    ]);
  });

  test("finds the same in a docker archive, whose layers have no digest", async () => {
    const [found] = await read(dockerArchive([{ image, name: "x/y:1" }]));
    expect(found).toMatchObject({
      names: ["x/y:1"],
      manifestDigest: "",
      configDigest: image.config.digest,
    });
    expect(found!.layers[0]!.digest).toBe("");
    expect(bytesOf(found!.layers[0]!)).toEqual(gunzipSync(layer.bytes));
  });

  test("follows links between the layers of an old docker archive", async () => {
    const config = Buffer.from(image.config.bytes).toString();
    const manifest = JSON.stringify([{ Config: "c.json", RepoTags: null, Layers: ["a/l", "b/l"] }]);
    const [found] = await read(
      tar([
        { name: "c.json", data: config },
        { name: "manifest.json", data: manifest },
        { name: "a/l", data: "layer" },
        { name: "b/l", type: "2", link: "../a/l" },
      ]),
    );
    expect(found!.layers.map((one) => bytesOf(one).toString())).toEqual(["layer", "layer"]);
  });

  test.each<[string, string, string]>([
    ["the archive's root", "../l.tar", "l.tar"],
    ["the archive's root, without a way there", "l.tar", "l.tar"],
    ["the archive's root, from far below", "../../../l.tar", "l.tar"],
    ["an absolute path", "/l.tar", "l.tar"],
    ["a path from the root", "x/l.tar", "x/l.tar"],
    ["another link, which comes later", "later", "l.tar"],
  ])("follows a layer's link to %s", async (_, link, file) => {
    const [found] = await read(
      tar([
        { name: "./c.json", data: Buffer.from(image.config.bytes).toString() },
        { name: "manifest.json", data: '[{"Config":"c.json","Layers":["a/layer.tar"]}]' },
        { name: "a/layer.tar", type: "2", link },
        { name: "a/later", type: "2", link: "../l.tar" },
        { name: file, data: "layer" },
      ]),
    );
    expect(bytesOf(found!.layers[0]!).toString()).toBe("layer");
  });

  test("does not need the last file's padding, but its content", async () => {
    const archive = ociArchive([{ image }]);
    const entries = tar([{ name: "last", data: "x".repeat(600) }]).subarray(0, 512 + 600);
    const bytes = Buffer.concat([archive.subarray(0, archive.length - 1024), entries]);
    expect(await read(bytes)).toHaveLength(1);
    expect(await codeFor(bytes.subarray(0, -1))).toBe("DATA_LOSS");
  });

  test("collects the names of one image in a layout: full ones, bare tags, no private ones", async () => {
    const ref = "org.opencontainers.image.ref.name";
    const [found] = await read(
      await layout([
        entry(image, { "io.containerd.image.name": "r.test/a:1", [ref]: "1" }),
        entry(image, { [ref]: "v2" }),
        entry(image, { [ref]: "r.test/b:2" }),
        entry(image, { [ref]: "UPPER/x: y" }),
      ]),
    );
    expect(found).toMatchObject({ names: ["r.test/a:1", "r.test/b:2"], tags: ["v2"] });
  });

  test("takes no id for a name, and no invalid one", async () => {
    const name = (text: string) => entry(image, { "io.containerd.image.name": text });
    const config = Buffer.from(image.config.bytes).toString();
    const RepoTags = ["r.test/a:1", "<none>:<none>", "A B", image.config.digest];
    const manifest = JSON.stringify([{ Config: "c.json", RepoTags, Layers: [] }]);
    const docker = tar([
      { name: "c.json", data: config },
      { name: "manifest.json", data: manifest },
    ]);
    const names = [
      image.config.digest,
      "r.test/UPPER:1",
      "r.test/a:1",
      `sha512:${"0".repeat(128)}`,
    ];
    const invalidNames = ["r.test/UPPER:1"];
    const oci = await layout([
      ...names.map(name),
      entry(image, { "org.opencontainers.image.ref.name": image.config.digest }),
      entry(image, { "org.opencontainers.image.ref.name": "no tag" }),
    ]);
    expect(await read(oci)).toMatchObject([{ names: ["r.test/a:1"], tags: [], invalidNames }]);
    expect(await read(docker)).toMatchObject([{ names: ["r.test/a:1"], invalidNames: ["A B"] }]);
  });

  test("skips entries that require OS features, for other systems, and that cannot be verified", async () => {
    const platform = { ...image.platform, "os.features": ["erofs"] };
    const special = { ...entry(other), platform };
    const windows = { ...entry(other), platform: { ...image.platform, os: "windows" } };
    const blake3 = { ...entry(other), digest: `blake3:${"0".repeat(64)}` };
    const found = await read(await layout([special, windows, blake3, entry(image)]));
    expect(found.map(({ configDigest }) => configDigest)).toEqual([image.config.digest]);
    const alone = await failure(read(await layout([special])));
    expect([alone.code, alone.message]).toEqual(["NOT_FOUND", expect.stringContaining("erofs")]);
    expect(await codeFor(await layout([blake3]))).toBe("INVALID_ARGUMENT");
  });

  test("skips other artifacts and platforms next to an image", async () => {
    const chart = blob(
      mediaTypes.manifest,
      JSON.stringify({
        config: { ...descriptor(image.config), mediaType: "application/vnd.x+json" },
      }),
    );
    const path = await layout([descriptor(chart), entry(foreign), entry(image)]);
    const file = join(path, "blobs", chart.digest.replace(":", "/"));
    fs.writeFileSync(file, chart.bytes);
    expect(await read(path)).toHaveLength(1);
    await layout([descriptor(chart)]);
    expect(await codeFor(path)).toBe("INVALID_ARGUMENT");
    await layout([entry(foreign)]);
    expect(await codeFor(path)).toBe("NOT_FOUND");
    // 32 bits of this machine's kind, unless its own architecture is there.
    const { architecture } = hostPlatforms()[1]!;
    const narrow = { ...entry(other), platform: { os: "linux", architecture } };
    const found = async (entries: object[]) =>
      (await read(await layout(entries))).map(({ configDigest }) => configDigest);
    expect(await found([entry(foreign), narrow])).toEqual([other.config.digest]);
    expect(await found([narrow, entry(image)])).toEqual([image.config.digest]);
  });

  test("refuses a layout with a missing or damaged blob", async () => {
    const path = await layout([entry(image)]);
    const file = (digest: string) => join(path, "blobs", digest.replace(":", "/"));
    fs.rmSync(file(layer.digest));
    expect(await codeFor(path)).toBe("NOT_FOUND");
    fs.writeFileSync(file(layer.digest), layer.bytes);
    fs.writeFileSync(file(image.config.digest), "damaged");
    expect(await codeFor(path)).toBe("DATA_LOSS");
    fs.rmSync(file(image.config.digest));
    expect(await codeFor(path)).toBe("NOT_FOUND");
  });

  test.each<[string, () => Uint8Array | string, string]>([
    ["a missing file", () => join(dir, "none"), "NOT_FOUND"],
    ["a device", () => "/dev/null", "INVALID_ARGUMENT"],
    ["an empty folder", () => dir, "INVALID_ARGUMENT"],
    ["an empty file", () => Buffer.alloc(0), "INVALID_ARGUMENT"],
    ["a tar of other files", () => tar([{ name: "f", data: "x" }]), "INVALID_ARGUMENT"],
    ["a truncated archive", () => ociArchive([{ image }]).subarray(0, -4000), "DATA_LOSS"],
    [
      "an entry of 8 PiB",
      () => tar([{ name: "f", pax: { size: String(2 ** 53 - 1) } }]),
      "DATA_LOSS",
    ],
    [
      "a manifest that is no JSON",
      () => tar([{ name: "manifest.json", data: "<" }]),
      "INVALID_ARGUMENT",
    ],
    [
      "a manifest that names a missing file",
      () => tar([{ name: "manifest.json", data: '[{"Config":"c","Layers":[]}]' }]),
      "NOT_FOUND",
    ],
    [
      "a manifest of 5 MiB",
      () => tar([{ name: "manifest.json", data: " ".repeat(5 << 20) }]),
      "INVALID_ARGUMENT",
    ],
    [
      "names of 20 MB",
      () =>
        tar(
          Array.from({ length: 40 }, (_, i) => ({
            name: "f",
            pax: { path: `${i}${"x".repeat(500_000)}` },
          })),
        ),
      "RESOURCE_EXHAUSTED",
    ],
  ])("refuses %s", async (_, make, code) => {
    expect(await codeFor(make())).toBe(code as "NOT_FOUND");
  });
});

test.each<[string, () => Uint8Array | string, string]>([
  ["xz", () => Buffer.from(`\xfd7zXZ\0${"x".repeat(999)}`, "latin1"), "compressed with xz"],
  ["bzip2", () => Buffer.from(`BZh9${"x".repeat(999)}`), "compressed with bzip2"],
  ["erofs", () => Buffer.concat([Buffer.alloc(1024), Buffer.from("e2e1f5e0", "hex")]), "erofs"],
  ["a dir: of skopeo", () => skopeoDir(), "skopeo copy dir:"],
  [
    "a dir: of skopeo in a tar",
    () => tar([{ name: "manifest.json", data: Buffer.from(image.manifest.bytes) }]),
    "skopeo copy dir:",
  ],
])("an archive that is %s is refused by its form", async (_, make, why) => {
  const { code, message } = await failure(read(make()));
  expect([code, message]).toEqual(["INVALID_ARGUMENT", expect.stringContaining(why)]);
  expect(message).toStartWith(dir);
});

function skopeoDir(): string {
  fs.writeFileSync(join(dir, "manifest.json"), image.manifest.bytes);
  fs.writeFileSync(join(dir, "version"), "Directory Transport Version: 1.1\n");
  return dir;
}

describe("imagesOfArchive", () => {
  const found = {
    invalidNames: [],
    manifestDigest: "",
    configDigest: "sha256:c",
    config: Buffer.alloc(0),
    layers: [],
  };
  const of = (
    images: { names?: string[]; tags?: string[] }[],
    given?: string,
    manifestDigest = "",
  ) => {
    const all = images.map((one) => ({ ...found, names: [], tags: [], manifestDigest, ...one }));
    return imagesOfArchive(all, "/f.tar", given).map(({ repoTags }) => repoTags);
  };

  test("names images by the archive, and nameless ones and bare tags by the name given", () => {
    expect(of([{ names: ["app"] }])).toEqual([["docker.io/library/app:latest"]]);
    expect(of([{}, { names: ["b:1"] }], "r.test/a:2")).toEqual([
      ["r.test/a:2"],
      ["docker.io/library/b:1"],
    ]);
    expect(of([{ tags: ["v1", "v2"] }], "r.test/a")).toEqual([["r.test/a:v1", "r.test/a:v2"]]);
    expect(of([{ tags: ["v1"] }])).toEqual([[]]);
  });

  test("gives the name to the only image beside its own", () => {
    expect(of([{ names: ["b:1"] }], "r.test/a")).toEqual([
      ["docker.io/library/b:1", "r.test/a:latest"],
    ]);
    expect(of([{ tags: ["v1"] }], "r.test:5000/a:2")).toEqual([["r.test:5000/a:2"]]);
    expect(of([{ tags: ["v1"] }], "r.test:5000/a")).toEqual([["r.test:5000/a:v1"]]);
  });

  test("refuses one name for several images", () => {
    expect(() => of([{}, {}], "a")).toThrow("2 images without a name");
    expect(() => of([{ names: ["b:1"] }, { names: ["c:1"] }], "a")).toThrow("2 images, and");
    expect(() => of([{ tags: ["v1"] }, { tags: ["v2"] }], "a:1")).toThrow("2 images, and");
    expect(of([{}, {}])).toEqual([[], []]);
  });

  test("records the manifest's digest under each repository, and no tag for a name by digest", () => {
    const digest = `sha256:${"a".repeat(64)}`;
    const names = ["r.test/a:1", `r.test/b@${digest}`];
    const [one] = imagesOfArchive(
      [{ ...found, names, tags: [], manifestDigest: digest }],
      "/f",
      undefined,
    );
    expect(one).toMatchObject({
      repoTags: ["r.test/a:1"],
      repoDigests: [`r.test/a@${digest}`, `r.test/b@${digest}`],
    });
    expect(
      imagesOfArchive([{ ...found, names, tags: [] }], "/f", undefined)[0]!.repoDigests,
    ).toEqual([]);
  });
});
