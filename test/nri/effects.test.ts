// Tests the effects of plugins' adjustments on cgroups, processes and the host, and their removal.
import { afterAll, beforeAll, describe, expect, test as anyTest } from "bun:test";
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import type { OciSpec } from "../../src/spec/oci.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";
import { buildPlugin, hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
/** Built by test/run from the Go module proxy: Debian 12's supports only OCI specification 1.0. */
const newRunc = join(import.meta.dirname, "../.cache/runc");
const hasNewRunc = hasGo && existsSync(newRunc);
if (!hasNewRunc) console.error(`skipped, ${newRunc} is not there: fields of OCI 1.1 and newer`);

const plugins = new Plugins();
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  if (!hasGo) return;
  for (const version of ["v061", "v0125"] as const) buildPlugin(version);
  const runtimes = hasNewRunc ? { "runc-new": { path: newRunc } } : {};
  daemon = await startDaemon({ config: plugins.config({ runtimes }) });
  pod = daemon.podConfig();
  podId = await daemon.runPod(pod);
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

const int = (value: number) => ({ value: String(value) });
const inside = async (id: string, command: string) =>
  (await daemon.exec(id, command)).stdout.trim();

const resources = {
  memory: {
    limit: int(96 << 20),
    reservation: int(32 << 20),
    ...(isV2 ? {} : { swappiness: int(7), disableOomKiller: { value: true } }),
  },
  cpu: { shares: int(1024), quota: int(40_000), period: int(50_000), cpus: "0", mems: "0" },
  pids: { limit: "33" },
  ...(isV2 ? { unified: { "memory.high": String(80 << 20) } } : {}),
};
const files: Record<string, string> = isV2
  ? {
      "memory.max": String(96 << 20),
      "memory.low": String(32 << 20),
      "memory.high": String(80 << 20),
      "cpu.weight": "39",
      "cpu.max": "40000 50000",
      "cpuset.cpus": "0",
      "cpuset.mems": "0",
      "pids.max": "33",
    }
  : {
      "memory/memory.limit_in_bytes": String(96 << 20),
      "memory/memory.soft_limit_in_bytes": String(32 << 20),
      "memory/memory.swappiness": "7",
      "memory/memory.oom_control": "oom_kill_disable 1\nunder_oom 0\noom_kill 0",
      "cpu/cpu.shares": "1024",
      "cpu/cpu.cfs_quota_us": "40000",
      "cpu/cpu.cfs_period_us": "50000",
      "cpuset/cpuset.cpus": "0",
      "cpuset/cpuset.mems": "0",
      "pids/pids.max": "33",
    };

test("resources are set in the container's cgroup", async () => {
  await plugins.adjusting([["10", "v0125", { adjust: { linux: { resources } } }]], async (name) => {
    const id = await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name } });
    const seen: Record<string, string> = {};
    // One after another: the limit of pids also counts the threads of runc's own process in each exec.
    for (const file of Object.keys(files))
      seen[file] = await inside(id, `cat /sys/fs/cgroup/${file}`);
    expect(seen).toEqual(files);
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

test.each(["v061", "v0125"] as const)("%s: hooks of all six kinds are run", async (version) => {
  const mark = (kind: string) => join(plugins.dir, `${version}-${kind}`);
  const say = (file: string) => ({ path: "/bin/sh", args: ["sh", "-c", `echo ran > ${file}`] });
  const onHost = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
  const hooks = {
    ...Object.fromEntries(onHost.map((kind) => [kind, [say(mark(kind))]])),
    startContainer: [say("/started")], // its program and files are the container's
  };
  await plugins.adjusting([["10", version, { adjust: { hooks } }]], async (name) => {
    const id = await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name } });
    expect(await inside(id, "cat /started")).toBe("ran");
    const ran = () => onHost.filter((kind) => existsSync(mark(kind)));
    expect(ran()).toEqual(onHost.slice(0, 4));
    await daemon.client.RemoveContainer({ container_id: id });
    await until("all hooks have run", () => ran().length === onHost.length);
  });
});

