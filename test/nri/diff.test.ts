// Tests isulad-ts nri diff against a daemon with plugins: their changes at creation and in updates.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
const cdiDir = join(plugins.dir, "cdi");
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  if (!hasGo) return;
  mkdirSync(cdiDir);
  const edits = { env: ["CDI=one"] };
  const devices = [{ name: "one", containerEdits: edits }];
  const kind = { cdiVersion: "0.5.0", kind: "example.com/device", devices };
  writeFileSync(join(cdiDir, "test.json"), JSON.stringify(kind));
  const config = plugins.config({ "enable-cdi": true, "cdi-spec-dirs": [cdiDir] });
  daemon = await startDaemon({ config });
  pod = daemon.podConfig({ metadata: { name: "web-7d9c5b8f6d-x2x4z" } });
  podId = await daemon.runPod(pod);
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

function diff(...words: string[]) {
  const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
  return spawnSync(executable, ["nri", "diff", ...words], { env, encoding: "utf8" });
}

type Change = { plugin: string; event: string; fields: object[]; moreFields: string };
function changes(name: string): Change[] {
  const { stdout, stderr } = diff("-o", "json", name);
  expect(stderr).toBe("");
  return JSON.parse(stdout).changes;
}

const start = (name: string, more = {}) =>
  daemon.run(podId, pod, ["sleep", "600"], { metadata: { name }, ...more });
const int = (value: number) => ({ value: String(value) });

test("each plugin's changes of the spec are shown, from what the one before has made", async () => {
  const first = {
    env: [
      { key: "NEW", value: "1" },
      { key: "OLD", value: "changed" },
    ],
    hooks: { createRuntime: [{ path: "/bin/true", args: ["true"] }] },
    linux: { devices: [{ path: "/dev/mine", type: "c", major: "1", minor: "3" }] },
  };
  const second = {
    annotations: { mine: "yes" },
    env: [
      { key: "-NEW", value: "" },
      { key: "NEW", value: "2" },
    ],
    mounts: [{ destination: "/mine", type: "bind", source: "/etc/hostname", options: ["bind"] }],
    CDIDevices: [{ name: "example.com/device=one" }],
    linux: { resources: { pids: { limit: "33" } } },
  };
  await plugins.adjusting(
    [
      ["10", "v061", { adjust: first }],
      ["20", "v0125", { adjust: second }],
      ["30", "v0125", {}],
    ],
    async (name) => {
      const envs = [{ key: "OLD", value: Buffer.from("given") }];
      const id = await start(name, { envs });
      const found = changes(id.slice(0, 12));
      expect(found.map(({ plugin }) => plugin)).toEqual([`10-${name}`, `20-${name}`]);
      const device = expect.objectContaining({ type: "c", major: 1, minor: 3 });
      expect(found[0]!.fields).toEqual(
        expect.arrayContaining([
          { path: "process.env[NEW]", after: "1" },
          { path: "process.env[OLD]", before: "given", after: "changed" },
          { path: "hooks.createRuntime[0]", after: { path: "/bin/true", args: ["true"] } },
          { path: "linux.devices[/dev/mine]", after: device },
        ]),
      );
      expect(found[0]!.fields).toHaveLength(5); // with the device's rule
      expect(found[1]!.fields).toEqual(
        expect.arrayContaining([
          { path: "annotations[mine]", after: "yes" },
          { path: "process.env[NEW]", before: "1", after: "2" },
          { path: "process.env[CDI]", after: "one" },
          { path: "linux.resources.pids.limit", after: 33 },
        ]),
      );
      expect(found[1]!.fields).toHaveLength(5); // with the mount
      const { status, stdout } = diff(`test/web-7d9c5b8f6d-x2x4z/${name}`);
      expect(status).toBe(0);
      expect(stdout).toContain(`10-${name} changed it at its creation, `);
      expect(stdout).toContain("\n  ~ process.env[OLD]: given → changed\n");
      const widths = stdout.split("\n").map((line) => line.length);
      expect(Math.max(...widths)).toBeLessThanOrEqual(80);

      await daemon.restart();
      expect(changes(name)).toEqual(found);
      await daemon.client.RemoveContainer({ container_id: id });
      expect(diff(id).stderr).toContain("not found");
    },
  );
});

test("a container that no plugin changed has no changes, and nothing is written", async () => {
  const id = await start("plain");
  const { status, stdout } = diff("plain");
  expect(status).toBe(0);
  expect(stdout).toBe("No NRI plugin has changed test/web-7d9c5b8f6d-x2x4z/plain.\n");
  const files = spawnSync("ls", [join(daemon.dir, "graph/containers", id)], { encoding: "utf8" });
  expect(files.stdout).toContain("config.json");
  expect(files.stdout).not.toContain("nri_changes");
  await daemon.client.RemoveContainer({ container_id: id });
});

test("updates are shown with the plugin: a client's that it changed, and its own", async () => {
  const shares = (value: number) => ({ linux: { resources: { cpu: { shares: int(value) } } } });
  const other = await start("other");
  const name = "changed";
  const id = await start(name);
  const own = [{ containerId: other, ...shares(50) }];
  const update = [{ linux: { resources: { memory: { limit: int(48 << 20) } } } }];
  const use = async () => {
    await until("it was answered", () =>
      plugins.lines(`10-${name}`).some(({ event }) => event === "UpdateContainers"),
    );
    const linux = { memory_limit_in_bytes: toLong(64 << 20) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
  };
  await plugins.adjusting([["10", "v0125", { own, update }]], use, name);
  const path = "linux.resources.cpu.shares";
  expect(changes("other")).toMatchObject([
    { plugin: `10-${name}`, event: "UpdateContainers", fields: [{ path, after: 50 }] },
  ]);
  const limit = { path: "linux.resources.memory.limit", before: 64 << 20, after: 48 << 20 };
  const [change, ...more] = changes(name);
  expect(change).toMatchObject({ plugin: `10-${name}`, event: "UpdateContainerResources" });
  expect(change!.fields[0]).toEqual(limit);
  expect(more).toEqual([]);
});
