// Tests roots that are copies of their layers (storage-driver native): ids of a user namespace, holes,
// attributes, names that are not UTF-8, and cleanup after a cancel. Needs root.
import { afterAll, beforeAll, expect, test } from "bun:test";
import * as fs from "node:fs";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openImageStore, type ImageRecord, type ImageStore } from "../../src/image/store.ts";
import { lgetxattr } from "../../src/sys/path.ts";
import { failure, until } from "../expect.ts";
import { makeImage, makeLayer, ociArchive, type TarEntry } from "../image_maker.ts";
import { storeOptions, within } from "../image/fixture.ts";

let graph: string;
let store: ImageStore;
beforeAll(async () => {
  graph = mkdtempSync(join(tmpdir(), "isulad-copy-"));
  const storage = { driver: "native", containerBytes: 0, overlayOptions: [] } as const;
  store = await openImageStore({ ...storeOptions(graph), storage });
});
afterAll(async () => {
  await store[Symbol.asyncDispose]();
  rmSync(graph, { recursive: true, force: true });
});

let count = 0;

async function load(...layers: TarEntry[][]): Promise<ImageRecord> {
  const image = makeImage(layers.map((entries) => makeLayer(entries)));
  const path = join(graph, "image.tar");
  fs.writeFileSync(path, ociArchive([{ image, name: `test/copy:${count++}` }]));
  const [loaded] = await store.load(path, { signal: within() });
  return loaded!;
}

test("belong to the user namespace, with file capabilities for it", async () => {
  // vfs_cap_data, version 2: cap_net_raw=ep
  const capability = Buffer.from("0100000200200000000000000000000000000000", "hex");
  const image = await load([
    { name: "./", type: "5", uid: 5, gid: 6, mode: 0o750 },
    { name: "ping", uid: 0, pax: { "SCHILY.xattr.security.capability": capability } },
    { name: "su", uid: 33, gid: 44, mode: 0o6755 },
    { name: "far", uid: 100_000, gid: 1 },
    { name: "link", type: "2", link: "/nowhere", uid: 33, gid: 44 },
  ]);
  const dir = join(graph, "containers/shifted");
  const owner = { userns: "", uid: 200_000, gid: 300_000, count: 65_536 };
  const root = await store.mountRootfs(image, { dir, owner });
  const look = (name: string) => {
    const { uid, gid, mode } = fs.lstatSync(join(root, name));
    return [uid, gid, mode & 0o7777];
  };
  expect(look("")).toEqual([200_005, 300_006, 0o750]);
  expect(look("su")).toEqual([200_033, 300_044, 0o6755]);
  expect(look("far")).toEqual([200_000, 300_001, 0o644]);
  expect(look("link").slice(0, 2)).toEqual([200_033, 300_044]);
  const kept = Buffer.from(lgetxattr(join(root, "ping"), "security.capability")!);
  expect(kept.readUInt8(3)).toBe(3);
  expect(kept.readUInt32LE(20)).toBe(200_000);
  await store.unmountRootfs(dir);
  expect(fs.readdirSync(dir)).toEqual([]);
});

test("keep holes, attributes and names that are not UTF-8; no file is shared with a layer", async () => {
  const image = await load(
    [
      { name: "data", data: "lower" },
      { name: "noted", pax: { "SCHILY.xattr.user.note": "kept" } },
      { name: "gone/in", data: "x" },
    ],
    [{ name: ".wh.gone" }, { name: "gone2" }],
  );
  const tree = join(graph, "layers/l", image.layers[0]!.slice(7, 19));
  // A file with a hole, as from a sparse tar.
  fs.writeFileSync(join(tree, "holes"), "begin");
  fs.truncateSync(join(tree, "holes"), 64 << 20);
  fs.writeFileSync(Buffer.concat([Buffer.from(`${tree}/`), Buffer.from([0xff, 0x41])]), "odd");
  const dir = join(graph, "containers/odd");
  const root = await store.mountRootfs(image, { dir });
  const names = fs.readdirSync(root, { encoding: "latin1" } as object) as unknown as string[];
  expect(names.toSorted()).toEqual(["data", "gone2", "holes", "noted", "\u00ffA"]);
  const { size, blocks } = fs.statSync(join(root, "holes"));
  expect(size).toBe(64 << 20);
  expect(blocks * 512).toBeLessThan(1 << 20);
  expect(Buffer.from(lgetxattr(join(root, "noted"), "user.note")!).toString()).toBe("kept");
  fs.writeFileSync(join(root, "data"), "mine!");
  expect(fs.readFileSync(join(tree, "data"), "utf8")).toBe("lower");
  await store.unmountRootfs(dir);
});

