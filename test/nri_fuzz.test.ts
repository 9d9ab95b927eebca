// Runs the NRI fuzzer (test/nri_fuzz.ts) briefly, and tests that it detects a leak.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { createConnection } from "node:net";
import { join } from "node:path";
import { until } from "./expect.ts";
import { type Daemon, startDaemon } from "./harness.ts";
import { growthOf } from "./growth.ts";
import { fuzz, type FuzzPlan, type FuzzRound } from "./nri_fuzz.ts";
import { Plugins } from "./nri/plugins.ts";
import { fuzzSeed } from "./random.ts";

/**
 * Above the long run's, since the engine still warms up; the planted leak of 256 KiB per plugin is far
 * larger.
 */
const growthKibMax = 24 * 1024;
const plugins = new Plugins();
let daemon: Daemon;

beforeAll(async () => {
  const config = plugins.config({ "log-level": "ERROR" });
  daemon = await startDaemon({ config, network: false, image: false });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

async function rounds(
  target: { socket: string; pid: number },
  plan: FuzzPlan,
): Promise<FuzzRound[]> {
  const done: FuzzRound[] = [];
  for await (const result of fuzz(target, plan)) done.push(result);
  return done;
}

test(`mutated frames, messages and answers neither break nor grow daemon and process (seed ${fuzzSeed})`, async () => {
  const plan = { cases: 24_000, perRound: 3_000, seed: fuzzSeed };
  const done = await rounds({ socket: plugins.socket, pid: daemon.pid }, plan);
  for (const of of ["pssKib", "heapKib"] as const) {
    expect(growthOf(done.map((round) => round[of]))).toBeLessThan(growthKibMax);
  }
  for (const kind of ["garbage", "refused", "applied"] as const) {
    expect(done.reduce((sum, { answers }) => sum + answers[kind], 0)).toBeGreaterThan(100);
  }
  await daemon.client.Version({});
}, 400_000);

/** Waits until it accepts connections, a moment after its file exists. */
function listens(path: string): Promise<boolean> {
  const socket = createConnection(path);
  const answer = new Promise<boolean>((resolve) => {
    socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
  });
  return answer.finally(() => socket.destroy());
}

test("a leak is detected", async () => {
  const socket = join(plugins.dir, "leaking/nri.sock");
  const program = join(import.meta.dirname, "nri/fuzz_target.ts");
  // Leaks 256 KiB per plugin.
  const child = spawn(process.execPath, [program, socket, String(256 << 10)]);
  try {
    await until("it listens", () => listens(socket));
    const plan = { cases: 9_000, perRound: 1_500, seed: 1 };
    const done = await rounds({ socket, pid: child.pid! }, plan);
    expect(growthOf(done.map((round) => round.pssKib))).toBeGreaterThan(growthKibMax);
  } finally {
    child.kill("SIGKILL");
  }
}, 400_000);
