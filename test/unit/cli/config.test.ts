// Tests the flags that set keys of daemon.json, and the table of the configuration.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { daemonKeys } from "../../../src/base/config_keys.ts";
import { nriKeys } from "../../../src/base/config_nri_keys.ts";
import { parseFlags } from "../../../src/cli/config.ts";
import { configTable, defaultConfig, explainedKeys } from "../../../src/cli/config_text.ts";

const parse = (line: string) => {
  const { file, flags, info } = parseFlags("prog", line.split(" ").filter(Boolean));
  return {
    file,
    flags: Object.fromEntries([...flags].map(([{ key }, text]) => [key, text])),
    info,
  };
};

test("parseFlags accepts keys as flags, switches without a value, and repeated lists", () => {
  const line =
    "--config f.json --graph=/a --systemd-cgroup --nri-support false --host unix:///a --hosts unix:///b";
  expect(parse(line)).toEqual({
    file: "f.json",
    flags: {
      graph: "/a",
      "systemd-cgroup": "true",
      "nri-support": "false",
      hosts: "unix:///a,unix:///b",
    },
    info: undefined,
  });
});

test("parseFlags accepts iSulad's short flags", () => {
  const line = "-g /a -G isula -H unix:///a -H unix:///b -S /s -p /p -l INFO -e lcr";
  expect(parse(line).flags).toEqual({
    graph: "/a",
    group: "isula",
    hosts: "unix:///a,unix:///b",
    state: "/s",
    pidfile: "/p",
    "log-level": "INFO",
    engine: "lcr",
  });
});

test.each([
  ["--help", "help"],
  ["--graph /x -h", "help"],
  ["-V", "version"],
  ["-v --graph /x", "version"],
] as const)("parseFlags %s prints the %s", (line, info) => {
  expect(parse(line).info).toBe(info);
});

test.each([
  ["--graph", "--graph needs a value. See prog --help."],
  ["--graph=", "--graph has an empty value: omit it for the default. See prog --help."],
  [
    "--graph --state /x",
    "--graph needs a value, but is followed by the flag --state. See prog --help.",
  ],
  ["--graph /a --graph /b", "--graph is given twice. See prog --help."],
  ["-g /a --graph=/b", "--graph is given twice. See prog --help."],
  ["--config a --config b", "--config is given twice. See prog --help."],
  ["-c FILE", "prog has no option -c; did you mean --config? See prog --help."],
  ["-s overlay2", "-s is ambiguous: use --storage-opts or --storage-driver. See prog --help."],
  ["-g/a", "prog has no option -g/a; did you mean --graph? See prog --help."],
  ["--gruph=/a", "prog has no option --gruph; did you mean --graph? See prog --help."],
  ["--graph /a stray", 'Unexpected argument "stray". See prog --help.'],
  ["--graph /a -- --state", 'Unexpected argument "--". See prog --help.'],
  ["-", 'Unexpected argument "-". See prog --help.'],
  ["constructor", 'Unexpected argument "constructor". See prog --help.'],
  ["__proto__", 'Unexpected argument "__proto__". See prog --help.'],
  ["-constructor x", "prog has no option -constructor"],
])("parseFlags refuses %s", (line, message) => {
  expect(() => parse(line)).toThrow(message);
});

test("parseFlags rejects an empty argument and an empty value", () => {
  expect(() => parseFlags("prog", [""])).toThrow('Unexpected argument ""');
  expect(() => parseFlags("prog", ["--graph", ""])).toThrow("--graph has an empty value");
});

function makeFolder(): Disposable & { file: string } {
  const folder = mkdtempSync(join(tmpdir(), "isulad-config-"));
  const file = join(folder, "daemon.json");
  return { file, [Symbol.dispose]: () => rmSync(folder, { recursive: true }) };
}

test("configTable shows values in the syntax of daemon.json", () => {
  using folder = makeFolder();
  const { file } = folder;
  const content = {
    runtimes: {
      runc: { path: "/usr/bin/env", "runtime-args": ["--debug"], "cni-conf-dir": "/x" },
      crunshim: { "runtime-type": "io.containerd.runc.v2", "runtime-options": { IoUid: 5 } },
      gvisor: { "runtime-type": "io.containerd.runsc.v1", "runtime-config-path": "/etc/passwd" },
    },
    "cri-runtimes": { kata: "io.containerd.kata.v2" },
    "default-ulimits": { nofile: { Name: "nofile", Hard: -1, Soft: 5 } },
    "native.umask": "secure",
    "cni-timeout": "1500ms",
  };
  writeFileSync(file, JSON.stringify(content));
  const rows = configTable(loadConfig(file, new Map([[daemonKeys.graph, "/flag"]])))
    .split("\n")
    .filter((line) => !line.startsWith("#") && !line.startsWith("KEY") && line !== "")
    .map((line) => line.split(/ {2,}/));
  expect(rows).toContainEqual(["graph", '"/flag"', "flag"]);
  expect(rows).toContainEqual(["cni-timeout", '"1500ms"', `${file}:1`]);
  const expected = loadConfig(file, new Map([[daemonKeys.graph, "/flag"]])).config;
  expect(Object.keys(expected.runtimes)).toContain("kata");
  const again = Object.fromEntries(rows.map(([key, value]) => [key, JSON.parse(value ?? "")]));
  writeFileSync(file, JSON.stringify(again));
  expect(loadConfig(file).config).toEqual(expected);
});

test("configTable names each file, and the files that a map was merged of", () => {
  using folder = makeFolder();
  const { file } = folder;
  mkdirSync(`${file}.d`);
  writeFileSync(file, '{"graph": "/a",\n"default-ulimits": {"core": {"Hard": 0, "Soft": 0}}}');
  const dropIn = join(`${file}.d`, "10-a.json");
  writeFileSync(dropIn, '{"default-ulimits": {"nofile": {"Hard": 2, "Soft": 1}}}');
  const lines = configTable(loadConfig(file)).split("\n");
  expect(lines.slice(0, 2)).toEqual([`# ${file}`, `# ${dropIn}`]);
  const from = (key: string) => lines.find((line) => line.startsWith(`${key} `))?.split(/ {2,}/)[2];
  expect(from("graph")).toBe(`${file}:1`);
  expect(from("default-ulimits")).toBe(`${file}:2, ${dropIn}:1`);
  expect(from("state")).toBe("default");
});

test("defaultConfig is strict JSON with every key, which changes nothing", () => {
  using folder = makeFolder();
  const { file } = folder;
  writeFileSync(file, "{}");
  const { config, warnings } = loadConfig(file);
  writeFileSync(file, defaultConfig());
  const loaded = loadConfig(file);
  expect(loaded.config).toEqual(config);
  expect(loaded.warnings).toEqual(warnings);
  const keys: string[] = Object.values({ ...daemonKeys, ...nriKeys }).map(({ key }) => key);
  expect(Object.keys(JSON.parse(defaultConfig()) as object)).toEqual(keys);
});

test("explainedKeys has default, meaning, values and other names of each key", () => {
  const text = explainedKeys();
  expect(text).toContain(`"cni-timeout": "60s"
    timeout of a CNI ADD or DEL, all plugins together
    must be seconds as a number, or a text such as "5s" or "2m", from 1s to 24h
`);
  expect(text).toContain("    also: cni-max-conf-num\n");
  for (const { key } of Object.values({ ...daemonKeys, ...nriKeys })) {
    expect(text).toContain(`"${key}": `);
  }
});
