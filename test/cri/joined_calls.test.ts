// Tests concurrent equal calls: the daemon does the work once, and every client gets its result.
import { beforeEach, describe, expect, test } from "bun:test";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../../src/base/int64.ts";
import { codeOf, messageOf } from "../../src/base/errors.ts";
import { logText } from "../log_text.ts";
import { until } from "../expect.ts";
import { busyboxImage } from "../image_maker.ts";
import { busybox } from "../harness.ts";
import {
  bridge,
  configure,
  daemon,
  leases,
  useNetworks,
  writeList,
  writePlugin,
} from "./network_fixture.ts";

useNetworks();
const deaf = "trap 'echo TERM' TERM; echo up; while true; do sleep 0.05; done";
const mark = (name: string) => join(daemon.dir, name);

describe("StopContainer", () => {
  beforeEach(async () => {
    // The monitor responds slowly, so that calls arrive while the signal is being sent.
    await configure({}, "after:container-signal=delay:500");
    await daemon.loadImage(busyboxImage(), busybox);
  });

  async function deafContainer() {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, deaf);
    await daemon.logged(id, "up");
    const { log_path } = await daemon.status(id);
    return {
      id,
      podId,
      stop: (seconds: number, timeoutMs?: number) =>
        daemon.client.StopContainer({ container_id: id, timeout: toLong(seconds) }, { timeoutMs }),
      terms: () => logText(readFileSync(log_path, "utf8")).split("TERM").length - 1,
    };
  }

  test("four at once send one stop signal", async () => {
    for (let round = 0; round < 3; round++) {
      const { podId, stop, terms } = await deafContainer();
      const stops = [0, 100, 200, 300].map((ms) => sleep(ms).then(() => stop(60)));
      await until("the signal arrives", () => terms() > 0);
      await sleep(1_000); // for further ones
      await Promise.all([...stops, stop(0)]);
      expect(terms()).toBe(1);
      await daemon.removePod(podId);
    }
  });

  test("a shorter timeout ends the wait of the others, with the one signal", async () => {
    const { podId, stop, terms } = await deafContainer();
    const begin = performance.now();
    const long = stop(100);
    await until("the signal arrives", () => terms() > 0);
    await Promise.all([long, stop(2), stop(80)]);
    expect(performance.now() - begin).toBeWithin(2_000, 60_000);
    expect(terms()).toBe(1);
    await daemon.removePod(podId);
  });

  test("a cancelled call does not disturb the others, and sends no second signal", async () => {
    const { podId, stop, terms } = await deafContainer();
    const begin = performance.now();
    const [given, other] = [stop(100, 300).catch(codeOf), sleep(200).then(() => stop(5))];
    expect(await given).toBe("DEADLINE_EXCEEDED");
    await other;
    expect(performance.now() - begin).toBeWithin(5_000, 60_000);
    expect(terms()).toBe(1);
    await daemon.removePod(podId);
  });

  test("concurrent RemoveContainer and StopContainer all succeed", async () => {
    const { podId, id, stop } = await deafContainer();
    const remove = () => daemon.client.RemoveContainer({ container_id: id });
    await Promise.all([stop(60), remove(), remove(), stop(1), remove()]);
    expect((await daemon.client.ListContainers({ filter: { id } })).containers).toEqual([]);
    await daemon.removePod(podId);
  });
});

describe("StopPodSandbox", () => {
  test.each(["StopPodSandbox", "RemovePodSandbox"] as const)(
    "four %s at once run a CNI DEL that fails once, and all say so",
    async (call) => {
      const calls = mark("del-calls");
      rmSync(calls, { force: true });
      const script = `[ $CNI_COMMAND != DEL ] || { echo DEL >> ${calls}; until [ -e ${mark("del-goes-on")} ]; do sleep 0.05; done;
[ ! -e ${mark("del-fails")} ] || { echo no cable >&2; exit 1; }; }`;
      writeList("chain", [writePlugin("slow", script)]);
      await configure({});
      const podId = await daemon.runPod(daemon.podConfig());
      writeFileSync(mark("del-fails"), "");
      const stop = () => daemon.client[call]({ pod_sandbox_id: podId }).then(() => "", messageOf);
      const stops = Promise.all([stop(), stop(), stop(), stop()]);
      await until("four calls are under way", async () => {
        const { calls: found } = JSON.parse((await daemon.client.Dump({})).json);
        return found.filter((one: { call: string }) => one.call === call).length === 4;
      });
      writeFileSync(mark("del-goes-on"), "");
      const told = await stops;
      for (const one of told) expect(one).toContain("no cable");
      expect(readFileSync(calls, "utf8")).toBe("DEL\n");
      rmSync(mark("del-fails"));
      rmSync(calls);
      expect(await Promise.all([stop(), stop(), stop(), stop()])).toEqual(["", "", "", ""]);
      expect(readFileSync(calls, "utf8")).toBe("DEL\n");
      await daemon.removePod(podId);
      rmSync(mark("del-goes-on"));
    },
  );
});

test("the sweep after the start does not repeat a StopPodSandbox that is under way", async () => {
  const calls = mark("del-calls");
  rmSync(calls, { force: true });
  // Fails long after the sweep has come, which is 200 ms after the start.
  const script = `[ $CNI_COMMAND != DEL ] || { echo DEL >> ${calls};
[ ! -e ${mark("del-fails")} ] || { sleep 5; echo no cable >&2; exit 1; }; }`;
  writeList("chain", [writePlugin("slow", script)]);
  await configure({});
  const podId = await daemon.runPod(daemon.podConfig());
  writeFileSync(mark("del-fails"), "");
  await configure({});
  const stopped = daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
  expect(await stopped.then(() => "", messageOf)).toContain("no cable");
  await sleep(500);
  expect(readFileSync(calls, "utf8")).toBe("DEL\n");
  rmSync(mark("del-fails"));
  await daemon.removePod(podId);
});

describe("a RunPodSandbox that fails on a full disk and cannot be rolled back", () => {
  test("leaves a NOTREADY pod, which Stop and Remove end, and its name is free again", async () => {
    const fill = join(daemon.dir, "state/fill");
    const script = `[ $CNI_COMMAND = ADD ] && { dd if=/dev/zero of=${fill} bs=64k; exit 1; } 2>/dev/null
[ ! -e ${fill} ] || { echo the disk is full >&2; exit 1; }`;
    writeList("chain", [writePlugin("filler", script)]);
    await configure({});
    remountState("size=8m");
    const config = daemon.podConfig();
    expect(await daemon.runPod(config).catch(messageOf)).toContain("CNI plugin filler: ADD");
    expect(existsSync(fill)).toBe(true);
    const { items } = await daemon.client.ListPodSandbox({});
    expect(items.map(({ state, metadata }) => [state, metadata!.name])).toEqual([
      [1, config.metadata!.name],
    ]);
    rmSync(fill);
    remountState("size=512m");
    await daemon.removePod(items[0]!.id!);
    writeList("chain", [bridge(["4"])]);
    await daemon.removePod(await daemon.runPod(config));
    expect(leases()).toEqual([]);
  });
});

function remountState(options: string): void {
  const { exitCode } = Bun.spawnSync(["mount", "-o", `remount,${options}`, mark("state")]);
  expect(exitCode).toBe(0);
}
