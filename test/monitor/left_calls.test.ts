// Tests a monitor that is killed while it waits for the OCI runtime or for an exec: the next one ends these, and
// neither the container nor what an earlier exec has left in it.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { hasEnded, startTime } from "../../src/sys/process.ts";
import { failure, until } from "../expect.ts";
import { busybox, Daemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { chosenRuncShim, runcHandler } from "../shim_programs.ts";
import { SlowRuntime } from "./slow_runtime.ts";

let daemon: Daemon;
let runtime: SlowRuntime;
let podId: string;
const shim = chosenRuncShim();
const pod = () => daemon.hostPodConfig();

beforeAll(async () => {
  daemon = new Daemon({});
  runtime = new SlowRuntime(daemon.dir);
  mkdirSync(daemon.cniDir);
  const slow = { path: runtime.path };
  const runtimes = shim === undefined ? { slow } : { slow, shim: runcHandler(shim) };
  daemon.writeConfig({ runtimes });
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
  podId = await daemon.runPod(pod(), "slow");
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** Pids of processes whose command line has all of these words. */
function running(...words: string[]): number[] {
  const has = (pid: string) => {
    try {
      const line = readFileSync(`/proc/${pid}/cmdline`, "utf8");
      return words.every((word) => line.includes(word));
    } catch {
      return false; // it has ended
    }
  };
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && has(name))
    .map(Number);
}

async function replaceMonitor(): Promise<void> {
  const [before] = daemon.monitors();
  process.kill(before!, "SIGKILL");
  await until(
    "there is another monitor",
    () => ![undefined, before].includes(daemon.monitors()[0]),
  );
}

test.each(["create", "exec"] as const)("a runtime that hangs in %s is ended", async (verb) => {
  const other = await daemon.run(podId, pod(), ["sleep", "600"]);
  const id = verb === "exec" ? other : await daemon.create(podId, pod(), ["sleep", "600"]);
  const started = startTime(await daemon.pidOf(other));
  using _ = runtime.hold(verb);
  const call =
    verb === "exec"
      ? daemon.client.ExecSync({ container_id: id, cmd: ["true"] })
      : daemon.client.StartContainer({ container_id: id });
  const failed = failure(call);
  await until("it hangs", () => runtime.met(verb));
  const hung = running(runtime.path, "--log", verb, id);
  expect(hung).not.toEqual([]);
  await replaceMonitor();
  await until("it is gone", () => hung.every(hasEnded));
  await failed;
  expect(startTime(await daemon.pidOf(other))).toBe(started);
});

test.each(["slow", ...(shim === undefined ? [] : ["shim"])])(
  "an exec of the handler %s is ended with its descendants; what an earlier one has left behind goes on",
  async (handler) => {
    const config = pod();
    const own = handler === "slow" ? podId : await daemon.runPod(config, handler);
    const id = await daemon.run(own, config, ["sleep", "600"]);
    await daemon.exec(id, "setsid sleep 6001 >/dev/null 2>&1 &");
    const failed = failure(daemon.exec(id, "setsid sleep 6002 & exec sleep 6003"));
    await until("both run", () => ["6002", "6003"].every((s) => running("sleep", s).length === 1));
    const [left, ...cut] = ["6001", "6002", "6003"].flatMap((s) => running("sleep", s));
    await replaceMonitor();
    await until("they are gone", () => cut.every(hasEnded));
    await failed;
    expect(hasEnded(left!)).toBe(false);
    const files = () => readdirSync(join(daemon.dir, "state/monitor"));
    await until("its files are gone", () => !files().some((name) => name.startsWith("exec-")));
    await daemon.client.RemoveContainer({ container_id: id });
  },
);
