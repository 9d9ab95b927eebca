// Tests `isulad-ts stats` and `isulad-ts statsp` against a real daemon.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { countedStats } from "../stats.ts";

let daemon: Daemon;
let busy: string;
let idle: string;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon();
  const pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  idle = await daemon.run(podId, pod, ["sleep", "600"], { metadata: { name: "idle" } });
  busy = await daemon.run(podId, pod, "while :; do :; done", { metadata: { name: "busy" } });
  await countedStats(daemon, busy);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const env = () => ({ ...process.env, ISULAD_HOST: `unix://${daemon.socket}` });

function isuladTs(...words: string[]) {
  const { status, stdout, stderr } = spawnSync(executable, words, { env: env(), encoding: "utf8" });
  return { code: status, stdout, stderr };
}

const rows = (table: string) =>
  table
    .trimEnd()
    .split("\n")
    .map((line) => line.split(/\s{2,}/));

test("stats shows a line for each running container, or for those named", () => {
  const all = isuladTs("stats");
  expect(all).toMatchObject({ code: 0, stderr: "" });
  const [header, ...lines] = rows(all.stdout);
  expect(header).toEqual(["CONTAINER", "NAME", "CPU %", "MEM", "DISK", "INODES", "SWAP"]);
  const line = lines.find(([, name]) => name === "busy")!;
  expect(line[0]).toBe(busy.slice(0, 13));
  expect(Number(line[2])).toBeGreaterThan(1);
  expect(line[3]).toMatch(/^[\d.]+[kM]B$/);
  expect(Number(line[5])).toBeGreaterThan(0);
  expect(lines).toHaveLength(2);
  expect(rows(isuladTs("stats", idle.slice(0, 20), "--no-trunc").stdout)[1]![0]).toBe(idle);
  expect(isuladTs("ps", "--no-trunc").stdout).toContain(idle);
  expect(isuladTs("ps").stdout).not.toContain(idle);
  expect(isuladTs("stats", "--pod", "0badf00d").stderr).toContain("pod 0badf00d not found");
  const { stats } = JSON.parse(isuladTs("stats", "-o", "json", busy).stdout);
  expect(stats).toHaveLength(1);
  expect(stats[0]).toMatchObject({ attributes: { id: busy } });
  expect(Number(stats[0].cpu.usageCoreNanoSeconds.value)).toBeGreaterThan(0);
});

test("stats of an unknown container fails and says so", () => {
  const { code, stderr } = isuladTs("stats", "0badf00d");
  expect(code).toBe(1);
  expect(stderr).toContain("0badf00d not found");
});

test("stats --watch shows the busiest first until it is interrupted, and then exits with 0", async () => {
  expect(isuladTs("stats", "-w", "--seconds", "0")).toMatchObject({ code: 2 });
  const child = spawn(executable, ["stats", "-w", "--pod", podId], { env: env() });
  let stdout = "";
  child.stdout.on("data", (bytes: Buffer) => {
    stdout += bytes.toString();
    if (stdout.split("\n").length > 6) child.kill("SIGINT");
  });
  expect(await new Promise((resolve) => child.once("close", resolve))).toBe(0);
  const names = rows(stdout)
    .slice(0, 6) // another table may come before the interrupt
    .map(([, name]) => name);
  expect(names).toEqual(["NAME", "busy", "idle", "NAME", "busy", "idle"]);
});

test("statsp shows a line for each pod", () => {
  const [header, line] = rows(isuladTs("statsp", podId).stdout);
  expect(header).toEqual("POD ID,NAME,NAMESPACE,CPU %,MEM,RECEIVED,SENT,PIDS".split(","));
  expect(line![0]).toBe(podId.slice(0, 13));
  expect(Number(line![3])).toBeGreaterThan(1);
  expect(isuladTs("statsp", "--label", "no=such").stdout).not.toContain(podId.slice(0, 13));
});
