// Tests the contract with shims of sandboxed pods by a shim that records it, as Kata's, of which no real part can
// run here: the order of calls, annotations, options and mounts. Also tests shims that do not work.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { type Recorded, recordedCalls, recordingShim } from "../recording_shim.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-contract-"));
const file = join(folder, "calls");
const config = join(folder, "configuration.toml");
const type = "io.containerd.kata.v2";
let daemon: Daemon;

/** Makes a handler whose shim is this shell script. */
function scripted(name: string, script: string) {
  const path = join(folder, name);
  writeFileSync(path, `#!/bin/sh\n${script}\n`);
  chmodSync(path, 0o755);
  return { "runtime-type": type, "runtime-path": path };
}

beforeAll(async () => {
  const program = join(folder, "containerd-shim-kata-v2");
  recordingShim(program, file);
  writeFileSync(config, "");
  daemon = await startDaemon({
    config: {
      runtimes: {
        kata: {
          "runtime-type": type,
          "runtime-path": program,
          "runtime-config-path": config,
          "pod-annotations": ["io.katacontainers.*"],
        },
        failing: scripted("failing", "echo no virtualization here >&2; exit 3"),
        talking: scripted("talking", 'case "$*" in *start) echo hello;; esac'),
        hanging: scripted("hanging", 'case "$*" in *start) exec sleep 60;; esac'),
        dead: scripted("dead", 'case "$*" in *start) echo unix:///nowhere/socket;; esac'),
      },
    },
  });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

describe("the contract with Kata", () => {
  let calls: Recorded[];
  let podId: string;
  let id: string;
  beforeAll(async () => {
    const pod = daemon.podConfig();
    pod.annotations = { "io.katacontainers.config.hypervisor.default_vcpus": "2", other: "x" };
    pod.linux!.resources = {
      cpu_period: toLong(100_000),
      cpu_quota: toLong(50_000),
      memory_limit_in_bytes: toLong(2 ** 28),
    };
    const run = { config: pod, runtime_handler: "kata" };
    podId = (await daemon.client.RunPodSandbox(run)).pod_sandbox_id;
    id = await daemon.run(podId, pod, "true");
    const linux = { memory_limit_in_bytes: toLong(2 ** 26) };
    await daemon.client.UpdateContainerResources({ container_id: id, linux });
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(5) });
    await daemon.removePod(podId);
    const isOver = () => recordedCalls(file).some(({ call }) => call === "Shutdown");
    await until("the shim was asked to end", isOver);
    calls = recordedCalls(file);
  });

  const named = (of: string) => calls.filter((one) => one.id === of).map(({ call }) => call);
  const first = (call: string, of: string) =>
    calls.find((one) => one.call === call && one.id === of)!;

  test("starts the sandbox first, and ends it last", () => {
    const lives = ["start", "Connect", "Create", "Wait", "Start", "Kill", "Delete", "Shutdown"];
    expect([...new Set(named(podId))]).toEqual(lives);
    expect([...new Set(named(id))]).toEqual([...lives.slice(0, 5), "Update", "Kill", "Delete"]);
    const at = (call: string, of: string) => calls.indexOf(first(call, of));
    expect(at("Start", podId)).toBeLessThan(at("start", id));
    expect(at("Delete", id)).toBeLessThan(at("Kill", podId));
  });

  test("gives the executable its flags and environment", () => {
    const { argv, environment } = first("start", podId) as unknown as Record<string, string[]>;
    expect(argv!.join(" ")).toStartWith("-namespace isulad -address /");
    expect(argv!.slice(-3)).toEqual(["-id", podId, "start"]);
    expect(environment!.slice(0, 2)).toEqual(["isulad", ""]);
  });

  test("passes the path of its configuration", () => {
    const { options } = first("Create", podId) as unknown as { options: Record<string, unknown> };
    expect(options["type_url"]).toBe("runtimeoptions.v1.Options");
    const value = Buffer.from(options["value"] as string, "base64").toString();
    expect(value).toContain(config);
  });

  test("says which container is the sandbox, how large it is, and passes its annotations", () => {
    const prefix = "io.kubernetes.cri.";
    const { annotations } = first("start", podId) as { annotations?: unknown };
    expect(annotations).toMatchObject({
      [`${prefix}container-type`]: "sandbox",
      [`${prefix}sandbox-id`]: podId,
      [`${prefix}sandbox-cpu-period`]: "100000",
      [`${prefix}sandbox-cpu-quota`]: "50000",
      [`${prefix}sandbox-memory`]: String(2 ** 28),
      "io.katacontainers.config.hypervisor.default_vcpus": "2",
    });
    expect(annotations).not.toHaveProperty("other");
    const inner = first("start", id) as { annotations?: unknown };
    expect(inner.annotations).toMatchObject({
      [`${prefix}container-type`]: "container",
      [`${prefix}sandbox-id`]: podId,
    });
  });

  test("has resolv.conf as a mount, and no device cgroup", () => {
    type Spec = { mounts: { destination: string }[]; linux: { resources: { devices?: object[] } } };
    const { mounts, linux } = first("start", podId) as unknown as Spec;
    expect(mounts.map(({ destination }) => destination)).toContain("/etc/resolv.conf");
    expect(linux.resources.devices ?? []).toEqual([]);
  });

  test("updates limits by the shim", () => {
    const { resources } = first("Update", id) as unknown as { resources: { value: string } };
    const limits = JSON.parse(Buffer.from(resources.value, "base64").toString()) as object;
    expect(limits).toMatchObject({ memory: { limit: 2 ** 26 } });
  });
});

describe("a shim that", () => {
  test.each([
    ["failing", "UNKNOWN", "no virtualization here"],
    ["talking", "UNKNOWN", "hello"],
    ["hanging", "DEADLINE_EXCEEDED", "hanging"],
    ["dead", "UNAVAILABLE", "/nowhere/socket"],
  ])(
    "is %s fails the pod with %s and its own words, and leaves nothing",
    async (name, code, words) => {
      const before = daemon.snapshot();
      const pod = daemon.podConfig();
      const run = { config: pod, runtime_handler: name };
      const limit = { "start-timeout": name === "hanging" ? "1s" : "2m" };
      const failed = await daemon.configured(limit, () =>
        failure(daemon.client.RunPodSandbox(run)),
      );
      expect(failed.code).toBe(code as "UNKNOWN");
      expect(failed.message).toContain(words);
      expect(await daemon.leaksSince(before)).toEqual([]);
    },
  );
});
