// Tests reload(): what it applies, what it names, and that a mistake changes nothing.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../src/base/config.ts";
import { jsonText } from "../../src/base/json.ts";
import { createLog } from "../../src/base/log.ts";
import { reloadText } from "../../src/cli/reload.ts";
import type { Context } from "../../src/cri/context.ts";
import { openHandlers } from "../../src/cri/runtime_handlers.ts";
import { openCni } from "../../src/node/cni.ts";
import { liveFields } from "../../src/base/live_fields.ts";
import { reload } from "../../src/reload.ts";
import { CriError } from "../../src/base/errors.ts";
import { failureOf } from "./fakes.ts";

let dir = "";
let file = "";
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "isulad-reload-"));
  file = join(dir, "daemon.json");
});
afterEach(() => rmSync(dir, { recursive: true }));

/** An entry of "runtimes" whose program only answers `features`. */
function runtime(): { path: string } {
  const path = join(dir, "runtime");
  writeFileSync(path, "#!/bin/sh\necho '{}'\n", { mode: 0o755 });
  return { path };
}

function write(values: Record<string, unknown>): void {
  const runtimes = { runc: runtime(), crun: runtime() };
  writeFileSync(file, jsonText({ state: join(dir, "state"), runtimes, ...values }, 2));
}

type Fake = {
  context: Context;
  lines: string[];
  calls: string[];
  again: () => ReturnType<typeof reload>;
};

/** A daemon with this configuration. */
async function daemonWith(
  values: Record<string, unknown>,
  tlsServers: Context["tlsServers"] = {},
): Promise<Fake> {
  write(values);
  const read = () => loadConfig(file);
  const { config } = read();
  const lines: string[] = [];
  const stream = { write: (line: string) => lines.push(line.trim()) };
  const log = createLog({
    get level() {
      return config.logLevel;
    },
    format: "text",
    stream,
  });
  const calls: string[] = [];
  const context = {
    config,
    log,
    handlers: openHandlers(config, log),
    images: { pin: (patterns: string[]) => calls.push(`pin ${patterns.join(" ")}`) },
    tlsServers,
    nri: {
      relaunch: () => {
        calls.push("relaunch");
        return Promise.resolve();
      },
    },
  } as unknown as Context;
  return { context, lines, calls, again: () => reload(context, read) };
}

test("reload applies live keys, names those that need a restart, and opens the handlers again", async () => {
  const { context, calls, lines, again } = await daemonWith({ "registry-mirrors": ["a.example"] });
  write({
    "registry-mirrors": ["b.example"],
    "pinned-images": ["busybox"],
    graph: "/other",
    runtimes: { runc: runtime(), crun: runtime(), other: runtime() },
  });
  const { applied, restart } = await again();
  expect(applied.sort()).toEqual(["pinned-images", "registry-mirrors", "runtimes"]);
  expect(restart).toEqual(["graph"]);
  expect(context.config.registryMirrors).toEqual(["b.example"]);
  expect(context.config.graph).toBe("/var/lib/isulad");
  expect(context.handlers.has("other")).toBe(true);
  expect(calls).toEqual(["pin busybox", "relaunch"]);
  expect(lines.join("\n")).toMatch(/WARN .*take effect after a restart keys=graph/);
  expect(lines.join("\n")).toMatch(/INFO .*configuration reloaded files=.*daemon\.json/);
});

test("reload changes the level of a log that exists", async () => {
  const { context, lines, again } = await daemonWith({});
  const room = context.log.child("room");
  room.debug("one");
  write({ "log-level": "DEBUG" });
  await again();
  room.debug("two");
  write({ "log-level": "ERROR" });
  await again();
  room.info("three");
  expect(lines.filter((line) => line.includes("room: "))).toEqual([
    expect.stringContaining("room: two"),
  ]);
});

