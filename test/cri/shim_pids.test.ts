// Tests the processes that shims name: containers join the namespaces of the one that runs, and a shim that hangs is
// killed, whatever it says of itself.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { recordedCalls, recordingShim, setFaults } from "../recording_shim.ts";

const { NamespaceMode } = runtime.v1;
const folder = mkdtempSync(join(tmpdir(), "isulad-pids-"));
const kinds = ["plain", "wasm", "silent"] as const;
const calls = (kind: string) => join(folder, `calls-${kind}`);
let daemon: Daemon;
beforeAll(async () => {
  const runtimes: Record<string, object> = {};
  for (const kind of kinds) {
    const program = join(folder, `containerd-shim-${kind}-v1`);
    recordingShim(program, calls(kind), kind);
    runtimes[kind] = { "runtime-type": "io.containerd.example.v1", "runtime-path": program };
  }
  daemon = await startDaemon({ config: { runtimes } });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

type Namespace = { type: string; path?: string };

/** The namespaces that a container's spec names, by type; undefined for a new one. */
function namespacesOf(kind: string, id: string): Record<string, string | undefined> {
  const start = recordedCalls(calls(kind)).find((one) => one.call === "start" && one.id === id)!;
  const { namespaces } = start["linux"] as { namespaces: Namespace[] };
  return Object.fromEntries(namespaces.map(({ type, path }) => [type, path]));
}

function shimOf(id: string): { pid: number } {
  const bundle = join(daemon.dir, "state/monitor/shims", id);
  return JSON.parse(readFileSync(join(bundle, "bootstrap.json"), "utf8"));
}

test("a pod's containers join the namespaces of the process that Start names, not Create", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod, "wasm");
  const id = await daemon.run(podId, pod, "true");
  expect(shimOf(podId).pid).toBeGreaterThan(0); // asked for again after the Create
  const { ipc, uts } = namespacesOf("wasm", id);
  for (const [kind, path] of Object.entries({ ipc, uts })) {
    expect(readlinkSync(path!)).not.toBe(readlinkSync(`/proc/self/ns/${kind}`));
    expect(path).not.toContain(`/${shimOf(podId).pid}/`);
  }
  await daemon.removePod(podId);
});

test("the node's namespaces are never joined, if a shim names a process of the node's", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod, "plain");
  const id = await daemon.run(podId, pod, "true");
  const namespaces = namespacesOf("plain", id);
  expect(Object.keys(namespaces)).toEqual(expect.arrayContaining(["ipc", "uts"]));
  expect([namespaces["ipc"], namespaces["uts"]]).toEqual([undefined, undefined]);
  const shared = daemon.podConfig({
    linux: { security_context: { namespace_options: { pid: NamespaceMode.POD } } },
  });
  const sharedId = await daemon.runPod(shared, "plain");
  const refused = await failure(daemon.create(sharedId, shared, "true"));
  expect(refused.message).toContain("is in the node's pid namespace");
  for (const one of [podId, sharedId]) await daemon.removePod(one);
});

test("a shim that hangs and never told its pid is killed with its pod", async () => {
  const kind = "silent";
  const before = daemon.snapshot();
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod, kind);
  const id = await daemon.run(podId, pod, "true");
  const { pid } = shimOf(id);
  expect(pid).toBeGreaterThan(0);
  setFaults(calls(kind), { Kill: "silence", Connect: "silence", State: "silence" });
  try {
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
    await until("the shim has ended", () => !existsSync(`/proc/${pid}`));
    expect((await daemon.exited(id)).exitCode).toBe(137);
  } finally {
    setFaults(calls(kind), {});
  }
  await daemon.removePod(podId);
  expect(await daemon.leaksSince(before)).toEqual([]);
});
