// Tests layers unpacked by a real helper process: owners, times, whiteouts and unusual entries. Needs root.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import * as fs from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { lgetxattr } from "../../src/sys/path.ts";
import { failure } from "../expect.ts";
import { makeImage, makeLayer, tar, type Layer, type TarEntry } from "../image_maker.ts";
import { capturedLog } from "../unit/fakes.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";
import { loadLayers, openFixture, within, type Fixture } from "../image/fixture.ts";

let fixture: Fixture;
beforeAll(async () => {
  fixture = await openFixture();
});
afterAll(async () => await fixture[Symbol.asyncDispose]());

const load = async (...layers: (TarEntry[] | Layer)[]) => await loadLayers(fixture, layers);
const loadOne = async (entries: TarEntry[] | Layer) => (await load(entries))[0]!;

/** An ACL as the kernel stores it: a tag, its permissions, and an id where the tag has one. */
function aclOf(rows: number[][]): Buffer {
  const bytes = Buffer.alloc(4 + rows.length * 8);
  bytes.writeUInt32LE(2);
  rows.forEach(([tag, permissions, id = 0xffffffff], row) => {
    bytes.writeUInt16LE(tag!, 4 + row * 8);
    bytes.writeUInt16LE(permissions!, 6 + row * 8);
    bytes.writeUInt32LE(id, 8 + row * 8);
  });
  return bytes;
}

const statOf = (path: string) => {
  const { uid, gid, mode, mtimeMs, nlink } = fs.lstatSync(path);
  return { uid, gid, mode: mode & 0o7777, mtime: mtimeMs / 1000, nlink };
};

