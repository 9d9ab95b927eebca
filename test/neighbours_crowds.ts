// Provides the bad neighbours of test/neighbours.ts that are many, and the pod that fills the daemon's state.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../src/base/errors.ts";
import { until } from "./expect.ts";
import type { Attack, Stage } from "./neighbours_stage.ts";
import { pipeBytes, pipesHeld } from "./neighbours_use.ts";

const nothing = { [Symbol.asyncDispose]: async () => {} };
/** Linux' default for a new pipe. */
const usualPipeBytes = 64 << 10;
/** Three pipes of that size for the streams of a container. */
const pipesMaxEach = 3 * usualPipeBytes;

/** Returns the capacity of a pipe that a new root container makes. */
export async function newPipeBytes({
  daemon,
  run,
}: Pick<Stage, "daemon" | "run">): Promise<number> {
  const id = await run("sleep 100000 | sleep 100000");
  const shell = await daemon.pidOf(id);
  let children: number[] = [];
  await until("the container has its pipe", () => {
    const text = readFileSync(`/proc/${shell}/task/${shell}/children`, "utf8");
    children = text.split(" ").filter(Boolean).map(Number);
    return children.length === 2;
  });
  const bytes = pipeBytes(children[1]!, 0);
  await daemon.client.RemoveContainer({ container_id: id });
  return bytes;
}

/** Many containers that do nothing: what they take of the kernel's budgets for root. */
export function manyContainers(count: number): Attack {
  return {
    name: `containers-${count}`,
    item: "D12",
    about: `${count} idle containers, then a pipe in another one of root`,
    // What so many containers take in themselves.
    limits: { memoryMib: 80 },
    async prepare(stage) {
      const ids: string[] = [];
      const before = pipesHeld(stage.pids);
      return {
        async attack(seconds) {
          while (ids.length < count) {
            const some = Array.from({ length: Math.min(5, count - ids.length) }, () =>
              stage.run(["sleep", "1000000"]),
            );
            ids.push(...(await Promise.all(some)));
          }
          await sleep(seconds * 1000);
        },
        async check() {
          // The budget is that of root on the whole node: others may have used it up.
          const each = (pipesHeld(stage.pids) - before) / ids.length;
          const bytes = await newPipeBytes(stage);
          const notes = [
            `a new pipe in a root container takes ${bytes} bytes`,
            `a container takes ${Math.round(each)} bytes of pipes`,
          ];
          const isHarm = [bytes < usualPipeBytes, each > pipesMaxEach];
          return { faults: notes.filter((_, index) => isHarm[index]), notes };
        },
        async [Symbol.asyncDispose]() {
          for (const id of ids) await stage.daemon.client.RemoveContainer({ container_id: id });
        },
      };
    },
  };
}

const logStorm: Attack = {
  name: "log-storm",
  item: "-",
  about: "10 containers that write 10 MB each at full speed, again and again",
  prepare: async ({ daemon, run }) => ({
    async attack(seconds) {
      for (const end = performance.now() + seconds * 1000; performance.now() < end;) {
        const ids = await Promise.all(
          Array.from({ length: 10 }, () => run(`yes ${"x".repeat(100)} | head -c 10000000`)),
        );
        for (const id of ids) {
          const { status } = await daemon.exited(id);
          await daemon.client.RemoveContainer({ container_id: id });
          execFileSync("rm", ["-f", status.log_path!]);
        }
      }
    },
    ...nothing,
  }),
};

/** Bytes of the state, which the pod's file may fill. */
const stateBytes = 24 << 20;

const fullState: Attack = {
  name: "full-state",
  item: "D13",
  about: "dd of=/etc/hostname in a default pod, where state has 24 MiB",
  async prepare({ daemon }) {
    const resize = (bytes: number) =>
      execFileSync("mount", ["-o", `remount,size=${bytes}`, join(daemon.dir, "state")]);
    resize(stateBytes);
    const config = daemon.podConfig({ metadata: { name: "filler" } });
    const podId = await daemon.runPod(config);
    const id = await daemon.run(podId, config, ["sleep", "1000000"]);
    const faults: string[] = [];
    return {
      async attack(seconds) {
        const end = performance.now() + seconds * 1000;
        await daemon.exec(id, "dd if=/dev/zero of=/etc/hostname bs=1M count=64 2>/dev/null; sync");
        try {
          const other = daemon.podConfig();
          await daemon.removePod(await daemon.runPod(other));
        } catch (error) {
          faults.push(`a new pod: ${messageOf(error).slice(0, 160)}`);
        }
        await sleep(Math.max(0, end - performance.now()));
      },
      check: async () => ({ faults: faults.slice(0, 1) }),
      async [Symbol.asyncDispose]() {
        resize(1 << 30);
        await daemon.removePod(podId);
      },
    };
  },
};

const nobody: Attack = {
  name: "nobody",
  item: "-",
  about: "no bad neighbour at all: shows what the measurement itself costs",
  prepare: async () => ({ attack: (seconds) => sleep(seconds * 1000), ...nothing }),
};

export const crowdAttacks: Attack[] = [nobody, manyContainers(60), logStorm, fullState];
