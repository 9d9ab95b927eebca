// Tests that isulad-ts doctor finds a trace collector that takes no spans, and where it learns of collectors.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { checkCollector } from "../../../src/doctor/collector.ts";
import { thisNode, type Node } from "../../../src/doctor/node.ts";

const variable = "OTEL_EXPORTER_OTLP_ENDPOINT";
let node: Node;
let asked: string[];
beforeEach(() => {
  asked = [];
  const trace: Node["trace"] = ({ url }) => {
    asked.push(url);
    return url.includes("dead") ? Promise.reject(new Error("refused")) : Promise.resolve();
  };
  const root = mkdtempSync(join(tmpdir(), "isulad-doctor-"));
  node = { ...thisNode(), root, isRoot: true, environment: {}, trace };
});
afterEach(() => rmSync(node.root, { recursive: true }));

function write(path: string, text: string): void {
  mkdirSync(dirname(join(node.root, path)), { recursive: true });
  writeFileSync(join(node.root, path), text);
}

function findings() {
  const file = join(node.root, "daemon.json");
  writeFileSync(file, JSON.stringify({ pidfile: "/run/isulad.pid" }));
  return checkCollector(node, loadConfig(file).config);
}

test("without a collector's variable there is no finding", async () => {
  write("/etc/default/isulad-ts", "NO_PROXY=x\n");
  expect(await findings()).toEqual([]);
});

test("an ordinary user, who may not read the daemon's variables, gets those of its files", async () => {
  node.isRoot = false;
  write("/run/isulad.pid", "4711");
  write("/proc/4711/comm", "isulad-ts\n");
  write("/proc/4711/environ", `${variable}=http://dead.test:4318\0`);
  expect(await findings()).toEqual([]);
  write("/etc/default/isulad-ts", `${variable}=http://live.test:4318\n`);
  expect(await findings()).toMatchObject([{ state: "ok" }]);
});

test("a dead collector of the service's variables is a warning, with how to mend it", async () => {
  write("/etc/default/isulad-ts", `# traces\n${variable}='http://dead.test:4318'\n`);
  expect(await findings()).toEqual([
    {
      check: "trace collector",
      state: "warn",
      detail:
        "http://dead.test:4318/v1/traces does not take spans: refused; they are dropped, calls go on",
      mend: `start it, or correct ${variable} in /etc/default/isulad-ts (OTLP over HTTP, usually port 4318)`,
    },
  ]);
});

test("the running daemon's variables count, not those of the files or of the command", async () => {
  write("/etc/default/isulad-ts", `${variable}=http://dead.test:4318\n`);
  node.environment = { [variable]: "http://other.test:4318" };
  write("/run/isulad.pid", "4711");
  write("/proc/4711/comm", "isulad-ts-0.1.0\n");
  write("/proc/4711/environ", `A=b\0${variable}=http://live.test:4318\0`);
  expect(await findings()).toMatchObject([{ state: "ok" }]);
  write("/proc/4711/comm", "sleep\n"); // the pid has another process now
  expect(await findings()).toMatchObject([{ state: "warn" }]);
  expect(asked).toEqual(["http://live.test:4318/v1/traces", "http://dead.test:4318/v1/traces"]);
});

test("a value that is no URL is a warning", async () => {
  node.environment = { [variable]: "otel:4317" };
  expect(await findings()).toMatchObject([
    { state: "warn", detail: expect.stringContaining("must be a URL") },
  ]);
});