describe("a good layer", () => {
  test("keeps owners, modes, times, links, devices and attributes", async () => {
    const tree = await loadOne([
      { name: "./", type: "5", mode: 0o711, uid: 5, gid: 6, mtime: 1000 },
      { name: "mail/", type: "5", mode: 0o2775, uid: 0, gid: 8 },
      { name: "mail/of-root", data: "x" },
      { name: "su", mode: 0o4755, uid: 33, gid: 44, data: "abc", mtime: 1234 },
      { name: "su2", type: "1", link: "su" },
      { name: "sub/link", type: "2", link: "/etc/passwd", uid: 7, gid: 8, mtime: 77 },
      { name: "dev/null", type: "3", major: 1, minor: 3, mode: 0o666 },
      { name: "dev/sda", type: "4", major: 8, minor: 0, mode: 0o660, gid: 6 },
      { name: "pipe", type: "6", mode: 0o640 },
      { name: "tmp/", type: "5", mode: 0o1777 },
      { name: "cap", mode: 0o755, pax: { "SCHILY.xattr.security.capability": capability } },
      { name: "large", uid: 3_000_000, gid: 4_000_000, pax: { uid: "3000000", gid: "4000000" } },
      { name: "fraction", pax: { mtime: "100.5" } },
      { name: "n".repeat(200), data: "long" },
      { name: `${"d/".repeat(90)}deep`, data: "deep" },
    ]);
    expect(statOf(tree)).toMatchObject({ uid: 5, gid: 6, mode: 0o711, mtime: 1000 });
    expect(statOf(join(tree, "mail"))).toMatchObject({ gid: 8, mode: 0o2775 });
    expect(statOf(join(tree, "mail/of-root"))).toMatchObject({ uid: 0, gid: 0 });
    expect(statOf(join(tree, "su"))).toEqual({
      uid: 33,
      gid: 44,
      mode: 0o4755,
      mtime: 1234,
      nlink: 2,
    });
    expect(fs.readFileSync(join(tree, "su2"), "utf8")).toBe("abc");
    expect(fs.readlinkSync(join(tree, "sub/link"))).toBe("/etc/passwd");
    expect(statOf(join(tree, "sub/link"))).toMatchObject({ uid: 7, gid: 8, mtime: 77 });
    expect(fs.lstatSync(join(tree, "dev/null")).rdev).toBe(0x103);
    expect(fs.lstatSync(join(tree, "dev/sda"))).toMatchObject({ rdev: 0x800, gid: 6 });
    expect(statOf(join(tree, "pipe")).mode).toBe(0o640);
    expect(statOf(join(tree, "tmp")).mode).toBe(0o1777);
    expect(lgetxattr(join(tree, "cap"), "security.capability")).toEqual(capability);
    expect(statOf(join(tree, "large"))).toMatchObject({ uid: 3_000_000, gid: 4_000_000 });
    expect(statOf(join(tree, "fraction")).mtime).toBe(100.5);
    expect(fs.readFileSync(join(tree, "n".repeat(200)), "utf8")).toBe("long");
    expect(fs.readFileSync(join(tree, "d/".repeat(90), "deep"), "utf8")).toBe("deep");
  });

  test("keeps the last of repeated names, also when a file replaces a folder or vice versa", async () => {
    const tree = await loadOne([
      { name: "a", data: "old" },
      { name: "a", data: "new", mode: 0o600 },
      { name: "b/", type: "5" },
      { name: "b/inside", data: "gone" },
      { name: "b", data: "file" },
      { name: "c", data: "file" },
      { name: "c/", type: "5", mode: 0o700 },
      { name: "c/in", data: "in" },
      { name: "l", type: "2", link: "c" },
      { name: "l/", type: "5" },
      { name: "l/own", data: "own" },
    ]);
    expect(fs.readFileSync(join(tree, "a"), "utf8")).toBe("new");
    expect(fs.readFileSync(join(tree, "b"), "utf8")).toBe("file");
    expect(fs.readFileSync(join(tree, "c/in"), "utf8")).toBe("in");
    expect(fs.readdirSync(join(tree, "c"))).toEqual(["in"]);
    expect(fs.readFileSync(join(tree, "l/own"), "utf8")).toBe("own");
  });

  test("may be gzip, several gzip members, zstd or plain", async () => {
    const bytes = tar([{ name: "f", data: Buffer.alloc(300_000, 7) }]);
    const plain = makeLayer(bytes, "none");
    const halves = [bytes.subarray(0, 1000), bytes.subarray(1000)];
    for (const packed of [
      bytes,
      gzipSync(bytes),
      Buffer.concat(halves.map((half) => gzipSync(half))),
      Bun.zstdCompressSync(bytes),
      // Padded with zeros, as for a tape.
      Buffer.concat([gzipSync(bytes), Buffer.alloc(512)]),
      Buffer.concat([Bun.zstdCompressSync(bytes), Buffer.alloc(512)]),
    ]) {
      const layer = { ...makeLayer(packed, "none"), diffId: plain.diffId };
      const tree = await loadOne(layer);
      expect(fs.statSync(join(tree, "f")).size).toBe(300_000);
      await fixture.store.remove(fixture.store.list()[0]!.id);
    }
  });

  test("may be empty, and is saved so", async () => {
    const empty = makeLayer(Buffer.alloc(0), "none");
    const made = makeImage([makeLayer([{ name: "f" }]), empty, makeLayer([{ name: "g" }])]);
    await using fake = await FakeRegistry.start();
    fake.put("a/b", "1", made);
    const pulled = await fixture.store.pull(`${fake.host}/a/b:1`, { signal: within() });
    const dir = join(fixture.graph, "containers/empty");
    expect(fs.readdirSync(await fixture.store.mountRootfs(pulled, { dir }))).toEqual(["f", "g"]);
    await fixture.store.unmountRootfs(dir);
    const path = join(fixture.graph, "empty.tar");
    await fixture.store.save([pulled.id], { path, force: false, signal: within() });
    await fixture.store.remove(pulled.id);
    const [loaded] = await fixture.store.load(path, { signal: within() });
    expect(loaded!.id).toBe(pulled.id);
    await fixture.store.remove(pulled.id);
    const error = await failure(loadOne({ ...empty, digest: makeLayer([]).digest }));
    expect(error.code).toBe("DATA_LOSS");
  });

  test("with bytes after its compressed stream is refused", async () => {
    const bytes = tar([{ name: "f", data: "x" }]);
    const { diffId } = makeLayer(bytes, "none");
    for (const packed of [gzipSync(bytes), Bun.zstdCompressSync(bytes)]) {
      const layer = makeLayer(Buffer.concat([packed, Buffer.from("garbage")]), "none");
      const error = await failure(loadOne({ ...layer, diffId }));
      expect(error.code).toBe("DATA_LOSS");
      expect(error.message).toContain(layer.digest);
    }
  });

  test("gives folders without entries the attributes of the layers below", async () => {
    // The mode's 7 for the group is the mask: the owning group itself may do nothing.
    const acl = aclOf([
      [1, 7],
      [4, 0],
      [8, 7, 1000],
      [16, 7],
      [32, 0],
    ]);
    const note = { "SCHILY.xattr.user.note": "kept" };
    const attributes = { ...note, "SCHILY.xattr.system.posix_acl_access": acl };
    const [base, , top] = await load(
      [
        { name: "./", type: "5", mode: 0o750, uid: 1, pax: note },
        { name: "tmp/", type: "5", mode: 0o1777, mtime: 5 },
        { name: "srv/a/", type: "5", mode: 0o770, uid: 9, gid: 10, pax: attributes },
        { name: "link", type: "2", link: "/" },
        { name: "gone/", type: "5", mode: 0o700, uid: 9 },
      ],
      [{ name: ".wh.gone" }],
      [
        { name: "tmp/x", data: "x" },
        { name: "srv/a/b/c", data: "c" },
        { name: "link/y", data: "y" },
        { name: "gone/z", data: "z" },
      ],
    );
    expect(statOf(join(top!, "tmp"))).toMatchObject({ mode: 0o1777, mtime: 5 });
    expect(statOf(join(top!, "srv/a"))).toMatchObject({ mode: 0o770, uid: 9, gid: 10 });
    for (const tree of [base!, top!]) {
      const folder = join(tree, "srv/a");
      expect(Buffer.from(lgetxattr(folder, "user.note")!).toString()).toBe("kept");
      expect(acl.equals(lgetxattr(folder, "system.posix_acl_access")!)).toBe(true);
    }
    expect(statOf(join(top!, "srv/a/b"))).toMatchObject({ mode: 0o755, uid: 0 });
    expect(statOf(top!)).toMatchObject({ mode: 0o750, uid: 1 });
    expect(statOf(join(top!, "link"))).toMatchObject({ mode: 0o755, uid: 0 });
    expect(statOf(join(top!, "gone"))).toMatchObject({ mode: 0o755, uid: 0 });
    const dir = join(fixture.graph, "containers/root");
    const root = await fixture.store.mountRootfs(fixture.store.list()[0]!, { dir });
    expect(statOf(root)).toMatchObject({ mode: 0o750, uid: 1 });
    expect(Buffer.from(lgetxattr(root, "user.note")!).toString()).toBe("kept");
    await fixture.store.unmountRootfs(dir);
  });
});

