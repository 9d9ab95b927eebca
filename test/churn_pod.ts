// Runs one pod of the churn (test/churn.ts) from its start to its removal, with the calls that a kubelet makes on it, and
// measures them.
import { existsSync, readFileSync, renameSync, rmSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../src/base/errors.ts";
import { toLong } from "../src/base/int64.ts";
import { timed, type Times } from "./call_times.ts";
import type { Daemon } from "./harness.ts";
import { logText } from "./log_text.ts";

export type Stage = {
  daemon: Daemon;
  times: Times;
  /** What went wrong, a line each. */
  problems: string[];
};

const rotateMs = 10_000;
/** Numbered lines, until it is stopped. */
const ticks = `trap 'exit 0' TERM; i=0; while :; do echo $i; i=$((i+1)); sleep 0.2 & wait $!; done`;
const server = "trap 'exit 0' TERM; sleep 100000 & wait";

/** Three containers: one fails by itself, one writes a log that is rotated, one is probed. */
export async function churnPod(stage: Stage, image: string): Promise<void> {
  const { daemon, times } = stage;
  const { client } = daemon;
  const pod = daemon.podConfig();
  const podId = await timed(times, "RunPodSandbox", () => daemon.runPod(pod));
  const pod_sandbox_id = podId;
  const run = async (command: string) => {
    const more = { image: { image, user_specified_image: image } };
    const create = () => daemon.create(podId, pod, command, more);
    const container_id = await timed(times, "CreateContainer", create);
    await timed(times, "StartContainer", () => client.StartContainer({ container_id }));
    return container_id;
  };
  const failing = await run("seq 100; exit 3");
  const writer = await run(ticks);
  const probed = await run(server);
  await timed(times, "PodSandboxStatus", () => client.PodSandboxStatus({ pod_sandbox_id }));
  await timed(times, "ListContainers", () => client.ListContainers({}));
  const stats = { filter: { pod_sandbox_id } };
  await timed(times, "ListContainerStats", () => client.ListContainerStats(stats));
  const rotated = await rotateLog(stage, writer);
  for (const command of ["true", "cat /etc/passwd"]) {
    const exec = () => daemon.exec(probed, command).then(({ exitCode }) => exitCode, messageOf);
    const result = await timed(times, "ExecSync", exec);
    if (result !== 0) stage.problems.push(`exec ${command} ends with ${result}`);
  }
  const { exitCode } = await daemon.exited(failing);
  if (exitCode !== 3) stage.problems.push(`exit code ${exitCode} instead of 3`);
  for (const container_id of [writer, probed])
    await timed(times, "StopContainer", () =>
      client.StopContainer({ container_id, timeout: toLong(10) }),
    );
  checkLog(stage, rotated);
  await timed(times, "StopPodSandbox", () => client.StopPodSandbox({ pod_sandbox_id }));
  await timed(times, "RemoveContainer", () => client.RemoveContainer({ container_id: probed }));
  await timed(times, "RemovePodSandbox", () => client.RemovePodSandbox({ pod_sandbox_id }));
  rmSync(pod.log_directory!, { recursive: true });
}

/** Rotates a log as the kubelet does, and returns both files. */
async function rotateLog(stage: Stage, container_id: string): Promise<[string, string]> {
  const { daemon, times } = stage;
  const { log_path } = await timed(times, "ContainerStatus", () => daemon.status(container_id));
  const files: [string, string] = [`${log_path}.1`, log_path];
  await logHasLine(stage, files[1]);
  renameSync(files[1], files[0]);
  await timed(times, "ReopenContainerLog", () =>
    daemon.client.ReopenContainerLog({ container_id }),
  );
  await logHasLine(stage, files[1]);
  return files;
}

async function logHasLine(stage: Stage, file: string): Promise<void> {
  const end = performance.now() + rotateMs;
  while (!existsSync(file) || readFileSync(file).length === 0) {
    if (performance.now() > end) {
      stage.problems.push(`${file} has no line after ${rotateMs} ms`);
      return;
    }
    await sleep(50);
  }
}

function checkLog(stage: Stage, files: string[]): void {
  const text = files.map((file) => logText(readFileSync(file, "utf8"))).join("");
  const numbers = text.split("\n").filter(Boolean).map(Number);
  const wrong = numbers.findIndex((number, index) => number !== index);
  if (wrong >= 0) stage.problems.push(`line ${wrong} of a rotated log is ${numbers[wrong]}`);
}
