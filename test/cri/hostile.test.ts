// Requests that no kubelet sends: refused as the caller's mistake, with nothing left.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { dirname, join } from "node:path";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

test.each(["../x.log", "a/../../x.log", ".", "..", "a/", "a\0b"])(
  "log_path %j is not a file under log_directory",
  async (log_path) => {
    const error = await failure(daemon.create(podId, pod, "true", { log_path }));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain("log_path");
  },
);

test("a log_path in folders of its own is made there", async () => {
  const id = await daemon.create(podId, pod, "true", { log_path: "./a/b//0.log" });
  const { log_path } = await daemon.status(id);
  expect(log_path).toBe(join(pod.log_directory!, "a/b/0.log"));
  expect(dirname(log_path)).toStartWith(daemon.dir);
});

test.each<[string, ContainerConfig]>([
  ["stop_signal", { stop_signal: 9999 as never }],
  ["pid", { linux: { security_context: { namespace_options: { pid: 77 as never } } } }],
  ["container_path", { mounts: [{ container_path: "x", host_path: "/tmp" }] }],
])("a container's %s out of range is INVALID_ARGUMENT", async (field, config) => {
  const error = await failure(daemon.create(podId, pod, "true", config));
  expect(error.code).toBe("INVALID_ARGUMENT");
  expect(error.message).toContain(field);
});

test.each<[string, PodSandboxConfig]>([
  ["hostname", { hostname: "a\nb" }],
  ["hostname", { hostname: "a\0b" }],
  ["network", { linux: { security_context: { namespace_options: { network: 99 as never } } } }],
  [
    "userns",
    { linux: { security_context: { namespace_options: { userns_options: { mode: 3 } } } } },
  ],
])("a pod's %s out of range is INVALID_ARGUMENT", async (field, more) => {
  const before = daemon.snapshot();
  const error = await failure(daemon.runPod({ ...daemon.podConfig(), ...more }));
  expect(error.code).toBe("INVALID_ARGUMENT");
  expect(error.message).toContain(field);
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("an error of any length is told, and other calls go on", async () => {
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const long = "é".repeat(120_000);
  const [first, second, third] = await Promise.all([
    failure(daemon.exec(id, [`/${long.slice(0, 60_000)}`])),
    failure(daemon.client.PodSandboxStatus({ pod_sandbox_id: long })),
    daemon.exec(id, "echo on"),
  ]);
  expect(first.message).toMatch(/^exec in container .* \[…\] .* too long$/s);
  expect(second.code).toBe("NOT_FOUND");
  expect(third.stdout).toBe("on\n");
});

test("ids are ids, never paths", async () => {
  const { client } = daemon;
  for (const pod_sandbox_id of [`../sandboxes/${podId}`, "", "/", "."]) {
    expect((await failure(client.PodSandboxStatus({ pod_sandbox_id }))).code).toBe("NOT_FOUND");
    await client.RemovePodSandbox({ pod_sandbox_id });
  }
  const { status } = await client.PodSandboxStatus({ pod_sandbox_id: podId });
  expect(status!.id).toBe(podId);
});