describe("as containerd unpacks it, a layer", () => {
  const sym = (name: string, link: string) => ({ name, type: "2", link });

  test("may have paths through symlinks to folders of lower layers, and to later ones", async () => {
    const acl = { "SCHILY.xattr.user.note": "kept" };
    const [, tree] = await load(
      [
        { name: "usr/lib64/", type: "5", mode: 0o750, uid: 3, pax: acl },
        { name: "usr/lib64/below", data: "b" },
      ],
      [
        sym("lib", "/usr/lib64"), // the folder is in the lower layer
        { name: "lib/sub/x", data: "x" },
        { name: "lib/h", type: "1", link: "lib/sub/x" },
        sym("later", "usr/later"), // the folder follows
        { name: "later/a", data: "a" },
        { name: "usr/later/", type: "5", mode: 0o711, uid: 4 },
        sym("first", "second/./in/../in"), // a chain, each further than the last
        sym("second", "../../third"),
        { name: "first/deep", data: "d" },
        sym("up", "../.."),
        { name: "up/at-root", data: "r" },
        { name: "out/.wh.gone" },
        sym("gone", "none"),
        { name: "gone/.wh.old" },
      ],
    );
    const read = (path: string) => fs.readFileSync(join(tree!, path), "utf8");
    expect([read("usr/lib64/sub/x"), read("usr/lib64/h")]).toEqual(["x", "x"]);
    expect(statOf(join(tree!, "usr/lib64"))).toMatchObject({ mode: 0o750, uid: 3 });
    expect(Buffer.from(lgetxattr(join(tree!, "usr/lib64"), "user.note")!).toString()).toBe("kept");
    expect(read("usr/later/a")).toBe("a");
    expect(statOf(join(tree!, "usr/later"))).toMatchObject({ mode: 0o711, uid: 4 });
    expect([read("third/in/deep"), read("at-root")]).toEqual(["d", "r"]);
    expect(fs.readlinkSync(join(tree!, "lib"))).toBe("/usr/lib64");
    const image = fixture.store.list()[0]!;
    const checks = fixture.store.verify(image.id, { repair: false, signal: within() });
    for await (const { differences } of checks) expect(differences).toEqual([]);
    const dir = join(fixture.graph, "containers/through");
    const root = await fixture.store.mountRootfs(image, { dir });
    expect(fs.readdirSync(join(root, "usr/lib64")).toSorted()).toEqual(["below", "h", "sub"]);
    await fixture.store.unmountRootfs(dir);
  });

  test("may name entries with .., have odd roots and devices that are whiteouts", async () => {
    const device = (name: string, minor = 0) => ({ name, type: "3", minor });
    await load(
      ["gone", "one", "kept", "d/old", "again"].map((name) => ({ name, data: "1" })),
      [
        sym("./", "kept"),
        { name: ".", data: "root as a file" },
        { name: "/", type: "6" },
        device("gone"),
        device("one", 1),
        device("d/old"),
        device("again"),
        { name: "again", data: "2" },
        { name: "a/b/../../d/new", data: "n" },
        { name: "x/..", type: "5", mode: 0o751 },
        { name: "h/../hard", type: "1", link: "a/../d/new" },
      ],
    );
    const image = fixture.store.list()[0]!;
    const dir = join(fixture.graph, "containers/devices");
    const root = await fixture.store.mountRootfs(image, { dir });
    expect(fs.readdirSync(root).toSorted()).toEqual(["again", "d", "hard", "kept"]);
    expect(fs.readdirSync(join(root, "d"))).toEqual(["new"]);
    expect(fs.readFileSync(join(root, "again"), "utf8")).toBe("2");
    expect(fs.readFileSync(join(root, "hard"), "utf8")).toBe("n");
    expect(statOf(root)).toMatchObject({ mode: 0o751 });
    await fixture.store.unmountRootfs(dir);
    const path = join(fixture.graph, "odd.tar");
    await fixture.store.save([image.id], { path, force: false, signal: within() });
    await fixture.store.remove(image.id);
    const [loaded] = await fixture.store.load(path, { signal: within() });
    expect(loaded!.id).toBe(image.id);
  });

  test("may have owners below zero, and a last file without padding", async () => {
    const entries = [
      { name: "a", pax: { uid: "-2", gid: "-2" } },
      { name: "z", data: "end" },
    ];
    const tree = await loadOne(makeLayer(tar(entries).subarray(0, -1024 - 509)));
    expect(statOf(join(tree, "a"))).toMatchObject({ uid: 2 ** 32 - 2, gid: 2 ** 32 - 2 });
    expect(fs.readFileSync(join(tree, "z"), "utf8")).toBe("end");
  });
});

