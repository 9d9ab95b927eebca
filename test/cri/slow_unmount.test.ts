// Tests that a file system whose unmounting takes seconds holds up no other call: strace delays each umount2(2).
import { expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { startDaemon } from "../harness.ts";
import { until } from "../expect.ts";

const strace = Bun.which("strace");
const delayMs = 3_000;

test.skipIf(strace === null)("the removal of a container is slow alone", async () => {
  await using daemon = await startDaemon({ network: false });
  const pod = daemon.hostPodConfig();
  const id = await daemon.create(await daemon.runPod(pod), pod, ["true"]);
  const delay = `inject=umount2:delay_enter=${delayMs * 1_000}`;
  const argv = ["-f", "-q", "--seccomp-bpf", "-e", "trace=umount2", "-e", delay];
  const tracer = spawn(strace!, [...argv, "-p", String(daemon.pid)], { stdio: "ignore" });
  const status = () => readFileSync(`/proc/${daemon.pid}/status`, "utf8");
  await until("it is traced", () => !/^TracerPid:\s0$/m.test(status()));
  const state = { isRemoved: false };
  const begin = performance.now();
  const removal = daemon.client.RemoveContainer({ container_id: id }).finally(() => {
    state.isRemoved = true;
  });
  let slowestMs = 0;
  while (!state.isRemoved) {
    const asked = performance.now();
    await daemon.client.Version({}, { timeoutMs: 60_000 });
    slowestMs = Math.max(slowestMs, performance.now() - asked);
    await Bun.sleep(10);
  }
  await removal;
  expect(performance.now() - begin).toBeGreaterThan(delayMs); // the delay was there
  tracer.kill("SIGINT");
  await once(tracer, "exit");
  expect(slowestMs).toBeLessThan(delayMs);
});
