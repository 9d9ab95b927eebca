import { expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../src/base/config.ts";
import { configTable, parseFlags } from "../../src/cli/config.ts";

test("parseFlags takes keys as flags, switches without a value, and lists several times", () => {
  const argv =
    "--config f.json --graph=/a --systemd-cgroup --nri-support false --host unix:///a --hosts unix:///b rest";
  expect(parseFlags(argv.split(" "))).toEqual({
    file: "f.json",
    flags: {
      graph: "/a",
      "systemd-cgroup": "true",
      "nri-support": "false",
      hosts: "unix:///a,unix:///b",
    },
    rest: ["rest"],
  });
  expect(() => parseFlags(["--graph"])).toThrow("--graph needs a value");
});

test("configTable shows values that a daemon.json with them would keep", () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-config-"));
  using _ = { [Symbol.dispose]: () => rmSync(folder, { recursive: true }) };
  const file = join(folder, "daemon.json");
  const content = {
    runtimes: { runc: { path: "/usr/bin/env", "runtime-args": ["--debug"], "cni-conf-dir": "/x" } },
    "default-ulimits": { nofile: { Name: "nofile", Hard: -1, Soft: 5 } },
    "native.umask": "secure",
    "cni-timeout": "1500ms",
  };
  writeFileSync(file, JSON.stringify(content));
  const rows = configTable(loadConfig(file, { graph: "/flag" }))
    .split("\n")
    .filter((line) => !line.startsWith("#") && !line.startsWith("KEY") && line !== "")
    .map((line) => line.split(/ {2,}/));
  expect(rows).toContainEqual(["graph", '"/flag"', "flag"]);
  expect(rows).toContainEqual(["cni-timeout", '"1500ms"', "file:1"]);
  const expected = loadConfig(file, { graph: "/flag" }).config;
  const again = Object.fromEntries(rows.map(([key, value]) => [key, JSON.parse(value ?? "")]));
  writeFileSync(file, JSON.stringify(again));
  expect(loadConfig(file).config).toEqual(expected);
});
