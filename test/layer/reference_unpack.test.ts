// Compares unpacked trees with those of other programs, file by file: GNU tar for one layer, skopeo and umoci
// for an image from a registry. Covers types, owners, modes, times, links, devices, attributes and content.
// Needs root; test/run installs skopeo and umoci.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { lgetxattr, llistxattr, lsetxattr } from "../../src/sys/path.ts";
import { makeImage, makeLayer, type TarEntry } from "../image_maker.ts";
import { startRegistry, type Registry } from "../registry.ts";
import { loadLayers, openFixture, within, type Fixture } from "../image/fixture.ts";

let fixture: Fixture;
let registry: Registry;
beforeAll(async () => {
  fixture = await openFixture();
  registry = await startRegistry();
});
afterAll(async () => {
  await fixture[Symbol.asyncDispose]();
  await registry[Symbol.asyncDispose]();
});

// Version 2 capability set with cap_net_raw, as setcap writes it.
const capability = Buffer.from([1, 0, 0, 2, 0, 32, 0, 0, ...Array<number>(12).fill(0)]);

/** Describes a tree, one line per path; hard links refer to the first of their names. */
function described(tree: string, o: { folderTimes: boolean }): string[] {
  const lines: string[] = [];
  const inodes = new Map<bigint, string>();
  const walk = (folder: Buffer) => {
    const names = fs.readdirSync(Buffer.concat([Buffer.from(tree), folder]), {
      encoding: "buffer",
    });
    for (const name of names.toSorted((a, b) => Buffer.compare(a, b))) {
      const path = Buffer.concat([folder, Buffer.from("/"), name]);
      const at = Buffer.concat([Buffer.from(tree), path]);
      const stat = fs.lstatSync(at, { bigint: true });
      const isFolder = stat.isDirectory();
      const first = isFolder ? undefined : inodes.get(stat.ino);
      inodes.set(stat.ino, path.toString("latin1"));
      const fields = [
        path.toString("latin1"),
        stat.mode.toString(8),
        stat.uid,
        stat.gid,
        stat.rdev,
      ];
      if (o.folderTimes || !isFolder) fields.push(stat.mtimeNs);
      if (first !== undefined) fields.push(`= ${first}`);
      if (stat.isSymbolicLink())
        fields.push(fs.readlinkSync(at, { encoding: "buffer" }).toString("hex"));
      if (stat.isFile()) {
        fields.push(stat.size, createHash("sha256").update(fs.readFileSync(at)).digest("hex"));
      }
      for (const xattr of llistxattr(at).toSorted()) {
        fields.push(xattr, Buffer.from(lgetxattr(at, xattr)!).toString("hex"));
      }
      lines.push(fields.join(" "));
      if (isFolder) walk(path);
    }
  };
  walk(Buffer.alloc(0));
  return lines;
}

/** A folder with all that a layer may hold, made here. */
function makeTree(folder: string): void {
  const at = (name: string) => join(folder, name);
  for (const name of ["bin", "etc", "tmp", "home/user", `deep/${"d/".repeat(60)}`]) {
    fs.mkdirSync(at(name), { recursive: true });
  }
  fs.writeFileSync(at("bin/tool"), randomBytes(70_000), { mode: 0o755 });
  fs.lchownSync(at("bin/tool"), 33, 44);
  fs.chmodSync(at("bin/tool"), 0o6755);
  fs.linkSync(at("bin/tool"), at("bin/again"));
  fs.symlinkSync("../bin/tool", at("etc/link"));
  fs.symlinkSync("x".repeat(300), at("etc/long-link"));
  fs.lchownSync(at("etc/link"), 5, 6);
  execFileSync("mknod", [at("etc/null"), "c", "1", "3"]);
  execFileSync("mknod", [at("etc/disk"), "b", "8", "300"]);
  execFileSync("mkfifo", [at("etc/fifo")]);
  fs.writeFileSync(at("n".repeat(200)), "long");
  fs.writeFileSync(at(`deep/${"d/".repeat(60)}file`), "deep");
  fs.writeFileSync(Buffer.concat([Buffer.from(at("latin-")), Buffer.from([0xe9])]), "1");
  fs.writeFileSync(at("größe-€"), "2");
  fs.writeFileSync(at("cap"), "c");
  lsetxattr(at("cap"), "security.capability", capability);
  fs.writeFileSync(at("attributes"), "a");
  lsetxattr(at("attributes"), "user.one", Buffer.from([0, 1, 2, 10, 61]));
  fs.writeFileSync(at("before-1970"), "");
  fs.utimesSync(at("before-1970"), -100.5, -100.5);
  fs.writeFileSync(at("nanoseconds"), "");
  execFileSync("touch", ["-d", "2023-05-06 07:08:09.123456789Z", at("nanoseconds")]);
  const sparse = fs.openSync(at("sparse"), "w");
  fs.writeSync(sparse, Buffer.alloc(5000, 1), 0, 5000, 1 << 20);
  fs.writeSync(sparse, Buffer.alloc(5000, 2), 0, 5000, 9 << 20);
  fs.ftruncateSync(sparse, 12 << 20);
  fs.closeSync(sparse);
  fs.chmodSync(at("tmp"), 0o1777);
  fs.lchownSync(at("home/user"), 1000, 1001);
  fs.chmodSync(at("home/user"), 0o2750);
}

