// Tests how daemon.json and its drop-ins are read: their order, how they merge, the place of each mistake, and
// files that cannot be read.
import { beforeEach, expect, test, afterEach } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { daemonKeys } from "../../../src/base/config_keys.ts";
import { messageOf } from "../../../src/base/errors.ts";

let folder = "";
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "isulad-files-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

/** Files by name; "main" is daemon.json, the others lie in daemon.json.d. */
function write(files: Record<string, string>): string {
  const main = join(folder, "daemon.json");
  mkdirSync(`${main}.d`, { recursive: true });
  for (const [name, text] of Object.entries(files)) {
    writeFileSync(name === "main" ? main : join(`${main}.d`, name), text);
  }
  return main;
}

/** The messages, without the folder. damage: changes the files before they are read. */
function refusal(files: Record<string, string>, damage?: (main: string) => void): string[] {
  const main = write(files);
  damage?.(main);
  try {
    loadConfig(main);
  } catch (error) {
    return messageOf(error).replaceAll(`${folder}/`, "").split("\n");
  }
  throw new Error("was accepted");
}

test("drop-ins merge in the order of their names; lists and texts replace", () => {
  const main = write({
    main: '{"graph": "/a", "state": "/s", "registry-mirrors": ["m1.example", "m2.example"]}',
    "20-b.json": '{"graph": "/c"}',
    "10-a.json": '{"graph": "/b", "registry_mirrors": ["m3.example"]}',
  });
  const { config, files, origin } = loadConfig(main);
  expect(config).toMatchObject({ graph: "/c", state: "/s", registryMirrors: ["m3.example"] });
  const names = ["daemon.json", "daemon.json.d/10-a.json", "daemon.json.d/20-b.json"];
  expect(files).toEqual(names.map((name) => join(folder, name)));
  expect(origin.get("graph")).toBe(`${files[2]}:1`);
  expect(origin.get("registry-mirrors")).toBe(`${files[1]}:1`);
});

test("maps of several files merge by key at every depth", () => {
  const main = write({
    main: '{"runtimes": {"x": {"path": "/usr/bin/env", "runtime-args": ["-a"]}}}',
    "a.json": '{"runtimes": {"x": {"runtime-args": ["-b"]}, "y": {"path": "/usr/bin/env"}}}',
  });
  const { config, origin } = loadConfig(main);
  expect(config.runtimes["x"]).toMatchObject({ path: "/usr/bin/env", runtimeArgs: ["-b"] });
  expect(config.runtimes["y"]).toMatchObject({ path: "/usr/bin/env", runtimeArgs: [] });
  expect(origin.get("runtimes")).toBe(`${main}:1, ${main}.d/a.json:1`);
});

test("an empty text in a drop-in means the default; a flag overrides every file", () => {
  const main = write({
    main: '{"graph": "/a", "state": "/b"}',
    "a.json": '{"graph": "", "state": "/c"}',
  });
  const { config, origin } = loadConfig(main, new Map([[daemonKeys.state, "/flag"]]));
  expect(config).toMatchObject({ graph: "/var/lib/isulad", state: "/flag" });
  expect([origin.get("graph"), origin.get("state")]).toEqual(["default", "flag"]);
});

test("hidden files and other endings are no drop-ins", () => {
  const main = write({ main: "{}", ".a.json": "no JSON", "b.json.bak": "no JSON", ".json": "x" });
  expect(loadConfig(main).files).toEqual([main]);
});

test("mistakes of all files are named at once, each with its file and line", () => {
  const told = refusal({
    main: '{"graph": 5,\n"state": "/s"}',
    "10-a.json": '{\n"stat": "/s"}',
    "20-b.json": '{"state": "/t"\n"graph": "/u"}',
    "30-c.json": "[]",
    "40-d.json": '{\n\n"metrics-port": -1}',
  });
  expect(told.map((line) => line.split(" ")[0])).toEqual([
    "daemon.json.d/10-a.json:2:",
    "daemon.json.d/20-b.json:2:",
    "daemon.json.d/30-c.json:1:",
    "daemon.json:1:",
    "daemon.json.d/40-d.json:3:",
  ]);
});