test("a layer's trusted.* attributes are left out, and logged once", async () => {
  const { log, lines } = capturedLog("warn");
  await using other = await openFixture({}, {}, log);
  const pax = (key: string) => ({ [`SCHILY.xattr.trusted.${key}`]: "y" });
  await loadLayers(other, [
    [
      { name: "d/", type: "5", pax: pax("overlay.opaque") },
      { name: "d/f", pax: { ...pax("overlay.opaque"), ...pax("mine") } },
    ],
  ]);
  expect(lines).toHaveLength(1);
  expect(lines[0]).toContain('attributes="trusted.overlay.opaque trusted.mine"');
});

test("a layer whose attribute is too large for the file system names the attribute", async () => {
  const error = await loadOne([
    { name: "f", pax: { "SCHILY.xattr.user.big": "x".repeat(60_000) } },
  ]).catch((error: unknown) => error as Error);
  // Only ext4 and the like have a limit below the kernel's 64 KiB.
  if (error instanceof Error) expect(error.message).toContain("user.big of 60000 bytes is larger");
});

test.each([
  ["application/vnd.erofs.layer.v1", "is not a tar but erofs (application/vnd.erofs.layer.v1)"],
  ["application/vnd.oci.image.layer.nydus.blob.v1", "is not a tar but nydus"],
  ["application/vnd.x.disk", "the image says that it is application/vnd.x.disk"],
])("a layer of the media type %s is refused by its name", async (mediaType, why) => {
  const disk = { ...makeLayer(Buffer.alloc(4096, 7), "none"), mediaType };
  expect((await failure(loadOne(disk))).message).toContain(why);
});

