// Tests plugins' adjustments in the OCI spec and inside the container.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import type { OciSpec } from "../../src/spec/oci.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";
import { hasGo, Plugins, type StubVersion } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
const cdiDir = join(plugins.dir, "cdi");
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  if (!hasGo) return;
  mkdirSync(cdiDir);
  const config = plugins.config({
    "enable-cdi": true,
    "cdi-spec-dirs": [cdiDir],
    "blockio-config-file": join(plugins.dir, "blockio.yaml"),
  });
  daemon = await startDaemon({ config });
  pod = daemon.podConfig();
  podId = await daemon.runPod(pod);
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

const spec = (id: string) => {
  const path = join(daemon.dir, "graph/containers", id, "config.json");
  return JSON.parse(readFileSync(path, "utf8")) as OciSpec;
};

const start = (name: string, more = {}) =>
  daemon.run(podId, pod, ["sleep", "600"], { metadata: { name }, ...more });

const inside = async (id: string, command: string) =>
  (await daemon.exec(id, command)).stdout.trim();

const int = (value: number) => ({ value: String(value) });

test.each<[StubVersion]>([["v061"], ["v0125"]])(
  "%s: annotations, mounts, env, hooks, rlimits, devices and resources are adjusted",
  async (version) => {
    const file = join(plugins.dir, "mounted.txt");
    writeFileSync(file, "from the plugin");
    const mark = join(plugins.dir, `hook-${version}`);
    const hook = { path: "/bin/sh", args: ["sh", "-c", `cat > ${mark}`] };
    const adjust = {
      annotations: { mine: "yes" },
      mounts: [
        { destination: "/mine", type: "bind", source: file, options: ["bind", "ro"] },
        { destination: "-/dev/mqueue" },
      ],
      env: [{ key: "MINE", value: "a=b" }],
      hooks: { createRuntime: [hook] },
      rlimits: [{ type: "RLIMIT_NOFILE", hard: "333", soft: "222" }],
      linux: {
        devices: [
          { path: "/dev/mine", type: "c", major: "1", minor: "5", fileMode: { value: 438 } },
        ],
        resources: {
          memory: { limit: int(96 << 20) },
          cpu: { shares: int(300), quota: int(40_000), period: int(100_000) },
          ...(isV2 ? { unified: { "memory.high": String(80 << 20) } } : {}),
        },
      },
    };
    await plugins.adjusting([["10", version, { adjust }]], async (name) => {
      const id = await start(name);
      expect(spec(id).annotations["mine"]).toBe("yes");
      const seen = plugins.lines(`10-${name}`).filter(({ container }) => container?.id === id);
      const annotations = (event: string) =>
        seen.find((line) => line.event === event)?.container?.annotations;
      const cri = { "io.kubernetes.cri.container-name": name };
      expect(annotations("CreateContainer")).toMatchObject(cri);
      expect(annotations("PostCreateContainer")).toMatchObject({ ...cri, mine: "yes" });
      expect(spec(id).mounts.map(({ destination }) => destination)).not.toContain("/dev/mqueue");
      expect(await inside(id, "cat /mine")).toBe("from the plugin");
      expect(await inside(id, "echo $MINE")).toBe("a=b");
      // runc 1.1 and Go's runtime may raise the soft limit, so the spec is checked.
      expect(await inside(id, "ulimit -Hn")).toBe("333");
      const limit = { type: "RLIMIT_NOFILE", hard: 333, soft: 222 };
      expect(spec(id).process.rlimits).toContainEqual(limit as never);
      expect(await inside(id, "head -c 3 /dev/mine | od -An -tx1")).toBe("00 00 00");
      const memory = isV2 ? "memory.max" : "memory/memory.limit_in_bytes";
      expect(await inside(id, `cat /sys/fs/cgroup/${memory}`)).toBe(String(96 << 20));
      expect(readFileSync(mark, "utf8")).toContain(`"status":"creat`);
      const { resources } = await daemon.status(id);
      expect(String(resources?.linux?.memory_limit_in_bytes)).toBe(String(96 << 20));
      await daemon.client.RemoveContainer({ container_id: id });
    });
  },
);