test("plugins that cannot be started are a warning: the values are in force", async () => {
  const { context, lines, again } = await daemonWith({});
  context.nri!.relaunch = () => Promise.reject(new Error("ENOTDIR"));
  write({ "plugin-path": "/file" });
  const { applied, warnings } = await again();
  expect(applied).toEqual(["plugin-path"]);
  expect(warnings).toEqual([
    '"plugin-path" /file: ENOTDIR: the pre-installed NRI plugins of the folder before run on: correct it and reload again',
  ]);
  expect(lines.join("\n")).toMatch(/WARN .*plugin-path/);
});

const certificates = {
  "stream-tls-cert": "/c",
  "stream-tls-key": "/k",
  "metrics-tls-cert": "/c",
  "metrics-tls-key": "/k",
};

test("certificates that were renewed in place are applied", async () => {
  const taken: string[] = [];
  const { again } = await daemonWith(certificates, {
    stream: {
      renewal:
        ({ cert }) =>
        () =>
          taken.push(cert),
    },
    metrics: { renewal: () => undefined },
  });
  expect((await again()).applied).toEqual(["stream-tls-cert"]);
  expect(taken).toEqual(["/c"]);
});

test.each<[string, Record<string, unknown>, RegExp]>([
  ["a wrong type", { "log-level": 5 }, /daemon\.json:\d+: "log-level" must be/],
  [
    "a base spec that is missing",
    {
      "log-level": "DEBUG",
      runtimes: { runc: { path: "/bin/true", "base-runtime-spec": "/none" } },
    },
    /"runtimes\.runc\.base-runtime-spec" \/none: ENOENT/,
  ],
  [
    "a certificate without its key",
    { "stream-tls-cert": "/c" },
    /"stream-tls-cert" needs "stream-tls-key", too/,
  ],
  [
    "a key of the metrics without its certificate",
    { "metrics-tls-key": "/k" },
    /"metrics-tls-key" needs "metrics-tls-cert", too/,
  ],
  ["an unusable certificate", { "log-level": "DEBUG", ...certificates }, /unusable \/bad$/],
])("after %s everything stays as it was", async (_, values, message) => {
  const refuse = () => {
    throw new CriError("FAILED_PRECONDITION", "unusable /bad");
  };
  const { context, calls, lines, again } = await daemonWith(
    {},
    {
      stream: { renewal: () => () => calls.push("another certificate of the streams") },
      metrics: { renewal: refuse },
    },
  );
  const before = { text: jsonText(context.config), handlers: context.handlers };
  write({ "registry-mirrors": ["b.example"], ...values });
  const failure = await failureOf(again());
  expect(failure).toStartWith("the configuration was not reloaded, the old values stay in force: ");
  expect(failure).toMatch(message);
  expect({ text: jsonText(context.config), handlers: context.handlers }).toEqual(before);
  expect(context.handlers).toBe(before.handlers);
  expect([calls, lines]).toEqual([[], []]);
});

test("the pod network follows the folder in the configuration", async () => {
  const { config } = (await daemonWith({ "cni-conf-dir": "/one", "cni-bin-dir": "/none" })).context;
  const names = {
    confDir: "cniConfDir",
    binDirs: "cniBinDirs",
    timeoutMs: "cniTimeoutMs",
    maxConfNum: "maxConfNum",
    podNetworks: "podNetworks",
  } as const;
  const { log } = (await daemonWith({})).context;
  const more = { cacheDir: join(dir, "cni"), log, graceMs: 1000 };
  await using cni = openCni(Object.assign(liveFields(config, names), more));
  expect((await cni.status()).message).toContain(" in /one ");
  config.cniConfDir = join(dir, "two");
  expect((await cni.status()).message).toContain(` in ${config.cniConfDir} `);
});

test("the command's answer names warnings, what was applied and what was not", () => {
  expect(reloadText({ applied: ["a", "b"], restart: ["c"], warnings: ["w"] })).toBe(
    "warning: w\napplied: a, b\nneeds a restart of the daemon: c\n",
  );
  expect(reloadText({})).toBe("nothing has changed\n");
});
