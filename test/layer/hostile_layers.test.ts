// Tests that hostile and damaged layers are refused with the layer, the entry and the reason, leave nothing
// behind, and change nothing outside of the layer's folder. Needs root.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { failure } from "../expect.ts";
import { makeLayer, tar, type Layer, type TarEntry } from "../image_maker.ts";
import { lgetxattr } from "../../src/sys/path.ts";
import { loadLayers, openFixture, type Fixture } from "../image/fixture.ts";

/** Two folders of 60 levels each, the second reached through a symlink to the first. */
const deepByLink: TarEntry[] = [
  { name: "d/".repeat(60), type: "5" },
  { name: "s", type: "2", link: "d/".repeat(60) },
  { name: `s/s2/${"e/".repeat(50)}`, type: "5" },
];
const limits = { bytesMax: 64 << 20, entriesMax: 3000, depthMax: 100, ratioMax: 50 };

let fixture: Fixture;
let outside: string;
beforeAll(async () => {
  fixture = await openFixture({}, { limits });
  outside = join(fixture.graph, "outside");
  fs.mkdirSync(outside);
});
afterAll(async () => await fixture[Symbol.asyncDispose]());

/** Loads an image of one layer and returns its tree. */
const load = async (layer: TarEntry[] | Layer) => (await loadLayers(fixture, [layer]))[0]!;

/** Returns the error with which a layer is refused; checks that nothing of it stays. */
async function refused(layer: TarEntry[] | Layer) {
  const before = fixture.remains().toSorted();
  const error = await failure(load(layer));
  expect(fixture.remains().toSorted()).toEqual(before);
  const digest = (Array.isArray(layer) ? makeLayer(layer) : layer).digest;
  expect(error.message).toContain(digest);
  return error;
}

