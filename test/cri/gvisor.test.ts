// Tests pods of gVisor's real shim, which `test/shims gvisor` builds: they have a kernel of their own.
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { runtime } from "../../src/proto/messages.js";
import { toLong } from "../../src/base/int64.ts";
import { openSpdy } from "../../src/cli/stream_client.ts";
import { readShimFile } from "../../src/shim/shim_file.ts";
import { failure, until } from "../expect.ts";
import { gate, openGate } from "../gate.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { end } from "../host.ts";
import { logText } from "../log_text.ts";
import { gvisorHandler, gvisorShim } from "../shim_programs.ts";

const { PodSandboxState, NamespaceMode } = runtime.v1;
const runtime_handler = "gvisor";
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

async function runPod(): Promise<void> {
  pod = daemon.podConfig();
  podId = (await daemon.client.RunPodSandbox({ config: pod, runtime_handler })).pod_sandbox_id;
}

/** Returns the pids and command lines of this daemon's shims and of their sandboxes. */
function processes(): string[] {
  const { stdout } = spawnSync("ps", ["-eo", "pid,args"], { encoding: "utf8" });
  return stdout.split("\n").filter((line) => /runsc/.test(line) && line.includes(daemon.dir));
}

async function isNotReady(): Promise<boolean> {
  const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
  return status!.state === PodSandboxState.SANDBOX_NOTREADY;
}

