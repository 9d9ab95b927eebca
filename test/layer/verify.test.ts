// Tests `images verify`: it finds and names planted faults, and repairs only damaged layers. Also tests that
// layers with the same content are fetched once. Needs root.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import { lsetxattr } from "../../src/sys/path.ts";
import { failure } from "../expect.ts";
import { dockerArchive, makeImage, makeLayer, type TestImage } from "../image_maker.ts";
import type { LayerCheck } from "../../src/image/store.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";
import { openFixture, within, type Fixture } from "../image/fixture.ts";

let fake: FakeRegistry;
let fixture: Fixture;
let image: TestImage;
beforeEach(async () => {
  fake = await FakeRegistry.start();
  fixture = await openFixture();
  image = makeImage([
    makeLayer([
      { name: "etc/", type: "5", mode: 0o750, uid: 3 },
      { name: "etc/conf", data: "one", mode: 0o640, uid: 1, gid: 2, mtime: 1000 },
      { name: "etc/hard", type: "1", link: "etc/conf" },
      { name: "bin/", type: "5" },
      { name: "bin/tool", data: randomBytes(100_000), mode: 0o4755 },
      { name: "bin/link", type: "2", link: "tool" },
      { name: "dev/null", type: "3", major: 1, minor: 3, mode: 0o666 },
      { name: "cap", data: "c", pax: { "SCHILY.xattr.user.a": "b" } },
    ]),
    makeLayer([
      { name: "srv/x", data: randomBytes(1000) },
      { name: "bin/.wh..wh..opq" },
      { name: ".wh.cap" },
    ]),
  ]);
  fake.put("a/b", "1", image);
});
afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
  await fake[Symbol.asyncDispose]();
});

const pull = async (name = "a/b:1") =>
  await fixture.store.pull(`${fake.host}/${name}`, { signal: within() });

async function verify(repair = false, ref = ""): Promise<LayerCheck[]> {
  const checks: LayerCheck[] = [];
  const options = { repair, signal: within() };
  for await (const check of fixture.store.verify(ref, options)) checks.push(check);
  return checks;
}

/** The tree of the image's layer at an index. */
function tree(index: number): string {
  const [{ layers } = { layers: [] }] = fixture.store.list();
  return join(fixture.graph, "layers/l", layers[index]!.slice(7, 19));
}

function requestsOf(digest: string): number {
  return fake.paths().filter((path) => path.includes(digest)).length;
}

/** Flips a bit without changing size or times. */
function corrupt(path: string): void {
  const { atime, mtime } = fs.statSync(path);
  const bytes = fs.readFileSync(path);
  bytes[bytes.length >> 1]! ^= 1;
  fs.writeFileSync(path, bytes);
  fs.utimesSync(path, atime, mtime);
}

