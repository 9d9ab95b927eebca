// Tests the support bundle of a node whose daemon is dead: what it has, what it leaves out, and what is redacted.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { supportBundle } from "../../../src/doctor/bundle.ts";
import { thisNode, type Node } from "../../../src/doctor/node.ts";
import { redacted } from "../../../src/doctor/redact.ts";

let root = "";
let node: Node;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "isulad-bundle-"));
  node = {
    root,
    nowMs: 0,
    isRoot: true,
    isInstalled: () => true,
    output: (argv) =>
      argv[0] === "journalctl"
        ? Promise.reject(new Error("journalctl: not found"))
        : Promise.resolve("runc version 1.3.3\n"),
    disk: () => Promise.reject(new Error("unused")),
    addresses: () => ["127.0.0.1", "192.0.2.5"],
    environment: {},
    trace: () => Promise.resolve(),
    dial: () => Promise.reject(new Error("unused")),
    askRegistry: () => Promise.reject(new Error("unused")),
  };
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function write(path: string, text: string): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text);
}

/** Makes a bundle and returns its files by name, as tar(1) reads them. */
async function bundled(values: object): Promise<Map<string, string>> {
  const file = join(root, "daemon.json");
  writeFileSync(file, JSON.stringify(values));
  const texts = {
    "dump.json": () => Promise.reject(new Error("Cannot reach the daemon")),
    "config.txt": () => "mirror https://me:hunter2@mirror.test\n",
  };
  const bundle = await supportBundle({ node, load: () => loadConfig(file), texts });
  writeFileSync(join(root, "bundle.tar.gz"), bundle);
  const out = join(root, "out");
  mkdirSync(out);
  const { status, stdout, stderr } = spawnSync("tar", ["-xvzf", "../bundle.tar.gz"], { cwd: out });
  expect({ status, stderr: String(stderr) }).toEqual({ status: 0, stderr: "" });
  const names = String(stdout).trim().split("\n");
  return new Map(
    names.map((name) => {
      return [name.replace("isulad-ts-support/", ""), readFileSync(join(out, name), "utf8")];
    }),
  );
}

describe("a support bundle", () => {
  test("has configuration, logs, records, cgroups and dumps without a daemon", async () => {
    const record = { name: "web_shop_1", phase: { phase: "running", pid: 7 }, createdAtNs: "5" };
    const secret = { config: { envs: [{ key: "PASSWORD", value: "hunter2" }] } };
    write("/g/containers/c1/container.json", JSON.stringify({ ...record, ...secret }));
    write("/g/sandboxes/p1/sandbox.json", "damaged");
    const run = { id: "c1", cgroup: { memory: "/sys/fs/cgroup/pods/c1" } };
    write("/s/monitor/containers/c1.json", JSON.stringify(run));
    write("/sys/fs/cgroup/pods/c1/memory.max", "1048576\n");
    write("/s/monitor.log", "INFO monitor ready\n");
    write("/s/dumps/dump-1.json", "{}");
    write("/proc/self/mountinfo", "30 1 0:26 / /g rw - tmpfs tmpfs rw\n");
    const files = await bundled({ graph: "/g", state: "/s" });
    expect(files.get("config-0.json")).toContain('"graph":"/g"');
    expect(files.get("monitor.log")).toBe("INFO monitor ready\n");
    expect(files.get("mounts.txt")).toContain("/g rw");
    expect(files.get("runtimes.txt")).toContain("runc version 1.3.3");
    expect(files.get("dumps/dump-1.json")).toBe("{}");
    expect(files.get("cgroups.txt")).toContain("memory.max: 1048576");
    expect(files.get("records.txt")).toContain('container c1 {"name":"web_shop_1"');
    expect(files.get("records.txt")).toContain("sandbox p1 no readable record");
    expect([...files.values()].join()).not.toContain("hunter2");
  });

  test("says of each part that is missing why", async () => {
    const files = await bundled({ graph: "/g", state: "/s" });
    expect(files.get("journal.txt")).toBe("not collected: journalctl: not found\n");
    expect(files.get("dump.json")).toBe("not collected: Cannot reach the daemon\n");
    expect(files.get("monitor.log")).toContain("not collected: ENOENT");
  });

  test("is made although the configuration is bad", async () => {
    const files = await bundled({ graph: 5 });
    expect(files.get("kernel.txt")).toContain("not collected");
    expect(files.has("records.txt")).toBe(false);
  });

  test("has the newest 4 MiB of a log, in whole lines", async () => {
    write("/s/monitor.log", `${"old line\n".repeat(600_000)}last line\n`);
    const log = (await bundled({ graph: "/g", state: "/s" })).get("monitor.log")!;
    expect(log.length).toBeLessThanOrEqual(4 << 20);
    expect(log).toStartWith("old line\n");
    expect(log).toEndWith("last line\n");
  });
});