test("pids, oom_score_adj, args, sysctls, namespaces, seccomp, CDI devices are adjusted", async () => {
  writeFileSync(
    join(cdiDir, "test.json"),
    JSON.stringify({
      cdiVersion: "0.5.0",
      kind: "example.com/device",
      devices: [{ name: "one", containerEdits: { env: ["CDI=one"] } }],
    }),
  );
  const adjust = {
    args: ["/bin/sleep", "300"],
    CDIDevices: [{ name: "example.com/device=one" }],
    linux: {
      resources: { pids: { limit: "33" } },
      oomScoreAdj: int(777),
      sysctl: { "net.core.somaxconn": "99" },
      namespaces: [{ type: "ipc" }],
      seccompPolicy: {
        defaultAction: "SCMP_ACT_ALLOW",
        syscalls: [
          { names: ["mkdir", "mkdirat"], action: "SCMP_ACT_ERRNO", errnoRet: { value: 5 } },
        ],
      },
    },
  };
  await plugins.adjusting([["10", "v0125", { adjust }]], async (name) => {
    const id = await start(name);
    // A container that has been started may still be the OCI runtime's process.
    const program = () => inside(id, "tr '\\0' ' ' < /proc/1/cmdline");
    await until("it sleeps", async () => (await program()) === "/bin/sleep 300");
    expect(await inside(id, "echo $CDI")).toBe("one");
    expect(await inside(id, `cat /sys/fs/cgroup/${isV2 ? "" : "pids/"}pids.max`)).toBe("33");
    expect(await inside(id, "cat /proc/1/oom_score_adj")).toBe("777");
    expect(await inside(id, "cat /proc/sys/net/core/somaxconn")).toBe("99");
    expect(spec(id).linux.namespaces).toContainEqual({ type: "ipc" });
    expect((await daemon.exec(id, "mkdir /tmp/x")).stderr).toContain("Input/output error");
    const linux = { memory_limit_in_bytes: toLong(64 << 20) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    expect(await inside(id, `cat /sys/fs/cgroup/${isV2 ? "" : "pids/"}pids.max`)).toBe("33");
    expect(spec(id).linux.resources.pids).toEqual({ limit: 33 as never });
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

test("a container in a plugin's cgroup has its statistics, limits and end there", async () => {
  const cgroupsPath = `${daemon.cgroupParent}/chosen`;
  const adjust = { linux: { cgroupsPath, resources: { memory: { limit: int(24 << 20) } } } };
  await plugins.adjusting([["10", "v061", { adjust }]], async (name) => {
    // All execs come before the OOM: the kernel might kill one of them instead. Only one process
    // allocates: while its memory is freed, a second one would run out of it, and the shell be killed.
    const command = `until [ -e /go ]; do sleep 0.1; done
      dd if=/dev/zero of=/dev/null bs=200M count=1; echo killed; exec sleep 600`;
    const id = await daemon.run(podId, pod, command, { metadata: { name } });
    expect(spec(id).linux.cgroupsPath).toBe(cgroupsPath);
    const { stats } = await daemon.client.ContainerStats({ container_id: id });
    expect(Number(stats?.memory?.usage_bytes?.value ?? 0)).toBeGreaterThan(0);
    const linux = { memory_limit_in_bytes: toLong(20 << 20) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    const limit = isV2 ? "memory.max" : "memory/memory.limit_in_bytes";
    expect(await inside(id, `cat /sys/fs/cgroup/${limit}`)).toBe(String(20 << 20));
    await inside(id, "touch /go");
    await daemon.logged(id, "killed");
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
    expect((await daemon.exited(id)).reason).toBe("OOMKilled");
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

test("each plugin sees the changes of earlier plugins, and can remove them", async () => {
  const first = { env: [{ key: "A", value: "1" }], annotations: { a: "1" } };
  const second = { env: [{ key: "-A" }, { key: "A", value: "2" }], annotations: { "-a": "" } };
  await plugins.adjusting(
    [
      ["10", "v061", { adjust: first }],
      ["20", "v0125", { adjust: second }],
    ],
    async (name) => {
      const id = await start(name);
      const seen = plugins.lines(`20-${name}`).find(({ event }) => event === "CreateContainer");
      expect(seen!.container!.env).toContain("A=1");
      expect(await inside(id, "echo $A")).toBe("2");
      expect(spec(id).annotations).not.toHaveProperty("a");
      await daemon.client.RemoveContainer({ container_id: id });
    },
  );
});

test("a conflict fails the creation, names both plugins and the field, and leaves no resources", async () => {
  const adjust = { linux: { resources: { cpu: { shares: int(5) } } } };
  await plugins.adjusting(
    [
      ["10", "v061", { adjust }],
      ["20", "v0125", { adjust }],
    ],
    async (name) => {
      const before = daemon.snapshot();
      const error = await failure(start(name));
      expect(error.code).toBe("FAILED_PRECONDITION");
      for (const part of [`10-${name}`, `20-${name}`, "CPUShares"]) {
        expect(error.message).toContain(part);
      }
      expect(await daemon.leaksSince(before)).toEqual([]);
      const heard = plugins.heardOf(`10-${name}`, name);
      expect(heard).toEqual(["CreateContainer", "StopContainer", "RemoveContainer"]);
    },
  );
});

test("a validator sees owners and plugins, and may reject", async () => {
  const adjust = { env: [{ key: "A", value: "1" }], linux: { cgroupsPath: "/none" } };
  await plugins.adjusting(
    [
      ["10", "v061", { adjust }],
      ["90", "v0125", { reject: "not on my watch" }],
    ],
    async (name) => {
      const error = await failure(start(name));
      expect(error.message).toContain(`90-${name}`);
      expect(error.message).toContain("not on my watch");
      const event = "ValidateContainerAdjustment";
      const line = plugins.lines(`90-${name}`).find((one) => one.event === event)!;
      expect(line["plugins"]).toEqual([`10-${name}`, `90-${name}`]);
      expect(Object.values(line["owners"] as object)).toEqual([{ CgroupsPath: `10-${name}` }]);
    },
  );
});

test("updates of other containers are applied from creations, updates and unsolicited requests", async () => {
  const other = await start("other");
  const shares = (value: number) => ({ linux: { resources: { cpu: { shares: int(value) } } } });
  const file = `cat /sys/fs/cgroup/${isV2 ? "cpu.weight" : "cpu/cpu.shares"}`;
  const before = await inside(other, file);
  const update = [{ containerId: other, ...shares(3000) }];
  await plugins.adjusting([["10", "v0125", { update }]], async (name) => {
    const id = await start(name);
    const after = await inside(other, file);
    expect(Number(after)).toBeGreaterThan(Number(before));
    await daemon.client.RemoveContainer({ container_id: id });
  });
  const own = [
    { containerId: other, ...shares(50) },
    { containerId: "0".repeat(64), ...shares(1) },
  ];
  await plugins.adjusting([["20", "v061", { own }]], async (name) => {
    await until("it was answered", () =>
      plugins.lines(`20-${name}`).some(({ event }) => event === "UpdateContainers"),
    );
    const line = plugins.lines(`20-${name}`).find(({ event }) => event === "UpdateContainers");
    expect(line).toMatchObject({ failed: ["0".repeat(64)], error: "<nil>" });
    expect(Number(await inside(other, file))).toBeLessThan(Number(before));
  });
  await daemon.client.RemoveContainer({ container_id: other });
});

test("classes in updates are ignored, and the rest is applied", async () => {
  const other = await start("other");
  const classes = { blockioClass: { value: "none" }, rdtClass: { value: "none" } };
  const update = (containerId: string, shares: number) => [
    { containerId, linux: { resources: { cpu: { shares: int(shares) }, ...classes } } },
  ];
  const shares = (id: string) => Number(spec(id).linux.resources.cpu?.shares);
  await plugins.adjusting([["10", "v0125", { update: update(other, 3000) }]], async (name) => {
    const id = await start(name);
    expect(shares(other)).toBe(3000);
    await daemon.client.RemoveContainer({ container_id: id });
  });
  const name = "updated-too";
  const id = await start(name);
  const use = async () => {
    const linux = { memory_limit_in_bytes: toLong(64 << 20) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    expect(shares(id)).toBe(500);
  };
  await plugins.adjusting([["10", "v0125", { update: update("", 500) }]], use, name);
  for (const one of [id, other]) await daemon.client.RemoveContainer({ container_id: one });
});

test("updates of missing or exited containers are dropped", async () => {
  const ended = await start("ended");
  await daemon.client.StopContainer({ container_id: ended, timeout: toLong(0) });
  const update = ["0".repeat(64), ended].map((containerId) => ({
    containerId,
    linux: { resources: { cpu: { shares: int(50) } } },
  }));
  await plugins.adjusting([["10", "v0125", { update }]], async (name) => {
    const id = await start(name);
    const linux = { cpu_shares: toLong(500) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    for (const { containerId } of update) {
      const line = `NRI update dropped plugin=10-${name} container=${containerId}`;
      expect(daemon.log.split(line)).toHaveLength(3);
    }
    await daemon.client.RemoveContainer({ container_id: id });
  });
  await daemon.client.RemoveContainer({ container_id: ended });
});

test("plugins change CRI's update", async () => {
  const update = [{ linux: { resources: { memory: { limit: int(48 << 20) } } } }];
  const name = "updated";
  const id = await start(name);
  const use = async () => {
    const linux = { memory_limit_in_bytes: toLong(64 << 20) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    const limit = isV2 ? "memory.max" : "memory/memory.limit_in_bytes";
    expect(await inside(id, `cat /sys/fs/cgroup/${limit}`)).toBe(String(48 << 20));
  };
  await plugins.adjusting([["10", "v0125", { update }]], use, name);
  await daemon.client.RemoveContainer({ container_id: id });
});

test("plugins change the pids limit, and later updates keep it", async () => {
  const other = await start("counted");
  const pids = (limit: string) => ({ linux: { resources: { pids: { limit } } } });
  const file = `cat /sys/fs/cgroup/${isV2 ? "" : "pids/"}pids.max`;
  const own = [
    { containerId: other, ...pids("44") },
    { containerId: other, linux: { resources: { memory: { reservation: int(1 << 20) } } } },
  ];
  const name = "counted-too";
  const id = await start(name);
  const use = async () => {
    const line = () =>
      plugins.lines(`10-${name}`).find(({ event }) => event === "UpdateContainers");
    await until("it was answered", () => line() !== undefined);
    expect(line()).toMatchObject({ failed: [other], error: "<nil>" });
    expect(daemon.log).toContain("memory.reservation can only be set when a container is created");
    expect(await inside(other, file)).toBe("44");
    const linux = { memory_limit_in_bytes: toLong(64 << 20) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    expect(await inside(id, file)).toBe("55");
    expect(spec(id).linux.resources.pids).toEqual({ limit: 55 as never });
    await daemon.client.RemoveContainer({ container_id: id });
  };
  await plugins.adjusting([["10", "v0125", { own, update: [pids("55")] }]], use, name);
  const linux = { cpu_shares: toLong(500) };
  await daemon.client.UpdateContainerResources({ container_id: other, linux });
  expect(await inside(other, file)).toBe("44");
  await daemon.client.RemoveContainer({ container_id: other });
});

test("a block I/O class is set, and reported back", async () => {
  const [disk] = readdirSync("/sys/block");
  const numbers = readFileSync(`/sys/block/${disk}/dev`, "utf8").trim();
  const text = `Classes: {fast: [{Devices: [/dev/${disk}], ThrottleReadBps: 50M}]}`;
  writeFileSync(join(plugins.dir, "blockio.yaml"), text);
  const adjust = { linux: { resources: { blockioClass: { value: "fast" } } } };
  await plugins.adjusting([["10", "v0125", { adjust }]], async (name) => {
    const id = await start(name);
    const file = isV2 ? "io.max" : "blkio/blkio.throttle.read_bps_device";
    const set = await inside(id, `cat /sys/fs/cgroup/${file}`);
    expect(set).toStartWith(isV2 ? `${numbers} rbps=50000000` : `${numbers} 50000000`);
    const reported = () => {
      const lines = plugins.lines(`10-${name}`).filter(({ container }) => container?.name === name);
      return lines.find(({ event }) => event === "PostStartContainer");
    };
    await until("it hears of the start", () => reported() !== undefined);
    expect(reported()?.container?.linux).toMatchObject({ resources: adjust.linux.resources });
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

test.each<[what: string, adjust: object, why: string]>([
  [
    "a block I/O class that this node has not",
    { linux: { resources: { blockioClass: { value: "slow" } } } },
    "blockio_class slow: ",
  ],
  [
    "an RDT class that this node has not",
    { linux: { resources: { rdtClass: { value: "slow" } } } },
    "rdt_class slow: this node has no resctrl file system",
  ],
  [
    "a mount whose destination is not absolute",
    { mounts: [{ source: "/tmp", destination: "data", type: "bind" }] },
    'invalid answer: mounts.destination: "data": not an absolute path',
  ],
])("%s is refused, and the plugin stays", async (_, adjust, why) => {
  await plugins.adjusting([["10", "v061", { adjust }]], async (name) => {
    const error = await failure(start(name));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain(why);
    const id = await start("unharmed");
    await until("it hears of the next one", () =>
      plugins.heardOf(`10-${name}`, "unharmed").includes("PostStartContainer"),
    );
    await daemon.client.RemoveContainer({ container_id: id });
  });
});
