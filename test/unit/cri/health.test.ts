// Tests the health check and everything that shows it: RuntimeReady, grpc.health.v1 and /readyz.
import { afterAll, describe, expect, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../../src/base/errors.ts";
import { createLog } from "../../../src/base/log.ts";
import type { Context } from "../../../src/cri/context.ts";
import { Health } from "../../../src/node/health.ts";
import { healthCheck, healthWatch, readiness } from "../../../src/cri/health_service.ts";
import { status } from "../../../src/cri/runtime.ts";
import { grpc } from "../../../src/proto/messages.js";
import { failureOf } from "../fakes.ts";

const { SERVING, NOT_SERVING, SERVICE_UNKNOWN } = grpc.health.v1.ServingStatus;

const dir = mkdtempSync(join(tmpdir(), "isulad-health-"));
afterAll(() => rmSync(dir, { recursive: true }));
const runtime = join(dir, "runc");
writeFileSync(runtime, "", { mode: 0o755 });

/** Short ones, in milliseconds. */
const times = { freshMs: 200, partMs: 1_000, silentMs: 50 };

type Node = { graph: string; path: string; problem?: string; ping: () => Promise<unknown> };

function contextOf(node: Partial<Node> = {}): {
  context: Context;
  lines: string[];
  pings: () => number;
} {
  const lines: string[] = [];
  let pings = 0;
  const { graph = dir, path = runtime, problem, ping = () => Promise.resolve() } = node;
  const handler = {
    command: { path },
    problem,
    support: {},
    refresh: () => Promise.resolve(),
  };
  const context = {
    config: { graph },
    cgroup: { name: "cgroupfs" },
    handlers: new Map([["", handler]]),
    log: createLog({
      level: "info",
      format: "text",
      stream: { write: (line) => lines.push(line) },
    }),
    monitor: {
      call: () => {
        pings++;
        return ping();
      },
    },
    cni: { status: () => Promise.resolve({ ready: true, reason: "", message: "" }) },
    host: {},
    images: { storage: {} },
  } as unknown as Context;
  context.health = new Health(() => context, times);
  return { context, lines, pings: () => pings };
}

const never = () => new Promise<never>(() => {});
const faults: [string, Partial<Node>, string, RegExp][] = [
  [
    "a runtime that is gone",
    { path: join(dir, "none") },
    "RuntimeMissing",
    /^the default runtime: .*none cannot be executed \(ENOENT\): install it/,
  ],
  [
    "a shim that is gone",
    { problem: "no shim" },
    "RuntimeMissing",
    /^the default runtime: no shim$/,
  ],
  [
    "a monitor that fails",
    { ping: () => Promise.reject(new CriError("UNAVAILABLE", "it ended")) },
    "MonitorNotResponding",
    /^the monitor: it ended$/,
  ],
  [
    "a monitor that is silent",
    { ping: never },
    "MonitorNotResponding",
    /^the monitor has not answered for 0\.05 s$/,
  ],
  [
    "a graph that is gone",
    { graph: join(dir, "none") },
    "GraphNotUsable",
    /^the graph folder .*none: ENOENT/,
  ],
];

test("a disk that refuses writes though its folders look writable is found once a call has failed", async () => {
  const graph = mkdtempSync(join(dir, "graph-"));
  const { context, lines } = contextOf({ graph });
  const { health } = context;
  expect(await health.problems()).toEqual([]);
  expect(readdirSync(graph)).toEqual([]); // it does not write to a disk that works
  const probe = join(graph, ".write-check.tmp");
  mkdirSync(probe); // stands for a disk that takes no file
  health.noteFailure(new CriError("INTERNAL", "cannot write", { cause: new Error("ENOSPC") }));
  await Bun.sleep(times.freshMs + 1);
  expect(await health.problems()).toEqual([]);
  health.noteFailure(new CriError("INTERNAL", "x", { cause: new Error("EROFS: mkdir") }));
  expect(await health.problems()).toMatchObject([{ reason: "GraphNotUsable" }]);
  rmSync(probe, { recursive: true });
  await Bun.sleep(times.freshMs + 1);
  expect(await health.problems()).toEqual([]);
  expect([readdirSync(graph), lines.length]).toEqual([[], 2]);
  await health.requireWritableGraph();
});

describe("Health", () => {
  test("finds nothing on a node that works, and asks once while a result is fresh", async () => {
    const { context, lines, pings } = contextOf();
    context.health = new Health(() => context, { ...times, freshMs: 60_000 });
    for (let i = 0; i < 5; i++) expect(await context.health.problems()).toEqual([]);
    expect([pings(), lines]).toEqual([1, []]);
  });

  test.each(faults)("finds %s, with one line in the log", async (_, node, reason, message) => {
    const { context, lines } = contextOf(node);
    const problems = await context.health.problems();
    expect(problems).toEqual([{ reason, message: expect.stringMatching(message) }] as never);
    expect(lines).toHaveLength(1);
    expect(lines[0]).toContain("ERROR the runtime is not ready: pods cannot be started problem=");
  });

  test("finds a runtime that is no longer executable, and that it is again", async () => {
    const path = join(dir, "crun");
    writeFileSync(path, "", { mode: 0o644 });
    const { context, lines } = contextOf({ path });
    const signal = AbortSignal.timeout(60_000);
    const seen: string[][] = [];
    for await (const problems of context.health.changes(signal)) {
      seen.push(problems.map(({ reason }) => reason));
      if (problems.length === 0) break;
      chmodSync(path, 0o755);
    }
    expect(seen).toEqual([["RuntimeMissing"], []]);
    expect(lines.at(-1)).toContain("INFO  the runtime is ready again");
  });

  test("asks a silent monitor no second time", async () => {
    const { context, pings } = contextOf({ ping: never });
    await context.health.problems();
    await Bun.sleep(times.freshMs);
    expect(await context.health.problems()).toHaveLength(1);
    expect(pings()).toBe(1);
  });
});

test.each(faults)("with %s Status is not RuntimeReady", async (_, node, reason, message) => {
  const answer = await status(contextOf(node).context, {});
  const condition = answer.status?.conditions?.find(({ type }) => type === "RuntimeReady");
  expect(condition).toMatchObject({ status: false, reason });
  expect(condition?.message).toMatch(message);
});

test("Status is RuntimeReady on a node that works", async () => {
  const answer = await status(contextOf().context, {});
  expect(answer.status?.conditions?.[0]).toEqual({
    type: "RuntimeReady",
    status: true,
    reason: "",
    message: "",
  });
});

test("a monitor that is slow or being replaced is no problem until it is silent for long", async () => {
  const { context, lines, pings } = contextOf({ ping: never });
  const slow = new Health(() => context, { freshMs: 20, partMs: 20, silentMs: 2_000 });
  expect(await slow.problems()).toEqual([]);
  await Bun.sleep(2_050);
  const message = "the monitor has not answered for 2 s";
  expect(await slow.problems()).toEqual([{ reason: "MonitorNotResponding", message }]);
  expect([pings(), lines.length]).toEqual([1, 1]);
});

test("a problem whose text changes is logged once", async () => {
  let tries = 0;
  const ping = () => Promise.reject(new Error(`try ${++tries}`));
  const { context, lines } = contextOf({ ping });
  const health = new Health(() => context, { freshMs: 5, partMs: 1_000, silentMs: 50 });
  for (let i = 0; i < 3; i++) {
    await health.problems();
    await Bun.sleep(10);
  }
  expect([tries, lines.length]).toEqual([3, 1]);
});

describe("grpc.health.v1", () => {
  test.each(["", "runtime.v1.RuntimeService", "grpc.health.v1.Health"])(
    "Check(%j) says whether pods can run",
    async (service) => {
      expect(await healthCheck(contextOf().context, { service })).toEqual({ status: SERVING });
      const broken = contextOf({ problem: "gone" }).context;
      expect(await healthCheck(broken, { service })).toEqual({ status: NOT_SERVING });
    },
  );

  test("an unknown service is NOT_FOUND for Check, SERVICE_UNKNOWN for Watch", async () => {
    const { context } = contextOf();
    const request = { service: "x.Y" };
    expect(await failureOf(healthCheck(context, request))).toStartWith("no service x.Y is served");
    const sent: unknown[] = [];
    const controller = new AbortController();
    await healthWatch(context, request, { signal: controller.signal }, (response) => {
      sent.push(response.status);
      controller.abort();
      return Promise.resolve();
    });
    expect(sent).toEqual([SERVICE_UNKNOWN]);
  });

  test("Watch sends the status, and again when it changes", async () => {
    let isBroken = true;
    const ping = () => (isBroken ? Promise.reject(new Error("gone")) : Promise.resolve());
    const { context } = contextOf({ ping });
    const sent: unknown[] = [];
    const controller = new AbortController();
    await healthWatch(context, {}, { signal: controller.signal }, ({ status }) => {
      sent.push(status);
      if (!isBroken) controller.abort();
      isBroken = false;
      return Promise.resolve();
    });
    expect(sent).toEqual([NOT_SERVING, SERVING]);
  });
});

describe("/readyz", () => {
  test("is ok on a node that works, once it serves", async () => {
    const { context } = contextOf();
    expect(await readiness(context, true)).toEqual({ status: "200 OK", body: "ok\n" });
    const starting = { status: "503 Service Unavailable", body: "starting\n" };
    expect(await readiness(context, false)).toEqual(starting);
  });

  test("names what does not work, the network too", async () => {
    const { context } = contextOf({ problem: "gone" });
    const network = { ready: false, reason: "x", message: "no list" };
    const cni = { status: () => Promise.resolve(network) } as unknown as Context["cni"];
    expect(await readiness({ ...context, cni }, true)).toEqual({
      status: "503 Service Unavailable",
      body: "runtime: the default runtime: gone\nnetwork: no list\n",
    });
  });
});