describe("images verify", () => {
  test("reports intact layers after a restart and while a container uses them", async () => {
    const pulled = await pull();
    await fixture.reopen();
    const dir = join(fixture.graph, "containers/c1");
    const root = await fixture.store.mountRootfs(pulled, { dir });
    fs.writeFileSync(join(root, "etc/conf"), "the container's own");
    const checks = await verify();
    expect(checks.map(({ state }) => state)).toEqual(["intact", "intact"]);
    expect(checks[0]!.images).toEqual([`${fake.host}/a/b:1`]);
    await fixture.store.unmountRootfs(dir);
  });

  const faults: [string, number, (tree: string) => void, string][] = [
    ["a bit in a file", 0, (at) => corrupt(join(at, "bin/tool")), "bin/tool: has other content"],
    ["a short file", 0, (at) => fs.truncateSync(join(at, "bin/tool"), 5), "bin/tool: has 5 bytes"],
    ["a missing file", 1, (at) => fs.rmSync(join(at, "srv/x")), "srv/x: is missing"],
    ["a missing folder", 1, (at) => fs.rmSync(join(at, "srv"), { recursive: true }), "srv: is mis"],
    [
      "an unknown file",
      0,
      (at) => fs.writeFileSync(join(at, "etc/new"), ""),
      "etc/new: is not part of",
    ],
    ["a mode", 0, (at) => fs.chmodSync(join(at, "bin/tool"), 0o755), "the mode 755, not 4755"],
    [
      "an owner",
      0,
      (at) => fs.lchownSync(join(at, "etc"), 0, 0),
      "etc: belongs to 0:0, not to 3:0",
    ],
    ["a time", 0, (at) => fs.utimesSync(join(at, "etc/conf"), 5, 5), "etc/conf: has another time"],
    ["a link", 0, relink, "bin/link: leads elsewhere"],
    ["a hard link that is a copy", 0, unlink, "etc/hard: is another file"],
    ["an attribute", 0, (at) => lsetxattr(join(at, "cap"), "user.a", Buffer.from("x")), "user.a"],
    [
      "another attribute",
      0,
      (at) => lsetxattr(join(at, "cap"), "user.n", Buffer.from("x")),
      "user.n",
    ],
    ["a device that is a file", 0, replaceDevice, "dev/null: is not a character device"],
    ["a lost whiteout", 1, (at) => fs.rmSync(join(at, "cap")), "cap: is missing"],
  ];
  test.each(faults)("finds %s", async (_, index, plant, what) => {
    await pull();
    plant(tree(index));
    const checks = await verify();
    const states: LayerCheck["state"][] = ["intact", "intact"];
    states[index] = "damaged";
    expect(checks.map(({ state }) => state)).toEqual(states);
    expect(checks[index]!.differences.join("\n")).toContain(what);
  });

  function relink(at: string): void {
    const path = join(at, "bin/link");
    fs.rmSync(path);
    fs.symlinkSync("other", path);
    fs.lutimesSync(path, 1_700_000_000, 1_700_000_000);
  }

  function unlink(at: string): void {
    const bytes = fs.readFileSync(join(at, "etc/conf"));
    fs.rmSync(join(at, "etc/hard"));
    fs.writeFileSync(join(at, "etc/hard"), bytes);
  }

  function replaceDevice(at: string): void {
    fs.rmSync(join(at, "dev/null"));
    fs.writeFileSync(join(at, "dev/null"), "");
  }

  test("reports a damaged manifest as damaged, and a missing one as unknown", async () => {
    await pull();
    const [first, second] = fs.globSync(join(fixture.graph, "layers/*.list")).toSorted();
    fs.writeFileSync(first!, "[");
    fs.rmSync(second!);
    const states = (await verify()).map(({ state }) => state);
    expect(states.toSorted()).toEqual(["damaged", "unknown"]);
  });

  test("of an unknown image is NOT_FOUND", async () => {
    expect((await failure(verify(false, "no/such:1"))).code).toBe("NOT_FOUND");
  });
});

describe("images verify --repair", () => {
  test("fetches the damaged layer again, and no other", async () => {
    await pull();
    fs.rmSync(join(tree(0), "etc/conf"));
    const before = image.layers.map(({ digest }) => requestsOf(digest));
    const checks = await verify(true);
    expect(checks.map(({ state }) => state)).toEqual(["repaired", "intact"]);
    expect(image.layers.map(({ digest }) => requestsOf(digest))).toEqual([
      before[0]! + 1,
      before[1]!,
    ]);
    expect((await verify()).map(({ state }) => state)).toEqual(["intact", "intact"]);
    expect(fs.readFileSync(join(tree(0), "etc/conf"), "utf8")).toBe("one");
    await fixture.reopen();
    expect((await verify()).map(({ state }) => state)).toEqual(["intact", "intact"]);
    await fixture.store.remove(fixture.store.list()[0]!.id);
    expect(fixture.remains()).toEqual([]);
  });

  test("leaves a layer that a container has mounted, and one without any source", async () => {
    const pulled = await pull();
    fs.rmSync(join(tree(0), "etc/conf"));
    const dir = join(fixture.graph, "containers/c2");
    await fixture.store.mountRootfs(pulled, { dir });
    const [used] = await verify(true);
    expect(used).toMatchObject({ state: "damaged" });
    expect(used!.note).toContain("1 containers have it mounted");
    await fixture.store.unmountRootfs(dir);
    fake.intercept = (_, response) => {
      response.writeHead(404).end();
      return true;
    };
    const [gone] = await verify(true);
    expect(gone).toMatchObject({ state: "damaged" });
    expect(gone!.note).toContain("repair failed");
    expect(fixture.store.list()).toHaveLength(1);
    fake.intercept = () => false;
    expect((await verify(true))[0]!.state).toBe("repaired");
  });

  test("advises to remove and load the image again when no registry has it", async () => {
    const file = join(fixture.graph, "docker.tar");
    fs.writeFileSync(file, dockerArchive([{ image, name: "x/y:1" }]));
    const load = async () => await fixture.store.load(file, { signal: within() });
    await load();
    fs.rmSync(join(tree(0), "etc/conf"));
    const [check] = await verify(true);
    expect(check!.state).toBe("damaged");
    const advice = "remove its images (docker.io/x/y:1), then pull or load them again";
    expect(check!.note).toEndWith(advice);
    await fixture.store.remove("x/y:1");
    await load();
    expect((await verify()).map(({ state }) => state)).toEqual(["intact", "intact"]);
  });

  test("needs no registry when blobs are kept", async () => {
    await fixture[Symbol.asyncDispose]();
    fixture = await openFixture({}, { keepsBlobs: true });
    await pull();
    const blobs = fs.globSync(join(fixture.graph, "layers/*.blob"));
    const kept = blobs.map((path) => fs.readFileSync(path).toString("hex")).toSorted();
    const sent = image.layers.map(({ bytes }) => Buffer.from(bytes).toString("hex")).toSorted();
    expect(kept).toEqual(sent);
    await fixture.reopen();
    corrupt(join(tree(0), "bin/tool"));
    fake.intercept = (_, response) => {
      response.writeHead(500).end();
      return true;
    };
    const checks = await verify(true);
    expect(checks.map(({ state }) => state)).toEqual(["repaired", "intact"]);
    expect(checks[0]!.note).toBe("from its kept blob");
    expect((await verify()).map(({ state }) => state)).toEqual(["intact", "intact"]);
    await fixture.store.remove(fixture.store.list()[0]!.id);
    expect(fs.globSync(join(fixture.graph, "layers/*.{blob,list,json}"))).toEqual([]);
  });
});

