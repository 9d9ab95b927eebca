// Tests a daemon that is restarted while a slow runtime starts a container: the next daemon learns the
// outcome.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createLog } from "../../src/base/log.ts";
import { MonitorClient } from "../../src/monitor_client/client.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { runtime } from "../../src/proto/messages.js";
import { failure, until } from "../expect.ts";
import { busybox, Daemon, executable } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { SlowRuntime } from "./slow_runtime.ts";

const { ContainerState } = runtime.v1;
let daemon: Daemon;
let slow: SlowRuntime;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  daemon = new Daemon({});
  slow = new SlowRuntime(daemon.dir);
  mkdirSync(daemon.cniDir);
  daemon.writeConfig({ runtimes: { slow: { path: slow.path } } });
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod, "slow");
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const stateOf = async (id: string) => (await daemon.status(id)).state;

/** A start that the runtime has begun and does not end, and whose daemon was killed. */
async function cutStart(
  verb: "create" | "start",
  command: string | string[],
  name?: string,
): Promise<[string, Disposable]> {
  const id = await daemon.create(podId, pod, command, name ? { metadata: { name } } : {});
  const held = slow.hold(verb);
  daemon.client.StartContainer({ container_id: id }).catch(() => {});
  await until(`the runtime's ${verb} is called`, () => slow.met(verb));
  await daemon.restart("SIGKILL");
  return [id, held];
}

for (const verb of ["create", "start"] as const) {
  test(`lists a container RUNNING whose ${verb} outlives the daemon that asked for it`, async () => {
    const [id, held] = await cutStart(verb, "sleep 600", `c-${verb}`);
    {
      using _ = held;
      expect(await stateOf(id)).toBe(ContainerState.CONTAINER_CREATED);
      const again = { metadata: { name: `c-${verb}`, attempt: 1 } };
      const refused = await failure(daemon.create(podId, pod, ["sleep", "600"], again));
      expect(refused.code).toBe("FAILED_PRECONDITION");
    }
    await until("it is listed RUNNING", async () => {
      return (await stateOf(id)) === ContainerState.CONTAINER_RUNNING;
    });
    expect((await daemon.exec(id, "echo on")).stdout).toBe("on\n");
    await daemon.client.RemoveContainer({ container_id: id });
  });
}

test("lists a container EXITED whose start failed after its daemon had been killed", async () => {
  const [id, held] = await cutStart("create", ["/no/such/program"]);
  held[Symbol.dispose]();
  const { reason, status } = await daemon.exited(id);
  expect(reason).toBe("StartError");
  expect(status.message).toContain("/no/such/program");
  await daemon.client.RemoveContainer({ container_id: id });
});

test("connects to the monitor only when what the monitor reports has been dealt with", async () => {
  let isDone = false;
  await using client = new MonitorClient({
    state: join(daemon.dir, "state"),
    program: [executable],
    log: createLog({ level: "error", format: "text" }),
    onExit: () => {},
    onHello: async () => {
      await sleep(200);
      isDone = true;
    },
  });
  await client.connect();
  expect(isDone).toBe(true);
});

test("answers a Stop only when the start it meets has ended, and nothing runs", async () => {
  const [id, held] = await cutStart("create", "sleep 600");
  let isStopped = false;
  const stop = daemon.client.StopContainer({ container_id: id }).finally(() => (isStopped = true));
  {
    using _ = held;
    await sleep(500);
    expect(isStopped).toBe(false);
  }
  await stop;
  expect(await stateOf(id)).toBe(ContainerState.CONTAINER_EXITED);
  await daemon.client.RemoveContainer({ container_id: id });
});