describe.skipIf(!existsSync(gvisorShim))("a pod of gVisor", () => {
  beforeAll(async () => {
    const gvisor = gvisorHandler(join(tmpdir(), `isulad-gvisor-${process.pid}.toml`));
    daemon = await startDaemon({ config: { runtimes: { gvisor } } });
  });
  afterAll(() => daemon?.[Symbol.asyncDispose]());
  beforeEach(async () => {
    await daemon.removeAllPods();
    await until("no sandbox is left", () => processes().length === 0);
    await runPod();
  });

  test("has its own hostname and address", async () => {
    const id = await daemon.run(podId, pod, "sleep 1000");
    expect((await daemon.exec(id, "hostname")).stdout).toBe(`${pod.hostname}\n`);
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    expect((await daemon.exec(id, "ip addr")).stdout).toContain(status!.network!.ip!);
  });

  test("has one shim for all its containers, which end with it", async () => {
    const ids = [];
    for (const _ of [1, 2]) ids.push(await daemon.run(podId, pod, "sleep 1000"));
    const shims = processes().filter((line) => line.includes(` ${gvisorShim} `));
    expect(shims).toHaveLength(1);
    end(Number.parseInt(shims[0]!, 10));
    for (const id of ids) expect((await daemon.exited(id)).exitCode).toBe(137);
    await until("the pod is not ready", isNotReady);
    await daemon.removePod(podId);
    await until("no process is left", () => processes().length === 0);
  });

  // gVisor's shim refuses some deletes just after an end, and then never ends by itself.
  test("leaves no shim, though many end at a time", async () => {
    const runAndRemove = async () => {
      const config = daemon.podConfig();
      const id = (await daemon.client.RunPodSandbox({ config, runtime_handler })).pod_sandbox_id;
      await daemon.run(id, config, "sleep 1000");
      await daemon.removePod(id);
    };
    for (let round = 0; round < 6; round++)
      await Promise.all([runAndRemove(), runAndRemove(), runAndRemove()]);
    await daemon.removePod(podId);
    await until("no process is left", () => processes().length === 0);
  });

  test("answers port-forwards at its address", async () => {
    const serve = "while :; do echo served | nc -l -p 8081; done";
    const id = await daemon.run(podId, pod, serve);
    await daemon.exec(id, "until netstat -ltn | grep -q 8081; do sleep 0.1; done");
    const { url } = await daemon.client.PortForward({ pod_sandbox_id: podId });
    const session = await openSpdy(url, "portforward.k8s.io");
    const running = session.run().catch(() => {});
    const headers = { port: "8081", requestid: "0" };
    await (await session.open({ ...headers, streamtype: "error" })).end();
    const data = await session.open({ ...headers, streamtype: "data" });
    const chunks = await Array.fromAsync(data.chunks());
    expect(Buffer.concat(chunks).toString()).toBe("served\n");
    session.wire.close();
    await running;
  });

  test("counts the memory and processes of its containers", async () => {
    const id = await daemon.run(podId, pod, "sleep 1000");
    const { stats } = await daemon.client.ContainerStats({ container_id: id });
    expect(Number(stats?.memory?.usage_bytes?.value)).toBeGreaterThan(0);
    expect(Number(stats?.memory?.usage_bytes?.value)).toBeLessThan(1 << 30);
  });

  test("ends by stop signals, with true exit codes and whole logs", async () => {
    const id = await daemon.run(
      podId,
      pod,
      "trap 'exit 3' TERM; seq 20000; while :; do sleep 0.1; done",
    );
    await daemon.logged(id, "20000");
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(60) });
    const { exitCode, status } = await daemon.exited(id);
    expect(exitCode).toBe(3);
    const numbers = Array.from({ length: 20_000 }, (_, index) => `${index + 1}\n`).join("");
    expect(logText(readFileSync(status.log_path!, "utf8")) === numbers).toBe(true);
  });

  test("lives on when daemon and monitor are killed", async () => {
    const id = await daemon.run(
      podId,
      pod,
      `i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.1; done; ${gate}; exit 8`,
    );
    await daemon.stop("SIGKILL");
    for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
    await daemon.start();
    expect((await daemon.exec(id, "echo hi")).stdout).toBe("hi\n");
    await openGate(daemon, id);
    const { exitCode, status } = await daemon.exited(id);
    expect(exitCode).toBe(8);
    const lines = logText(readFileSync(status.log_path!, "utf8")).trim().split("\n");
    expect(new Set(lines).size).toBe(40);
  });

  test("is not ready once its sandbox was killed, and can be removed", async () => {
    const id = await daemon.run(podId, pod, "sleep 1000");
    const sandbox = processes().filter(
      (line) => /runsc-sandbox/.test(line) && line.includes(podId),
    );
    expect(sandbox).toHaveLength(1);
    const { path } = readShimFile(join(daemon.dir, "state/monitor/shims", podId))!;
    end(Number.parseInt(sandbox[0]!, 10));
    expect((await daemon.exited(id)).exitCode).not.toBe(0);
    await until("the pod is not ready", isNotReady);
    await daemon.removePod(podId);
    await until("no process is left", () => processes().length === 0);
    expect(existsSync(path)).toBe(false);
  });

  test("shares /dev/shm and, where it asks for it, one pid namespace", async () => {
    const namespace_options = { pid: NamespaceMode.POD };
    const config = { ...daemon.podConfig(), linux: { security_context: { namespace_options } } };
    const shared = (await daemon.client.RunPodSandbox({ config, runtime_handler })).pod_sandbox_id;
    await daemon.run(shared, config, "echo kept > /dev/shm/x; sleep 1234");
    const id = await daemon.run(shared, config, "sleep 1000");
    expect((await daemon.exec(id, "ps -o args")).stdout).toContain("sleep 1234");
    const kept = async () => (await daemon.exec(id, "cat /dev/shm/x")).stdout;
    await until("the other's file is there", async () => (await kept()) === "kept\n");
  });

  test("has privileged containers without the node's devices", async () => {
    const config = daemon.podConfig();
    config.linux = { ...config.linux, security_context: { privileged: true } };
    const own = (await daemon.client.RunPodSandbox({ config, runtime_handler })).pod_sandbox_id;
    const linux = { security_context: { privileged: true } };
    const id = await daemon.run(own, config, "sleep 1000", { linux });
    const devices = (await daemon.exec(id, "ls /dev")).stdout.split("\n");
    expect(devices).toContain("null");
    expect(devices).not.toContain("kmsg");
  });

  test("cannot be checkpointed", async () => {
    const id = await daemon.run(podId, pod, "sleep 1000");
    const location = join(daemon.dir, "checkpoint.tar");
    const refused = await failure(
      daemon.client.CheckpointContainer({ container_id: id, location }),
    );
    expect(refused.code).toBe("UNIMPLEMENTED");
    expect(existsSync(location)).toBe(false);
  });

  test("is refused with the node's network, and with users of its own", async () => {
    const config = daemon.hostPodConfig();
    const refused = await failure(daemon.client.RunPodSandbox({ config, runtime_handler }));
    expect(refused.code).toBe("FAILED_PRECONDITION");
    expect(refused.message).toContain("hostNetwork");
    const own = daemon.podConfig();
    const ids = [{ host_id: 100_000, container_id: 0, length: 65_536 }];
    own.linux!.security_context = {
      namespace_options: {
        pid: NamespaceMode.CONTAINER,
        userns_options: { mode: NamespaceMode.POD, uids: ids, gids: ids },
      },
    };
    const users = await failure(daemon.client.RunPodSandbox({ config: own, runtime_handler }));
    expect([users.code, users.message.includes("hostUsers")]).toEqual([
      "FAILED_PRECONDITION",
      true,
    ]);
  });
});
