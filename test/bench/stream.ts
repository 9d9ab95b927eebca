// Measures an exec's output as a stream: 1 GiB through the daemon to a client that discards it, and the same
// through the runtime, a pipe and cat.
import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Daemon, ociRuntime } from "../harness.ts";

const bytes = 1 << 30;
const rounds = 3;
const command = ["dd", "if=/dev/zero", "bs=1M", `count=${bytes >> 20}`];

/** MB/s of each round, and the daemon's peak memory (MiB). */
export async function streamed(daemon: Daemon): Promise<{
  figure: { ours: number[]; by_hand: number[] };
  peakMiB: number;
}> {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "3600"]);
  const figure = { ours: [] as number[], by_hand: [] as number[] };
  writeFileSync(`/proc/${daemon.pid}/clear_refs`, "5"); // forgets the peak until now
  for (let round = 0; round < rounds; round++) {
    const { url } = await daemon.client.Exec({ container_id: id, cmd: command, stdout: true });
    figure.ours.push(speed(readAll(url)));
    const root = join(daemon.dir, "state/runtime", ociRuntime);
    const words = [ociRuntime, "--root", root, "exec", id, ...command];
    figure.by_hand.push(speed(`${words.join(" ")} | cat >/dev/null`));
  }
  const status = readFileSync(`/proc/${daemon.pid}/status`, "utf8");
  await daemon.removePod(podId);
  return { figure, peakMiB: Number(/VmHWM:\s+(\d+)/.exec(status)![1]) / 1024 };
}

/** A minimal client, so that only the daemon is measured: cat after a WebSocket handshake. */
function readAll(url: string): string {
  const { port, pathname } = new URL(url);
  const head = [
    `GET ${pathname} HTTP/1.1`,
    "Host: localhost",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: aaaaaaaaaaaaaaaaaaaaaa==",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Protocol: v5.channel.k8s.io",
  ];
  const request = head.map((line) => `${line}\\r\\n`).join("");
  return `exec 3<>/dev/tcp/127.0.0.1/${port}; printf '${request}\\r\\n' >&3; cat <&3 >/dev/null`;
}

function speed(script: string): number {
  const start = performance.now();
  const { status, stderr } = spawnSync("bash", ["-c", script], { encoding: "utf8" });
  if (status !== 0) throw new Error(`${script}: ${stderr}`);
  return bytes / 1000 / (performance.now() - start);
}