describe("whiteouts", () => {
  test("hide names and contents of the layers below in a mounted root", async () => {
    const layers = [
      [
        { name: "keep", data: "1" },
        { name: "gone", data: "1" },
        { name: "d/one", data: "1" },
        { name: "d/two", data: "1" },
        { name: "d/sub/old", data: "1" },
        { name: "again/old", data: "1" },
        { name: "later/old", data: "1" },
      ],
      [
        { name: ".wh.gone" },
        { name: "d/.wh.one" }, // as aufs and some builders write beside an opaque mark
        { name: "d/.wh..wh..opq" },
        { name: "d/sub/.wh.old" },
        { name: "d/three", data: "3" },
        { name: ".wh.again" },
        { name: "again/", type: "5" },
        { name: "again/new", data: "n" },
        { name: "later/new", data: "n" },
        { name: ".wh.later" },
        { name: ".wh..wh.plnk/", type: "5" },
      ],
    ];
    await load(...layers);
    const image = fixture.store.list()[0]!;
    const dir = join(fixture.graph, "containers/whiteouts");
    const root = await fixture.store.mountRootfs(image, { dir });
    expect(fs.readdirSync(root).sort()).toEqual(["again", "d", "keep", "later"]);
    expect(fs.readdirSync(join(root, "d")).sort()).toEqual(["sub", "three"]);
    expect(fs.readdirSync(join(root, "d/sub"))).toEqual([]);
    expect(fs.readdirSync(join(root, "again"))).toEqual(["new"]);
    expect(fs.readdirSync(join(root, "later"))).toEqual(["new"]);
    await fixture.store.unmountRootfs(dir);
  });

  test("remove a folder that the layer has only for whiteouts in it, in any order", async () => {
    const names = ["foo/bar", "foo/sub/x", "late/bar", "kept/old", "marked/x", "d/gone/x"];
    const whiteouts = [
      ".wh.foo foo/.wh.bar foo/sub/.wh.x",
      "late/.wh.bar .wh.late",
      ".wh.marked marked/.wh..wh..opq",
      ".wh.kept kept/.wh.old kept/new",
      "d/.wh..wh..opq d/.wh.gone d/gone/.wh.x",
    ].flatMap((line) => line.split(" "));
    await load(
      names.map((name) => ({ name, data: "1" })),
      whiteouts.map((name) => ({ name })),
    );
    const image = fixture.store.list()[0]!;
    const checks = fixture.store.verify(image.id, { repair: false, signal: within() });
    for await (const { differences } of checks) expect(differences).toEqual([]);
    const dir = join(fixture.graph, "containers/removed");
    const root = await fixture.store.mountRootfs(image, { dir });
    expect(fs.readdirSync(root).sort()).toEqual(["d", "kept"]);
    expect(fs.readdirSync(join(root, "kept"))).toEqual(["new"]);
    expect(fs.readdirSync(join(root, "d"))).toEqual([]);
    await fixture.store.unmountRootfs(dir);
  });
});

test("an opaque root hides the layers below", async () => {
  const below = [[{ name: "old", data: "1" }], [{ name: "older", data: "1" }]];
  await load(...below, [{ name: ".wh..wh..opq" }, { name: "new", data: "2" }], [{ name: "top" }]);
  const image = fixture.store.list()[0]!;
  const dir = join(fixture.graph, "containers/opaque");
  const root = await fixture.store.mountRootfs(image, { dir });
  expect(fs.readdirSync(root).sort()).toEqual(["new", "top"]);
  await fixture.store.unmountRootfs(dir);
});

// Version 2 capability set with cap_net_raw, as setcap writes it.
const capability = new Uint8Array([1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
