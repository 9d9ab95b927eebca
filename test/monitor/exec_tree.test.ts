// Tests that the end of an exec ends all its descendants, and nothing else in the container.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createConnection } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { readFrames, writeFrame } from "../../src/monitor/protocol.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { readKernelFile } from "../../src/sys/file.ts";
import { failure, until } from "../expect.ts";
import { busybox, Daemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { SlowRuntime } from "./slow_runtime.ts";

let daemon: Daemon;
let slow: SlowRuntime;
let pod: PodSandboxConfig;
let id: string;

beforeAll(async () => {
  daemon = new Daemon({});
  slow = new SlowRuntime(daemon.dir);
  mkdirSync(daemon.cniDir);
  daemon.writeConfig({ runtimes: { slow: { path: slow.path } } });
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
  pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod, "slow");
  id = await daemon.run(podId, pod, ["sleep", "51500"]);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const processList = async () => (await daemon.exec(id, ["ps", "-o", "args"])).stdout;

/** Two forks and a session of its own, without an environment, deaf to what asks politely. */
const daemonize = (seconds: number) =>
  `setsid sh -c "trap '' TERM HUP; env -i setsid sleep ${seconds} >/dev/null 2>&1 &"`;

test("ExecSync that times out kills what has left its session, and what ended execs left stays", async () => {
  await daemon.exec(id, daemonize(51501));
  await until("it runs", async () => (await processList()).includes("sleep 51501"));
  const late = await failure(daemon.exec(id, `${daemonize(51502)}; sleep 51503`, 1));
  expect(late.code).toBe("DEADLINE_EXCEEDED");
  const left = await processList();
  for (const seconds of [51500, 51501]) expect(left).toContain(`sleep ${seconds}`);
  for (const seconds of [51502, 51503]) expect(left).not.toContain(`sleep ${seconds}`);
});

test("an exec that is cancelled while a slow runtime starts it leaves no process", async () => {
  const call = new AbortController();
  const request = { container_id: id, cmd: ["sleep", "51504"] };
  {
    using _ = slow.hold("exec");
    const cancelled = daemon.client.ExecSync(request, { signal: call.signal });
    await until("the runtime is called", () => slow.met("exec"));
    call.abort();
    await failure(cancelled);
  }
  await sleep(500);
  expect(await processList()).not.toContain("51504");
});

/** The container's, where processes are counted. */
function pidsCgroup(): string {
  const record = readFileSync(join(daemon.dir, "state/monitor/containers", `${id}.json`), "utf8");
  const { cgroup } = JSON.parse(record) as { cgroup: Record<string, string> };
  return cgroup["pids"] ?? cgroup["unified"]!;
}

/** The command of each process that is no zombie: an init that reaps none keeps those of a bomb. */
function commands(cgroup: string): string[] {
  const pids = readFileSync(join(cgroup, "cgroup.procs"), "utf8").split("\n").filter(Boolean);
  const texts = pids.map((pid) => readKernelFile(`/proc/${pid}/cmdline`) ?? "");
  return texts
    .filter((text) => text !== "")
    .map((text) => text.replaceAll("\0", " ").trim())
    .sort();
}

test("a fork bomb is killed at its deadline, and the monitor answers meanwhile", async () => {
  const cgroup = pidsCgroup();
  const before = commands(cgroup);
  writeFileSync(join(cgroup, "pids.max"), "400");
  const socket = createConnection(join(daemon.dir, "state/monitor/socket"));
  let [answered, asked, slowestMs] = [0, 0, 0];
  readFrames(socket, (header) => {
    slowestMs = Math.max(slowestMs, performance.now() - asked);
    answered = header["seq"] as number;
  });
  const bomb = daemon.exec(id, "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 51505", 2);
  const over = new AbortController();
  const failed = failure(bomb).finally(() => over.abort());
  for (let seq = 1; !over.signal.aborted; seq++) {
    asked = performance.now();
    writeFrame(socket, { call: "ping", seq, params: {} });
    await until("the monitor answers", () => answered === seq);
  }
  socket.destroy();
  expect((await failed).code).toBe("DEADLINE_EXCEEDED");
  expect(slowestMs).toBeLessThan(10_000);
  await until("none is left", () => Bun.deepEquals(commands(cgroup), before));
});