test("a mistake inside a merged map, and one in a value that a later file replaces, have their places", () => {
  const told = refusal({
    main: '{"default-ulimits":\n{"core": {"Hard": 1, "Soft": 1}}, "graph": "relative"}',
    "a.json": '{"default-ulimits": {\n\n"nofile": {"Hard": 1, "Soft": "x"}},\n"graph": "/ok"}',
  });
  expect(told).toHaveLength(2);
  expect(told[0]).toBe('daemon.json:2: "graph" must be an absolute path, not "relative"');
  expect(told[1]).toStartWith('daemon.json.d/a.json:3: "default-ulimits" must be ');
  expect(told[1]).toEndWith('not "x" (at "default-ulimits.nofile.Soft")');
});

test("a warning names the drop-in", () => {
  const main = write({ main: "{}", "a.json": '{\n"engine": "lcr"}' });
  const { warnings } = loadConfig(main);
  expect(warnings.filter((text) => text.startsWith(`${main}.d/a.json:2: "engine"`))).toHaveLength(
    1,
  );
});

const asMain = (make: (file: string) => void) => (main: string) => {
  rmSync(main);
  make(main);
};
const asDropIn = (make: (file: string) => void) => (main: string) =>
  make(join(`${main}.d`, "a.json"));
const makeFifo = (file: string) => void spawnSync("mkfifo", [file]);
/** Of 4 GiB, without a block on the disk. */
const makeLarge = (file: string) => {
  writeFileSync(file, "");
  truncateSync(file, 2 ** 32);
};
const cannotRead = "Cannot read the configuration: ";

test.each<[string, (main: string) => void, string]>([
  [
    "a folder",
    asMain((file) => mkdirSync(file)),
    `${cannotRead}daemon.json is a folder, not a regular file`,
  ],
  ["a FIFO", asMain(makeFifo), `${cannotRead}daemon.json is a FIFO, not a regular file`],
  ["a large file", asMain(makeLarge), `${cannotRead}daemon.json is larger than 1048576 bytes`],
  ["no file", asMain(() => {}), `${cannotRead}ENOENT`],
  [
    "a device",
    asMain((file) => symlinkSync("/dev/zero", file)),
    `${cannotRead}daemon.json is a device, not a regular file`,
  ],
  [
    "a drop-in that is a folder",
    asDropIn((file) => mkdirSync(file)),
    `${cannotRead}daemon.json.d/a.json is a folder, not a regular file`,
  ],
  ["a drop-in that is a FIFO", asDropIn(makeFifo), `${cannotRead}daemon.json.d/a.json is a FIFO`],
  ["a large drop-in", asDropIn(makeLarge), `${cannotRead}daemon.json.d/a.json is larger than`],
  [
    "a link to itself as drop-in",
    asDropIn((file) => symlinkSync("a.json", file)),
    `${cannotRead}ELOOP`,
  ],
  [
    "a file in the place of the folder",
    (main) => {
      rmSync(`${main}.d`, { recursive: true });
      writeFileSync(`${main}.d`, "{}");
    },
    `${cannotRead}ENOTDIR`,
  ],
  [
    "a byte that is no UTF-8",
    (main) => writeFileSync(main, Buffer.from('{\n"state":\n"/caf\xe9"}', "latin1")),
    "daemon.json:3: not UTF-8",
  ],
  [
    "UTF-16",
    (main) => writeFileSync(main, Buffer.from('\ufeff{"state": "/s"}', "utf16le")),
    "daemon.json:1: not UTF-8",
  ],
  [
    "a drop-in that ends within a character",
    asDropIn((file) => writeFileSync(file, Buffer.from('{}\n\n"é').subarray(0, -1))),
    "daemon.json.d/a.json:3: not UTF-8",
  ],
])("%s is refused by name", (_, damage, message) => {
  expect(refusal({ main: "{}" }, damage)[0]).toStartWith(message);
});

test("text beyond ASCII is read as it is", () => {
  expect(loadConfig(write({ main: '{"state": "/é/日本"}' })).config.state).toBe("/é/日本");
});