describe("layers with the same content", () => {
  const shared = makeLayer([
    { name: "opt/", type: "5", mode: 0o700, mtime: 77 },
    { name: "opt/a", data: randomBytes(50_000) },
    { name: "opt/b", type: "1", link: "opt/a" },
    { name: "var/tmp/x", data: "x" },
  ]);
  const base = (name: string) =>
    makeLayer([
      { name, data: name },
      { name: "var/tmp/", type: "5", mode: name === "one" ? 0o1777 : 0o755 },
    ]);
  const bases = [base("one"), base("two")] as const;

  test.each([
    ["one after the other", false],
    ["at once", true],
  ])("above different layers are fetched once, pulled %s", async (_, atOnce) => {
    fake.put("one", "1", makeImage([bases[0], shared]));
    fake.put("two", "1", makeImage([bases[1], makeLayer([{ name: "mid" }]), shared, shared]));
    if (atOnce) await Promise.all([pull("one:1"), pull("two:1")]);
    else {
      await pull("one:1");
      await pull("two:1");
    }
    expect(requestsOf(shared.digest)).toBe(1);
    const checks = await verify();
    expect(checks.map(({ state }) => state)).toEqual(checks.map(() => "intact"));
    expect(checks).toHaveLength(6);
    // Implicit folders have the attributes of the layer below, which differ.
    for (const [name, mode] of [
      ["one:1", 0o1777],
      ["two:1", 0o755],
    ] as const) {
      const { layers, sizeBytes } = fixture.store.find(`${fake.host}/${name}`)!;
      const top = join(fixture.graph, "layers/l", layers.at(-1)!.slice(7, 19));
      expect(fs.statSync(join(top, "var/tmp")).mode & 0o7777).toBe(mode);
      expect(fs.statSync(join(top, "opt")).mtimeMs).toBe(77_000);
      expect(fs.statSync(join(top, "opt/a")).ino).toBe(fs.statSync(join(top, "opt/b")).ino);
      expect(sizeBytes).toBeGreaterThan(50_000n);
    }
    await fixture.store.remove(`${fake.host}/one:1`);
    expect((await verify()).map(({ state }) => state)).toEqual([
      "intact",
      "intact",
      "intact",
      "intact",
    ]);
    await fixture.store.remove(`${fake.host}/two:1`);
    expect(fixture.remains()).toEqual([]);
  });

  test("in opposite order in two images, pulled at once, do not deadlock", async () => {
    const other = makeLayer([{ name: "other", data: randomBytes(50_000) }]);
    for (let round = 0; round < 3; round++) {
      fake.put("x", "1", makeImage([shared, other]));
      fake.put("y", "1", makeImage([other, shared]));
      await Promise.all([pull("x:1"), pull("y:1")]);
      for (const name of ["x:1", "y:1"]) await fixture.store.remove(`${fake.host}/${name}`);
      expect(fixture.remains()).toEqual([]);
    }
  });
});
