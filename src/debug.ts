// Looks into the running daemon: the dump of what it is doing, and CPU profiles. Loaded when it is used.
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { callReports, lockReports } from "./base/activity_report.ts";
import { inTime } from "./base/abort.ts";
import { build, version } from "./base/build.ts";
import { nowMs } from "./base/clock.ts";
import { CriError, messageOf } from "./base/errors.ts";
import { jsonText } from "./base/json.ts";
import type { Context } from "./cri/context.ts";
import { queuesOf } from "./cri/queues.ts";
import { writeFileAtomic } from "./sys/file.ts";
import { processReport } from "./sys/process_report.ts";

/** A monitor that does not answer is a finding, too. */
const monitorMs = 3_000;
/** Dumps that are kept under state. */
const dumpsMax = 5;
const sampleUs = 1_000;

/**
 * Returns what the daemon and its monitor are doing, as JSON for people and scripts.
 * context: undefined early in the start, when only calls, steps and locks are known.
 */
export async function dump(context: Context | undefined): Promise<string> {
  const report = {
    time: new Date(nowMs()).toISOString(),
    version,
    commit: build?.commit,
    process: await processReport(),
    calls: callReports(),
    locks: lockReports(),
    ...(context && (await partsReport(context))),
  };
  return `${jsonText(report, 2)}\n`;
}

async function partsReport(context: Context): Promise<object> {
  const { sandboxes, containers, images, nri } = context;
  return {
    queues: queuesOf(context),
    records: {
      sandboxes: sandboxes.list().length,
      containers: containers.list().length,
      images: images.list().length,
    },
    nri: nri?.plugins().map(({ id, kind, lastError }) => ({ id, kind, lastError })),
    monitor: await monitorReport(context),
  };
}

async function monitorReport({ monitor }: Context): Promise<object> {
  const { pid, losses } = monitor;
  // A call would connect, which the start does only after it has read the records.
  if (pid === undefined) return { losses, problem: "not connected" };
  try {
    const asked = monitor.call("inspect", {});
    const { result } = await inTime(asked, "asking the monitor for its state", monitorMs);
    return { losses, ...result };
  } catch (error) {
    return { pid, losses, problem: messageOf(error) };
  }
}

/** Writes a dump under state, readable by root only; the newest five stay. Returns its path. */
export async function writeDump(state: string, context: Context | undefined): Promise<string> {
  const folder = join(state, "dumps");
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const path = join(folder, `dump-${new Date(nowMs()).toISOString().replaceAll(":", "")}.json`);
  await writeFileAtomic(path, await dump(context), { mode: 0o600 });
  const old = readdirSync(folder).sort().slice(0, -dumpsMax);
  for (const name of old) rmSync(join(folder, name), { force: true });
  return path;
}

let isProfiling = false;

/**
 * Returns a CPU profile of the daemon's event loop in the format of Chrome's developer tools (.cpuprofile).
 * @throws CriError FAILED_PRECONDITION while another one is made.
 */
export async function profile(seconds: number, signal: AbortSignal): Promise<string> {
  if (isProfiling) {
    throw new CriError("FAILED_PRECONDITION", "another profile is being made: try again later");
  }
  isProfiling = true;
  try {
    const { Session } = await import("node:inspector/promises");
    using stack = new DisposableStack();
    const session = stack.adopt(new Session(), (one) => one.disconnect());
    session.connect();
    await session.post("Profiler.enable");
    await session.post("Profiler.setSamplingInterval", { interval: sampleUs });
    await session.post("Profiler.start");
    await sleep(seconds * 1000, undefined, { signal }).catch(() => {}); // a profile cut short is one, too
    const { profile: made } = await session.post("Profiler.stop");
    await session.post("Profiler.disable");
    return jsonText(made);
  } finally {
    isProfiling = false;
  }
}