const sparseForms = ["0.0", "0.1", "1.0"].map((version): [string, string[]] => [
  `posix, sparse ${version}`,
  ["--format=posix", "--xattrs", "--xattrs-include=*", "-S", `--sparse-version=${version}`],
]);

test.each([
  ...sparseForms,
  ["gnu, sparse", ["--format=gnu", "-S"]],
  ["posix", ["--format=posix", "--xattrs", "--xattrs-include=*"]],
  ["gnu", ["--format=gnu"]],
] as [string, string[]][])(
  "a layer packed by GNU tar as %s unpacks to the same tree",
  async (_, flags) => {
    const work = fs.mkdtempSync(join(fixture.graph, "tar-"));
    fs.mkdirSync(join(work, "from"));
    makeTree(join(work, "from"));
    const stream = execFileSync("tar", [...flags, "-C", join(work, "from"), "-cf", "-", "."], {
      maxBuffer: 1 << 28,
    });
    fs.mkdirSync(join(work, "to"));
    const unpack = [
      "--xattrs",
      "--xattrs-include=*",
      "--same-owner",
      "-xpf",
      "-",
      "-C",
      join(work, "to"),
    ];
    execFileSync("tar", unpack, { input: stream });
    const layer = {
      ...makeLayer(gzipSync(stream), "none"),
      diffId: makeLayer(stream, "none").diffId,
    };
    const [tree] = await loadLayers(fixture, [layer]);
    expect(described(tree!, { folderTimes: true })).toEqual(
      described(join(work, "to"), { folderTimes: true }),
    );
    const { blocks } = fs.statSync(join(tree!, "sparse"));
    if (flags.includes("-S")) expect(blocks * 512).toBeLessThan(1 << 20);
  },
);

/** Upper layers add, change, remove and hide files. */
const layers: TarEntry[][] = [
  [
    { name: "bin/", type: "5" },
    { name: "bin/su", data: randomBytes(1000), mode: 0o4755 },
    { name: "bin/cap", data: "c", pax: { "SCHILY.xattr.security.capability": capability } },
    { name: "bin/hard", type: "1", link: "bin/su" },
    { name: "etc/", type: "5", mtime: 5 },
    { name: "etc/gone", data: "1" },
    { name: "etc/stays", data: "1", uid: 7, gid: 8, pax: { mtime: "100.123456789" } },
    { name: "var/", type: "5" },
    { name: "var/hidden/", type: "5" },
    { name: "var/hidden/old", data: "1" },
    { name: "replaced/", type: "5" },
    { name: "replaced/inside", data: "1" },
    { name: "dev/", type: "5" },
    { name: "dev/null", type: "3", major: 1, minor: 3, mode: 0o666 },
    { name: "tmp/", type: "5", mode: 0o1777 },
    { name: "n".repeat(150), data: "long", pax: { "SCHILY.xattr.user.mine": "v" } },
  ],
  [
    { name: "etc/", type: "5", mtime: 6 },
    { name: "etc/.wh.gone" },
    { name: "etc/new", data: "2", uid: 1000, gid: 1000 },
    { name: "var/", type: "5" },
    { name: "var/hidden/", type: "5", mode: 0o700 },
    { name: "var/hidden/.wh..wh..opq" },
    { name: "var/hidden/new", data: "2" },
    { name: ".wh.replaced" },
  ],
  [
    { name: "replaced", type: "2", link: "etc/new" },
    { name: "bin/", type: "5" },
    { name: "bin/su", data: "three", mode: 0o2711 },
  ],
];

test("an image has the same tree as by skopeo and umoci", async () => {
  await registry.push("all", "1", makeImage(layers.map((entries) => makeLayer(entries))));
  const ref = `${registry.host}/all:1`;
  const work = fs.mkdtempSync(join(fixture.graph, "umoci-"));
  const layout = join(work, "layout");
  const copy = ["copy", "-q", "--src-tls-verify=false", `docker://${ref}`, `oci:${layout}:1`];
  execFileSync("skopeo", copy);
  execFileSync("umoci", ["raw", "unpack", "--image", `${layout}:1`, join(work, "rootfs")]);
  const image = await fixture.store.pull(ref, { signal: within() });
  const dir = join(fixture.graph, "containers/compared");
  const root = await fixture.store.mountRootfs(image, { dir });
  // umoci does not restore folders' mtimes.
  const actual = described(root, { folderTimes: false }).map((line) =>
    line.replace(/ trusted\.overlay\.\S+ \S+/g, ""),
  );
  expect(actual).toEqual(described(join(work, "rootfs"), { folderTimes: false }));
  await fixture.store.unmountRootfs(dir);
});