describe.skipIf(!hasNewRunc)("on a runtime that supports OCI specification 1.3", () => {
  test("I/O priority, scheduler and memory policy are set on the container's process", async () => {
    const linux = {
      ioPriority: { class: "IOPRIO_CLASS_BE", priority: 6 },
      scheduler: { policy: "SCHED_BATCH", nice: 5 },
      memoryPolicy: { mode: "MPOL_BIND", nodes: "0", flags: ["MPOL_F_STATIC_NODES"] },
    };
    const config = daemon.podConfig();
    const sandbox = await daemon.runPod(config, "runc-new");
    await plugins.adjusting([["10", "v0125", { adjust: { linux } }]], async (name) => {
      const id = await daemon.run(sandbox, config, ["sleep", "600"], { metadata: { name } });
      expect(await inside(id, "ionice -p 1")).toBe("best-effort: prio 6");
      const batch = 3;
      const stat = await inside(id, "cat /proc/1/stat");
      const fields = stat.slice(stat.lastIndexOf(")")).split(" "); // from the third on
      expect([fields[19 - 2], fields[41 - 2]]).toEqual(["5", String(batch)]);
      expect(await inside(id, "cat /proc/1/numa_maps")).toContain("bind=static:0");
      await daemon.removePod(sandbox);
    });
  });

  test("a network device is moved into the container, and returned under its old name", async () => {
    const device = `nri${daemon.token.slice(-8)}`;
    const ip = (...args: string[]) => execFileSync("ip", args, { encoding: "utf8" });
    ip("link", "add", device, "type", "veth", "peer", "name", `${device}p`);
    try {
      const netDevices = { [device]: { name: "mine0" } };
      const config = daemon.podConfig();
      const sandbox = await daemon.runPod(config, "runc-new");
      const adjust = { linux: { netDevices } };
      await plugins.adjusting([["10", "v0125", { adjust }]], async (name) => {
        const id = await daemon.run(sandbox, config, ["sleep", "600"], { metadata: { name } });
        expect(await inside(id, "ls /sys/class/net")).toContain("mine0");
        expect(existsSync(`/sys/class/net/${device}`)).toBe(false);
        await daemon.removePod(sandbox);
      });
    } finally {
      if (existsSync(`/sys/class/net/${device}p`)) ip("link", "delete", `${device}p`);
    }
  });
});

/** Drops fields that differ between containers, and sorts mounts by destination. */
function spec(id: string, name: string): OciSpec {
  const path = join(daemon.dir, "graph/containers", id, "config.json");
  const text = readFileSync(path, "utf8").replaceAll(id, "ID").replaceAll(name, "NAME");
  const spec = JSON.parse(text) as OciSpec;
  spec.mounts.sort((a, b) => (a.destination < b.destination ? -1 : 1));
  return spec;
}

test("a plugin can remove every kind of keyed entry that an earlier plugin added", async () => {
  const device = { path: "/dev/mine", type: "c", major: "1", minor: "5" };
  const added = {
    annotations: { mine: "1" },
    mounts: [{ destination: "/mine", type: "tmpfs", source: "tmpfs" }],
    env: [{ key: "MINE", value: "1" }],
    args: ["mine"],
    linux: {
      devices: [device],
      namespaces: [{ type: "time" }],
      sysctl: { "net.core.somaxconn": "99" },
      netDevices: { mine0: {} },
    },
  };
  const removed = {
    annotations: { "-mine": "" },
    mounts: [{ destination: "-/mine" }],
    env: [{ key: "-MINE" }],
    args: ["", "true"],
    linux: {
      devices: [{ path: "-/dev/mine" }],
      namespaces: [{ type: "-time" }],
      sysctl: { "-net.core.somaxconn": "" },
      netDevices: { "-mine0": {} },
      rdt: { remove: true },
    },
  };
  const plain = await daemon.create(podId, pod, ["true"], { metadata: { name: "plain" } });
  await plugins.adjusting(
    [
      ["10", "v0125", { adjust: added }],
      ["20", "v0125", { adjust: removed }],
    ],
    async (name) => {
      const id = await daemon.create(podId, pod, ["true"], { metadata: { name } });
      expect(spec(id, name)).toEqual(spec(plain, "plain"));
      await daemon.client.RemoveContainer({ container_id: id });
    },
  );
  await daemon.client.RemoveContainer({ container_id: plain });
});

test("a plugin can remove the container's own entries", async () => {
  const adjust = {
    mounts: [{ destination: "-/own" }],
    env: [{ key: "-OWN" }],
    linux: { devices: [{ path: "-/dev/own" }], namespaces: [{ type: "-ipc" }] },
  };
  const more = {
    envs: [
      { key: "OWN", value: Buffer.from("1") },
      { key: "KEPT", value: Buffer.from("1") },
    ],
    mounts: ["/own", "/kept"].map((container_path) => ({ container_path, host_path: "/tmp" })),
    devices: ["/dev/own", "/dev/kept"].map((container_path) => ({
      container_path,
      host_path: "/dev/null",
      permissions: "rwm",
    })),
  };
  await plugins.adjusting([["10", "v061", { adjust: { ...adjust, linux: {} } }]], async (name) => {
    const id = await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name }, ...more });
    expect(await inside(id, "echo $OWN$KEPT; ls -d /own /kept 2>/dev/null")).toBe("1\n/kept");
    await daemon.client.RemoveContainer({ container_id: id });
  });
  await plugins.adjusting([["10", "v0125", { adjust }]], async (name) => {
    const id = await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name }, ...more });
    const found = "echo $OWN$KEPT; ls -d /own /kept /dev/own /dev/kept 2>/dev/null";
    expect(await inside(id, found)).toBe("1\n/dev/kept\n/kept");
    const { linux } = spec(id, name);
    expect(linux.namespaces.map(({ type }) => type)).not.toContain("ipc");
    await daemon.client.RemoveContainer({ container_id: id });
  });
});
