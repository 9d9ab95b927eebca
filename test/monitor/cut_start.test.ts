// Tests a monitor that is killed during a start, with a runtime that then does not answer: the next monitor
// serves all other containers at once, and removes the half-started one when the runtime goes on.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { until } from "../expect.ts";
import { busybox, Daemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { SlowRuntime } from "./slow_runtime.ts";

let daemon: Daemon;
let runtime: SlowRuntime;

beforeAll(async () => {
  daemon = new Daemon({});
  runtime = new SlowRuntime(daemon.dir);
  mkdirSync(daemon.cniDir);
  daemon.writeConfig({ runtimes: { slow: { path: runtime.path } } });
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

async function serves(id: string): Promise<boolean> {
  return daemon.exec(id, "true").then(
    () => true,
    () => false,
  );
}

test("a start that was cut off is undone behind everything else", async () => {
  const [pod, slow] = [daemon.hostPodConfig(), daemon.hostPodConfig()];
  const [podId, slowId] = [await daemon.runPod(pod), await daemon.runPod(slow, "slow")];
  const other = await daemon.run(podId, pod, ["sleep", "600"]);
  const cut = await daemon.create(slowId, slow, ["sleep", "600"]);
  {
    using _ = runtime.hold("delete");
    {
      using _ = runtime.hold("create");
      daemon.client.StartContainer({ container_id: cut }).catch(() => {});
      await until("it is being made", () => runtime.met("create"));
      const [pid] = daemon.monitors();
      process.kill(pid!, "SIGKILL");
      await until("it is being undone", () => runtime.met("delete"));
    }
    await until("the others are served", () => serves(other));
    await until("there is one monitor", () => daemon.monitors().length === 1);
    const [pid] = daemon.monitors();
    expect((await daemon.output(podId, pod, "echo on")).text).toBe("on\n");
    expect(daemon.monitors()).toEqual([pid!]);
  }
  for (const id of [podId, slowId]) await daemon.removePod(id);
  const state = readdirSync(join(daemon.dir, "state"), { recursive: true, encoding: "utf8" });
  expect(state.filter((path) => path.includes(cut))).toEqual([]);
});
