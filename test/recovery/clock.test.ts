// Tests that the clock may be set forth and back by an hour while a daemon runs: deadlines and stops last as
// long as before, records stay whole, and responses have the times of the clock. Runs only in the guest,
// because other programs use the clock of this machine.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import { isGuest } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const mayStep = isGuest && existsSync("/etc/systemd/journald.conf.d/vm.conf");
if (!mayStep) console.error("skipped, only the guest's clock is ours: an hour forth and back");
const hourS = 3600;

let daemon: Daemon;
beforeAll(async () => {
  if (mayStep) daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** Sets the clock by so many seconds; disposed of, back again. */
function stepped(seconds: number): Disposable {
  const start = performance.now();
  const set = (at: number) => execFileSync("date", ["-s", `@${Math.round(at / 1000)}`]);
  const before = Date.now();
  set(before + seconds * 1000);
  return { [Symbol.dispose]: () => set(before + (performance.now() - start)) };
}

async function elapsedMs(call: Promise<unknown>): Promise<number> {
  const start = performance.now();
  await call;
  return performance.now() - start;
}

describe.skipIf(!mayStep).each([
  ["forth", hourS],
  ["back", -hourS],
])("an hour %s", (_, seconds) => {
  test("containers run on, stop in their time, and their exits are told", async () => {
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const live = await daemon.run(podId, pod, ["sleep", "600"]);
    const deaf = await daemon.run(podId, pod, "trap '' TERM; while true; do sleep 1; done");
    const exiting = await daemon.run(podId, pod, "sleep 2; exit 5");
    {
      using _ = stepped(seconds);
      const { exitCode, status } = await daemon.exited(exiting);
      expect(exitCode).toBe(5);
      const { created_at, started_at, finished_at } = status;
      expect(started_at!.toBigInt()).toBeGreaterThanOrEqual(created_at!.toBigInt());
      // As the clock said: after a step back, a container may end "before" its start.
      const endedAgoS = Date.now() / 1000 - Number(finished_at!.toBigInt() / 1_000_000_000n);
      expect(endedAgoS).toBeWithin(-2, 60);
      expect((await daemon.status(live)).state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
      const stop = daemon.client.StopContainer({ container_id: deaf, timeout: toLong(2) });
      expect(await elapsedMs(stop)).toBeWithin(1900, 12_000);
      await daemon.restart("SIGKILL");
      expect((await daemon.exec(live, "echo alive")).stdout).toBe("alive\n");
      const young = await daemon.run(podId, pod, ["sleep", "600"]);
      const young2 = daemon.client.StopContainer({ container_id: young, timeout: toLong(2) });
      expect(await elapsedMs(young2)).toBeLessThan(12_000);
    }
    await daemon.removePod(podId);
  }, 120_000);

  test("between a start and its stop: Stop lasts as long as ever", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    using _ = stepped(seconds);
    const stop = daemon.client.StopContainer({ container_id: id, timeout: toLong(2) });
    expect(await elapsedMs(stop)).toBeLessThan(12_000);
    await daemon.removePod(podId);
  });
});
