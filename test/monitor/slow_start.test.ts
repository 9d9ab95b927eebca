// Tests a daemon that is restarted while a slow runtime starts a container: the next daemon learns the
// outcome.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../../src/base/int64.ts";
import { createLog } from "../../src/base/log.ts";
import { MonitorClient } from "../../src/monitor_client/client.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { runtime } from "../../src/proto/messages.js";
import { failure, until } from "../expect.ts";
import { busybox, Daemon, executable, ociRuntime } from "../harness.ts";
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

/** Of this test's runtime. */
function sleepers(...seconds: number[]): string[] {
  const { stdout } = Bun.spawnSync(["ps", "-eo", "args"]);
  const lines = stdout.toString().split("\n");
  return lines.filter((line) => seconds.some((one) => line.includes(`sleep ${one}`)));
}

// Its children are in its process group, and in sessions of their own.
const hanging = `#!/bin/sh
  case " $* " in *" create "*) ;; *) exec ${ociRuntime} "$@" ;; esac
  sleep 41391 & setsid sh -c 'sleep 41392; :' & setsid sleep 41393 & echo > DIR/hangs
  sleep 41394; :`;

const ends: [string, (podId: string, id: string) => Promise<object>][] = [
  [
    "StopContainer",
    (_, container_id) => daemon.client.StopContainer({ container_id, timeout: toLong(600) }),
  ],
  ["StopPodSandbox", (pod_sandbox_id) => daemon.client.StopPodSandbox({ pod_sandbox_id })],
  ["RemovePodSandbox", (pod_sandbox_id) => daemon.client.RemovePodSandbox({ pod_sandbox_id })],
];
test.each(ends)("%s ends a create that hangs, with all its children", async (_, end) => {
  const path = join(daemon.dir, "hanging");
  writeFileSync(path, hanging.replace("DIR", daemon.dir), { mode: 0o755 });
  daemon.writeConfig({ runtimes: { slow: { path: slow.path }, hanging: { path } } });
  await daemon.client.Reload({});
  const own = daemon.hostPodConfig();
  const ownId = await daemon.runPod(own, "hanging");
  const id = await daemon.create(ownId, own, ["sleep", "600"]);
  const starting = failure(daemon.client.StartContainer({ container_id: id }));
  await until("the create hangs", () => sleepers(41391, 41392, 41393, 41394).length >= 4);
  const begin = performance.now();
  await end(ownId, id);
  // start-timeout is 2 minutes.
  expect(performance.now() - begin).toBeLessThan(30_000);
  expect((await starting).message).toContain("is being stopped");
  await until("no process is left", () => sleepers(41391, 41392, 41393, 41394).length === 0);
  await daemon.removePod(ownId);
});

test("a wrapper of the runtime that somebody kills leaves no children", async () => {
  const own = daemon.hostPodConfig();
  const ownId = await daemon.runPod(own, "hanging");
  const id = await daemon.create(ownId, own, ["sleep", "600"]);
  const starting = failure(daemon.client.StartContainer({ container_id: id }));
  await until("the create hangs", () => sleepers(41391, 41394).length >= 2);
  const { stdout } = Bun.spawnSync(["ps", "-eo", "pid,args"]);
  const wrapper = stdout
    .toString()
    .split("\n")
    .find((line) => line.includes(`${join(daemon.dir, "hanging")} `));
  process.kill(Number(wrapper!.trim().split(" ")[0]), "SIGKILL");
  expect((await starting).message).toContain("create");
  await until("its group has ended", () => sleepers(41391, 41394).length === 0);
  for (const line of Bun.spawnSync(["pgrep", "-f", "sleep 4139[23]"]).stdout.toString().split("\n"))
    if (line !== "") process.kill(Number(line), "SIGKILL");
  await daemon.removePod(ownId);
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

test("a Stop ends the start that it meets, of an earlier daemon, and nothing runs", async () => {
  const [id, held] = await cutStart("create", "sleep 600");
  {
    using _ = held;
    await daemon.client.StopContainer({ container_id: id });
    const { reason } = await daemon.exited(id);
    expect(reason).toBe("StartError");
  }
  expect(await stateOf(id)).toBe(ContainerState.CONTAINER_EXITED);
  await daemon.client.RemoveContainer({ container_id: id });
});