test("have no attribute of a folder that the layer above has without it, as on overlayfs", async () => {
  // A default ACL, which the kernel gives to what is made in the folder: user 1000 may do everything.
  const acl = Buffer.from(
    "0200000001000700ffffffff02000700e803000004000500ffffffff10000700ffffffff20000500ffffffff",
    "hex",
  );
  const pax = { "SCHILY.xattr.user.note": "below", "SCHILY.xattr.user.gone": "below" };
  const image = await load(
    [
      { name: "d/", type: "5", pax },
      { name: "implicit/", type: "5", pax },
      { name: "open/", type: "5", pax: { "SCHILY.xattr.system.posix_acl_default": acl } },
    ],
    [
      { name: "d/", type: "5", pax: { "SCHILY.xattr.user.note": "above" } },
      { name: "implicit/f", data: "x" },
      { name: "open/f", data: "x" },
    ],
  );
  const dir = join(graph, "containers/attributes");
  const root = await store.mountRootfs(image, { dir });
  const look = (name: string) =>
    ["user.note", "user.gone"].map((key) => {
      const value = lgetxattr(join(root, name), key);
      return value === undefined ? undefined : Buffer.from(value).toString();
    });
  expect(look("d")).toEqual(["above", undefined]);
  expect(look("implicit")).toEqual(["below", "below"]);
  expect(acl.equals(lgetxattr(join(root, "open"), "system.posix_acl_default")!)).toBe(true);
  expect(lgetxattr(join(root, "open/f"), "system.posix_acl_access")).toBeUndefined();
  await store.unmountRootfs(dir);
});

test("come from layers that verify intact, with whiteouts that are devices", async () => {
  const device = (name: string, minor: number) => ({ name, type: "3", major: 0, minor });
  const image = await load(
    [
      { name: "gone" },
      { name: "zero" },
      { name: "d/one" },
      { name: "full/hidden" },
      { name: "kept" },
    ],
    [
      { name: ".wh.gone" },
      device("zero", 0),
      device("d/one", 1),
      { name: "full/.wh..wh..opq" },
      { name: "full/new" },
    ],
  );
  const checks = await Array.fromAsync(store.verify(image.id, { repair: false, signal: within() }));
  expect(checks.map(({ state, differences }) => ({ state, differences }))).toEqual([
    { state: "intact", differences: [] },
    { state: "intact", differences: [] },
  ]);
  const dir = join(graph, "containers/verified");
  const root = await store.mountRootfs(image, { dir });
  const names = fs.globSync("**", { cwd: root }).filter((name) => name !== ".");
  expect(names.toSorted()).toEqual(["d", "full", "full/new", "kept"]);
  await store.unmountRootfs(dir);
});

test("leave nothing when the caller cancels", async () => {
  const many = Array.from({ length: 4_000 }, (_, i) => ({ name: `d${i % 50}/${i}`, data: "x" }));
  const image = await load(many);
  const dir = join(graph, "containers/left");
  const caller = new AbortController();
  const ended = failure(store.mountRootfs(image, { dir, signal: caller.signal }));
  const upper = join(dir, "upper");
  await until(
    "something is copied",
    () => fs.existsSync(upper) && fs.readdirSync(upper).length > 0,
  );
  caller.abort();
  expect((await ended).code).toBe("CANCELLED");
  expect(fs.readdirSync(dir)).toEqual([]);
});