describe("a hostile layer", () => {
  test("cannot leave its folder through symlinks, hard links or names", async () => {
    const up = "../".repeat(12);
    const victim = join(outside, "victim");
    fs.writeFileSync(victim, "untouched");
    const tree = await load([
      { name: "abs", type: "2", link: outside },
      { name: "abs/one", data: "x" },
      { name: "rel", type: "2", link: `${up}${outside.slice(1)}` },
      { name: "rel/two", data: "x" },
      { name: "file", type: "2", link: victim },
      { name: "file", data: "replaced" },
      { name: "/absolute", data: "x" },
    ]).catch(() => undefined);
    for (const link of [outside, `${up}${outside.slice(1)}/victim`]) {
      await failure(
        load([
          { name: "x", type: "2", link: "/" },
          { name: "hard", type: "1", link: `x${link}/victim` },
        ]),
      );
    }
    expect(fs.readdirSync(outside)).toEqual(["victim"]);
    expect(fs.readFileSync(victim, "utf8")).toBe("untouched");
    expect(fs.existsSync("/absolute")).toBe(false);
    if (tree !== undefined) expect(fs.existsSync(join(tree, "absolute"))).toBe(true);
  });

  test("stays in its folder where its own symlinks lead out", async () => {
    const up = "../".repeat(12);
    const tree = await load([
      sym("out", outside),
      { name: "out/one", data: "1" },
      sym("up", `${up}${outside.slice(1)}`),
      { name: "up/two", data: "2" },
      sym("twice", "out/deeper"),
      { name: "twice/three", data: "3" },
    ]);
    expect(fs.readdirSync(outside)).toEqual(["victim"]);
    const within = join(tree, outside);
    expect(fs.readdirSync(within).toSorted()).toEqual(["deeper", "one", "two"]);
    expect(fs.readFileSync(join(within, "deeper/three"), "utf8")).toBe("3");
  });

  test("keeps user.* attributes, but none of overlayfs, trusted.* or SELinux", async () => {
    const tree = await load([
      trusted("t", "overlay.metacopy"),
      trusted("o/", "overlay.opaque"),
      trusted("m", "mine"),
      { ...link("h", "m"), ...trusted("h", "overlay.redirect") },
      { name: "c", pax: { "SCHILY.xattr.user.overlay.metacopy": "" } },
      { name: "d", pax: { "SCHILY.xattr.user.mine": "kept" } },
      { name: "e", pax: { "SCHILY.xattr.security.selinux": "no_label_of_a_layer" } },
    ]);
    for (const [name, attribute] of [
      ["t", "trusted.overlay.metacopy"],
      ["o", "trusted.overlay.opaque"],
      ["m", "trusted.mine"],
      ["h", "trusted.overlay.redirect"],
      ["c", "user.overlay.metacopy"],
    ] as const) {
      expect(lgetxattr(join(tree, name), attribute)).toBeUndefined();
    }
    expect(Buffer.from(lgetxattr(join(tree, "d"), "user.mine")!).toString()).toBe("kept");
    expect(lgetxattr(join(tree, "e"), "security.selinux")).toBeUndefined();
  });

  // name of the case, entries, entry named in the error, reason
  test.each<[string, TarEntry[], string, string]>([
    ["a name with ..", [{ name: "a/../../b", data: "x" }], "a/../../b", '".."'],
    ["a name that is ..", [{ name: "..", type: "5" }], "..", '".."'],
    ["an absolute name with ..", [{ name: "/../etc/passwd" }], "/../etc/passwd", '".."'],
    ["a hard link to ..", [{ name: "a", type: "1", link: "../../etc/passwd" }], "a", '".."'],
    ["a missing link target", [{ name: "a", type: "1", link: "b" }], "a", "hard link to"],
    ["a hard link to itself", [{ name: "a", type: "1", link: "a" }], "a", "hard link to"],
    ["a hard link to the root", [{ name: "a", type: "1", link: "/" }], "a", "the root"],
    ["a hard link to a folder", [{ name: "d/", type: "5" }, link("a", "d")], "a", "a folder"],
    ["a hard link to a whiteout", [{ name: ".wh.w" }, link("a", "w")], "a", "hard link to"],
    ["a hard link through a link", [sym("s", "/etc"), link("a", "s/passwd")], "a", "hard link to"],
    [
      "a file behind a link to a file",
      [{ name: "f" }, sym("s", "f"), { name: "s/x" }],
      "s/x",
      "symlink",
    ],
    ["a file behind a link to itself", [sym("s", "s/t"), { name: "s/x" }], "s/x", "symlink"],
    [
      "a deep path behind a link to none",
      [sym("s", "d/".repeat(200)), { name: "s/x" }],
      "s/x",
      "100",
    ],
    ["a file behind a file", [{ name: "f" }, { name: "f/x" }], "f/x", "EEXIST"],
    ["a loop of symlinks", [sym("a", "b"), sym("b", "a"), { name: "a/x" }], "a/x", "symlink"],
    ["a symlink to nowhere", [{ name: "a", type: "2", link: "" }], "a", "ENOENT"],
    ["an empty whiteout", [{ name: "a/.wh." }], "a/.wh.", "whiteout"],
    ["a whiteout of ..", [{ name: ".wh..." }], ".wh...", "whiteout"],
    ["a whiteout of .", [{ name: ".wh.." }], ".wh..", "whiteout"],
    ["an unknown type", [{ name: "a", type: "Q" }], "a", "type"],
    ["a name too long", [{ name: "x".repeat(300) }], "x".repeat(200), "ENAMETOOLONG"],
    ["a path too long", [{ name: `${"x".repeat(99)}/`.repeat(60) }], "xxx/", "ENAMETOOLONG"],
    ["a link target too long", [{ ...sym("a", "x".repeat(5000)) }], "a", "ENAMETOOLONG"],
    ["a path too deep", [{ name: "x/".repeat(200), type: "5" }], "x/x", "more than 100 folders"],
    ["a deep path behind a link", deepByLink, "s/s2/", "more than 100 folders"],
    ["a NUL in the name", [{ name: "n", pax: { path: "a\0b" } }], "a", "NUL"],
    ["a huge owner", [{ name: "a", pax: { uid: "99999999999" } }], "a", "owner"],
    ["an owner below all", [{ name: "a", pax: { uid: "-99999999999" } }], "", "owner"],
    ["a negative size", [{ name: "a", patch: binary(124, 12, -5) }], "", "negative"],
    ["a size of 2^80", [{ name: "a", patch: (h) => h.fill(0x7f, 125, 136) }], "", "number"],
    [
      "a mode that is not a number",
      [{ name: "a", patch: (h) => h.write("zzzzzzz", 100) }],
      "",
      "zzz",
    ],
    ["a bad pax number", [{ name: "a", pax: { size: "-1" } }], "", "size"],
    ["a bad pax time", [{ name: "a", pax: { mtime: "soon" } }], "", "time"],
    ["an endless time", [{ name: "a", pax: { mtime: "1e400" } }], "", "time"],
    ["large extended headers", [{ name: "a", pax: { path: "x".repeat(2 << 20) } }], "", "extended"],
    ["a truncated pax record", [{ name: "p", type: "x", data: "99 path=b\n" }], "", "pax"],
    ["a pax record without a length", [{ name: "p", type: "x", data: "path=b\n" }], "", "pax"],
    [
      "a sparse file without a size",
      [{ name: "a", pax: { "GNU.sparse.major": "1" } }],
      "",
      "sparse",
    ],
    ["a sparse map backwards", [sparse("a", "8,4,0,4", 100, "12345678")], "a", "overlap"],
    ["a sparse map outside", [sparse("a", "98,8", 100, "12345678")], "a", "outside"],
    ["a sparse map too small", [sparse("a", "0,4", 100, "12345678")], "a", "lists 4"],
    ["a sparse file of 2^50", [sparse("a", "0,8", 2 ** 50, "12345678")], "a", "a file of"],
    ["half a sparse part", [sparse("a", "0,8,9", 100, "12345678")], "a", "half"],
    ["a sparse map of letters", [sparse("a", "0,x", 100, "12345678")], "", "sparse"],
    ["an invalid sparse map in the data", [sparse1("a", "nonsense")], "a", "sparse map"],
    ["a truncated sparse map in the data", [sparse1("a", "2\n0\n")], "a", "truncated"],
  ])("with %s is refused", async (_, entries, entry, why) => {
    const error = await refused(entries);
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain(entry.endsWith("/") ? entry : entry.slice(0, 150));
    expect(error.message).toContain(why);
  });

  const zeros = Buffer.alloc(1 << 20);
  const many = (count: number): TarEntry[] =>
    Array.from({ length: count }, (_, i) => ({ name: `f${i}` }));
  test.each<[string, () => TarEntry[] | Layer, string]>([
    ["of more bytes than it may have", () => bomb(80), "bytes"],
    ["of more entries", () => many(3001), "more than 3000 entries"],
    [
      "in a file that says it is larger",
      () => [{ name: "a", patch: octal(124, 12, 1 << 30) }],
      "truncated",
    ],
    ["of more parts of sparse files", () => inParts(5, 700), "more than 3000 parts"],
    ["of folders without entries, with long paths", () => implicitFolders(60), "without an entry"],
    ["of names of one folder through symlinks", () => looped(800), "names and attributes"],
    ["of hard links through long chains of symlinks", () => chained(250), "were followed"],
    ["of large global headers", () => globalKeys(12_000), "global extended headers"],
    ["of empty attributes", () => attributed(30, 2500), "names and attributes"],
    ["of folders that are replaced repeatedly", () => replaced(1100), "replaces a folder"],
  ])("%s is refused", async (_, make, why) => {
    const error = await refused(make());
    expect(["RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "DATA_LOSS"]).toContain(error.code);
    expect(error.message).toContain(why);
  });

  /** A gzip stream of `mib` MiB of zeros. */
  function bomb(mib: number): Layer {
    return makeLayer(Array.from({ length: mib }, (_, i) => ({ name: `z${i}`, data: zeros })));
  }

  /** Sparse files of `parts` parts each, one byte long. */
  function inParts(files: number, parts: number): TarEntry[] {
    const map = Array.from({ length: parts }, (_, i) => `${i * 2},1`).join(",");
    return Array.from({ length: files }, (_, i) =>
      sparse(`s${i}`, map, parts * 2, "x".repeat(parts)),
    );
  }

  function implicitFolders(files: number): TarEntry[] {
    const path = (i: number) => `${i}${"x".repeat(38)}/`.repeat(90);
    return Array.from({ length: files }, (_, i) => ({ name: "f", pax: { path: `${path(i)}f` } }));
  }

  /** All files are in one folder, each under a different name of that folder. */
  function looped(files: number): TarEntry[] {
    const links = "0123456789".split("").map((name) => ({ name, type: "2", link: "." }));
    const digits = (i: number) => String(i).padStart(4, "0").split("").join("/");
    const path = (i: number) => `${digits(i)}/${"0/".repeat(90)}f${i}`;
    const names = Array.from({ length: files }, (_, i) => ({ name: "f", pax: { path: path(i) } }));
    return [...links, ...names];
  }

  /** Each hard link leads through 39 symlinks with targets of 4,000 bytes. */
  function chained(links: number): TarEntry[] {
    const sym = (i: number) => ({ name: `l${i}`, type: "2", pax: { linkpath: target(i) } });
    const target = (i: number) => (i === 39 ? "a" : `a${"/../a".repeat(790)}/../l${i + 1}`);
    const hard = (i: number) => ({ name: `h${i}`, type: "1", link: "l0/f" });
    const made = <T>(count: number, make: (i: number) => T) =>
      Array.from({ length: count }, (_, i) => make(i));
    return [{ name: "a/", type: "5" }, { name: "a/f" }, ...made(40, sym), ...made(links, hard)];
  }

  /** Each key of a global header costs time for every entry behind it. */
  function globalKeys(keys: number): TarEntry[] {
    const records = Array.from({ length: keys }, (_, i) => `9 ${String(i).padStart(5, "0")}=\n`);
    return [{ name: "g", type: "g", data: records.join("") }, ...many(2900)];
  }

  function attributed(attributes: number, files: number): TarEntry[] {
    const records = Array.from({ length: attributes }, (_, i) => {
      const record = ` SCHILY.xattr.user.a${i}=x\n`;
      return `${record.length + 2}${record}`;
    });
    return [{ name: "g", type: "g", data: records.join("") }, ...many(files)];
  }

  /** Replaces a folder by a file and vice versa. */
  function replaced(times: number): TarEntry[] {
    return Array.from({ length: times }, () => [{ name: "r/", type: "5" }, { name: "r" }]).flat();
  }

  test("that expands beyond layer-max-ratio is refused", async () => {
    await using other = await openFixture({}, { limits: { ...limits, bytesMax: 2 ** 33 } });
    const error = await failure(loadLayers(other, [bomb(300)]));
    expect(error.code).toBe("RESOURCE_EXHAUSTED");
    expect(error.message).toContain("over 50 times as much (layer-max-ratio)");
    expect(other.remains()).toEqual([]);
  });

  test.each<[string, (layer: Layer) => Layer]>([
    ["truncated", (layer) => change(layer, layer.bytes.subarray(0, layer.size - 20))],
    ["truncated in the middle", (layer) => change(layer, layer.bytes.subarray(0, layer.size >> 1))],
    ["of one byte", (layer) => change(layer, layer.bytes.subarray(0, 1))],
    ["of a gzip header alone", (layer) => change(layer, layer.bytes.subarray(0, 10))],
    ["with a wrong diff id", (layer) => ({ ...layer, diffId: `sha256:${"0".repeat(64)}` })],
    ["with a flipped bit", (layer) => change(layer, flipped(layer.bytes))],
    ["that is not a tar", (layer) => change(layer, Buffer.alloc(4096, 1))],
    ["of compressed noise", (layer) => change(layer, gzipSync(randomBytes(5000)))],
    ["that is compressed twice", (layer) => change(layer, gzipSync(layer.bytes))],
    ["of truncated zstd", (layer) => change(layer, zstd().subarray(0, 3000))],
    ["of zstd with a flipped bit", (layer) => change(layer, flipped(zstd()))],
    ["of zstd noise", (layer) => change(layer, Buffer.concat([zstdMagic, randomBytes(100)]))],
    [
      "of xz",
      (layer) =>
        change(layer, Buffer.concat([Buffer.from("\xfd7zXZ\0", "latin1"), randomBytes(900)])),
    ],
    ["of HTML", (layer) => change(layer, gzipSync(Buffer.from("<html></html>".repeat(99))))],
  ])("%s is refused", async (_, damage) => {
    const good = makeLayer([{ name: "a", data: randomBytes(9000) }]);
    const error = await refused(damage(good));
    expect(["DATA_LOSS", "INVALID_ARGUMENT"]).toContain(error.code);
  });
});

const zstdMagic = Buffer.from([0x28, 0xb5, 0x2f, 0xfd]);

function zstd(): Uint8Array {
  return Bun.zstdCompressSync(tar([{ name: "a", data: randomBytes(9000) }]));
}

function link(name: string, target: string): TarEntry {
  return { name, type: "1", link: target };
}

function sym(name: string, target: string): TarEntry {
  return { name, type: "2", link: target };
}

function trusted(name: string, attribute: string): TarEntry {
  const pax = { [`SCHILY.xattr.trusted.${attribute}`]: "y" };
  return { name, type: name.endsWith("/") ? "5" : "0", pax };
}

/** A sparse file of pax form 0.1. */
function sparse(name: string, map: string, size: number, data: string): TarEntry {
  return { name, data, pax: { "GNU.sparse.size": String(size), "GNU.sparse.map": map } };
}

/** A sparse file of pax form 1.0, whose map precedes the data. */
function sparse1(name: string, map: string): TarEntry {
  const pax = { "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "100" };
  return { name, data: map, pax };
}

/** Patches a number in GNU's binary form into a header. */
function binary(at: number, length: number, value: number): (header: Buffer) => void {
  return (header) => {
    header.fill(0xff, at, at + length);
    header.writeInt32BE(value, at + length - 4);
  };
}

function octal(at: number, length: number, value: number): (header: Buffer) => void {
  return (header) => header.write(value.toString(8).padStart(length - 1, "0"), at, "latin1");
}

function change(layer: Layer, bytes: Uint8Array): Layer {
  return { ...makeLayer(bytes, "none"), diffId: layer.diffId };
}

function flipped(bytes: Uint8Array): Uint8Array {
  const copy = Buffer.from(bytes);
  copy[Math.floor(copy.length / 2)]! ^= 0x10;
  return copy;
}
