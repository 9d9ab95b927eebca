// Tests containers whose logs are on a full disk: they go on, end when they are asked to, and their logs say what they
// lack.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { mountTmpfs } from "../host.ts";
import { freePort } from "../registry.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-fulllog-"));
const disk = join(folder, "disk");
const filler = join(disk, "filler");

let daemon: Daemon;
let port: number;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  mountTmpfs(disk);
  execFileSync("mount", ["-o", "remount,size=32m", disk]);
  port = await freePort();
  daemon = await startDaemon({ network: false, config: { "metrics-port": port } });
  pod = daemon.hostPodConfig({ log_directory: disk });
  podId = await daemon.runPod(pod);
});
afterAll(async () => {
  rmSync(filler, { force: true });
  await daemon?.[Symbol.asyncDispose]();
  execFileSync("umount", ["-l", disk]);
  rmSync(folder, { recursive: true });
});

/** The value of a metric's only series. */
async function metric(name: string): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  return Number(new RegExp(`^${name}(?:{.*})? (.*)$`, "m").exec(text)?.[1]);
}

const fill = () => spawnSync("sh", ["-c", `cat /dev/zero > ${filler}`]);
/** Writes lines for ever, says in a file how far it is, and ends with 7 at SIGTERM. */
const chatty =
  "trap 'exit 7' TERM; i=0; while :; do i=$((i+1)); echo line $i; [ $((i % 100)) = 0 ] && echo $i >/at; done";

test("a chatty container goes on, its log says what it lacks, and it handles SIGTERM", async () => {
  const id = await daemon.run(podId, pod, chatty);
  const { log_path } = await daemon.status(id);
  const at = async () => Number((await daemon.exec(id, "cat /at")).stdout);
  await until("it writes", async () => (await at()) > 0);
  fill();
  const before = await at();
  // A FIFO, also one that was enlarged, has less.
  await until("it has gone on", async () => (await at()) > before + 200_000);
  const why = () => {
    const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
    return spawnSync(executable, ["why", podId.slice(0, 13)], {
      env,
      encoding: "utf8",
    }).stdout.replaceAll(/\s+/g, " ");
  };
  await until("why tells of it", () => why().includes("its log cannot be written (ENOSPC): "));
  // The log's thread tells of its counts from time to time.
  await until("it is counted", async () => (await metric("isulad_logs_failing")) === 1);
  const dropped = () => metric("isulad_log_dropped_bytes_total");
  await until("what is dropped is counted", async () => (await dropped()) > 1 << 20);
  expect(daemon.log).toMatch(/WARN +log: logs of containers cannot be written: .*error=ENOSPC/);
  rmSync(filler);
  const text = () => readFileSync(log_path, "utf8");
  await until("its log says what it lacks", () => text().includes(" stderr F isulad-ts: "));
  await until("its end is told", () => /could not be written for .* dropped/.test(why()));
  const again = /INFO +log: logs of containers can be written again .*droppedBytes=\d/;
  await until("the log says so, too", () => again.test(daemon.log));
  fill();
  await daemon.client.StopContainer({ container_id: id, timeout: toLong(30) });
  const { status } = await daemon.exited(id);
  expect(status.exit_code).toBe(7);
  expect(status.message).toContain("bytes of its last output were lost");
  const lines = text().split("\n").slice(0, -1);
  const bad = lines.filter(
    (line) =>
      !/^\S+ (stdout F line \d+|stderr F isulad-ts: \d+ bytes of output .*\(ENOSPC\))$/.test(line),
  );
  expect(bad).toEqual([]);
  rmSync(filler);
}, 120_000);

test("the monitor is told of log-on-error and log-drop-note", async () => {
  await daemon.configured({ "log-on-error": "block", "log-drop-note": false }, async () => {
    const id = await daemon.run(podId, pod, "sleep 600");
    const text = readFileSync(join(daemon.dir, "state/monitor/containers", `${id}.json`), "utf8");
    expect(JSON.parse(text)).toMatchObject({ logOnError: "block", logDropNote: false });
    await daemon.client.StopContainer({ container_id: id });
  });
});