test("a bundle has the newest 4 MiB of the journal, in whole lines", async () => {
  // As journalctl does, whose output is kept from its beginning.
  const lines = (argv: string[]) =>
    argv.includes("--reverse") ? ["seq", "700000", "-1", "1"] : ["seq", "1", "700000"];
  const real = thisNode();
  node.output = (argv, bounds) =>
    real.output(argv[0] === "journalctl" ? lines(argv) : argv, bounds);
  const journal = (await bundled({ graph: "/g", state: "/s" })).get("journal.txt")!;
  expect(journal.slice(0, 14)).toBe("700000\n699999\n");
  expect(journal.length).toBeWithin((4 << 20) - 10, (4 << 20) + 1);
  expect(journal.slice(-9)).toMatch(/\d\n\d{5,6}\n$/);
});

test.each([
  ['"password": "x\\"y"', '"password": "[redacted]"'],
  ['"registry-auth-file": "/etc/auth.json"', '"registry-auth-file": "/etc/auth.json"'],
  ['"auth": "dXNlcjpwdw=="', '"auth": "[redacted]"'],
  ["HTTPS_PROXY=http://me:pw@proxy:3128", "HTTPS_PROXY=http://[redacted]@proxy:3128"],
  ["x=API_TOKEN=abc next", "x=API_TOKEN=[redacted] next"],
  ["--api-token=abc next", "--api-token=[redacted] next"],
  ["API_TOKEN=abc next", "API_TOKEN=[redacted] next"],
  ["Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"],
  ["https://registry.test/v2/", "https://registry.test/v2/"],
  ['"password": "/begins+with/a+slash="', '"password": "[redacted]"'],
  ['"token": 123456', '"token": "[redacted]"'],
  ["API_TOKEN=/x,y next", "API_TOKEN=[redacted] next"],
  ['["DB_PASSWORD=two words"]', '["DB_PASSWORD=[redacted]"]'],
  ['"{\\"password\\":\\"x\\"}"', '"{\\"password\\":\\"[redacted]\\"}"'],
  ["TOKEN_FILE=/run/token", "TOKEN_FILE=/run/token"],
  ['"token-path": "/run/token"', '"token-path": "/run/token"'],
])("in %s only the secret is redacted", (text, left) => {
  expect(redacted(text)).toBe(left);
});

test.each([
  ["names without end", "token.".repeat(10_000)],
  ["names in quotes", `"${"secret-".repeat(10_000)}`],
  ["names in escaped quotes", `\\"${"creds.".repeat(10_000)}`],
  ["blanks", `"token"${" ".repeat(50_000)}`],
  ["quotes", '"token":'.repeat(8_000)],
  ["schemes", "a.".repeat(30_000)],
])("64 KB of %s take little time", (_, text) => {
  const begin = performance.now();
  redacted(text);
  expect(performance.now() - begin).toBeLessThan(3_000); // 4 KB took 0.9 s
});
