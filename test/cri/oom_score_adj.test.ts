// Tests oom_score_adj in UpdateContainerResources: it applies to the first process and to later execs. Also
// that of the daemon itself.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import process from "node:process";
import { toBigInt, toLong } from "../../src/base/int64.ts";
import type { LinuxContainerResources, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { Limits, mib } from "./limits.ts";

let daemon: Daemon;
let limits: Limits;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ network: false, flags: ["--allow-failpoints"] });
  limits = new Limits(daemon);
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const start = (resources: LinuxContainerResources) =>
  daemon.run(podId, pod, ["sleep", "600"], { linux: { resources } });
const reported = async (id: string) =>
  String(toBigInt((await daemon.status(id)).resources?.linux?.oom_score_adj));
const ofInit = (id: string) =>
  daemon.exec(id, "cat /proc/1/oom_score_adj").then(({ stdout }) => stdout.trim());
/** Waits for a value: runc starts an exec with that of the creation, and the monitor sets it right after. */
const ofExec = async (id: string, value: string) => {
  const wait = `for i in $(seq 300); do [ $(cat /proc/self/oom_score_adj) != ${value} ] || break; sleep 0.1; done`;
  const { stdout } = await daemon.exec(id, `${wait}; sleep 0.5; cat /proc/self/oom_score_adj`);
  return stdout.trim();
};

test("oom_score_adj of an update is the first process's, and later execs', also after a restart", async () => {
  const id = await start({ oom_score_adj: toLong(100) });
  await limits.update(id, { memory_limit_in_bytes: mib(64), oom_score_adj: toLong(750) });
  expect([await ofInit(id), await ofExec(id, "750")]).toEqual(["750", "750"]);
  expect(await reported(id)).toBe("750");
  await limits.update(id, { memory_limit_in_bytes: mib(65) });
  expect(await ofInit(id)).toBe("750");
  await daemon.restart();
  expect(await ofExec(id, "750")).toBe("750");
});

test("oom_score_adj that is lower than the daemon may set is clamped, with a warning, and not refused", async () => {
  const id = await start({ oom_score_adj: toLong(100) });
  await limits.update(id, { memory_limit_in_bytes: mib(64), oom_score_adj: toLong(-997) });
  const set = await ofInit(id);
  expect(await ofExec(id, set)).toBe(set);
  expect(await reported(id)).toBe(set);
  if (set !== "-997") expect(daemon.log).toContain("oom_score_adj is clamped");
  const created = await daemon.create(podId, pod, ["sleep", "600"]);
  await limits.update(created, { oom_score_adj: toLong(-997) });
  await daemon.client.StartContainer({ container_id: created });
  expect(await ofInit(created)).toBe(await reported(created));
  const error = await failure(limits.update(id, { oom_score_adj: toLong(1001) }));
  expect(error.code).toBe("INVALID_ARGUMENT");
});

test("oom_score_adj is rolled back with the rest of a failed update", async () => {
  const id = await start({ oom_score_adj: toLong(100), memory_limit_in_bytes: mib(64) });
  await daemon.restart("SIGTERM", "before:update-done=error");
  const error = await failure(limits.update(id, { oom_score_adj: toLong(900) }));
  expect(error.message).toContain("before:update-done");
  expect([await ofInit(id), await ofExec(id, "100")]).toEqual(["100", "100"]);
});

test("oom-score is the daemon's and its new monitor's; 0 leaves them alone", async () => {
  const scoreOf = (pid: number) => Number(readFileSync(`/proc/${pid}/oom_score_adj`, "utf8"));
  await using other = await startDaemon({ network: false, image: false });
  const own = scoreOf(process.pid);
  expect(scoreOf(other.pid)).toBe(own);
  const higher = Math.max(own, 0) + 7;
  await using raised = await startDaemon({
    network: false,
    image: false,
    config: { "oom-score": higher },
  });
  expect([raised.pid, ...raised.monitors()].map(scoreOf)).toEqual([higher, higher]);
});
