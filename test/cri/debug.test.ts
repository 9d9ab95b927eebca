// Tests what the daemon tells about itself: dump, SIGUSR1, CPU profile, support bundle and traces.
import { afterAll, beforeAll, expect, test } from "bun:test";
import * as grpc from "@grpc/grpc-js";
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { failure, until } from "../expect.ts";
import { gate, openGate } from "../gate.ts";
import { runtime } from "../../src/proto/messages.js";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { startReceiver, type Receiver } from "../otlp_receiver.ts";

type Call = { call: string; subject: Record<string, string>; steps: { step: string }[] };
type Dump = {
  process: { pid: number; descriptors: { open: number }; memory: Record<string, number> };
  calls: Call[];
  queues: { queue: string }[];
  monitor: {
    process: { pid: number };
    calls: Call[];
    containers: { id: string }[];
    logThreads: { device: string; logs: number }[];
  };
};

let daemon: Daemon;
let collector: Receiver;
let container: string;
beforeAll(async () => {
  collector = await startReceiver();
  daemon = await startDaemon({
    env: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, OTEL_BSP_SCHEDULE_DELAY: "50" },
  });
  const pod = daemon.podConfig();
  container = await daemon.run(await daemon.runPod(pod), pod, ["sleep", "600"]);
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await collector?.[Symbol.asyncDispose]();
});

async function dump(): Promise<Dump> {
  return JSON.parse((await daemon.client.Dump({})).json) as Dump;
}

test("a dump has the calls in flight with their step, in the daemon and in the monitor", async () => {
  const running = daemon.client.ExecSync({ container_id: container, cmd: ["sh", "-c", gate] });
  const isExec = ({ call }: Call) => call === "ExecSync";
  let found = await dump();
  await until("the exec has reached the monitor", async () => {
    found = await dump();
    return found.monitor.calls.some(({ call }) => call === "exec");
  });
  const call = found.calls.find(isExec)!;
  expect(call.subject["container"]).toStartWith("c-");
  expect(call.steps.map(({ step }) => step)).toEqual(["monitor exec"]);
  expect(found.monitor.calls.map((one) => [one.call, one.subject["container"]])).toContainEqual([
    "exec",
    container,
  ]);
  await openGate(daemon, container);
  await running;
  expect((await dump()).calls.filter(isExec)).toEqual([]);
});

test("a dump has memory, descriptors, queues, and the monitor's containers and threads", async () => {
  const { process: own, queues, monitor } = await dump();
  expect(own.pid).toBe(daemon.pid);
  expect(own.memory["privateDirtyBytes"]).toBeGreaterThan(10 << 20);
  expect(own.descriptors.open).toBeGreaterThan(10);
  expect(queues.map(({ queue }) => queue)).toContain("monitor-calls");
  expect(monitor.process.pid).toBe(daemon.monitors()[0]!);
  expect(monitor.containers.map(({ id }) => id)).toEqual([container]);
  expect(monitor.logThreads.reduce((sum, { logs }) => sum + logs, 0)).toBe(1);
});

test("SIGUSR1 writes dumps for root only, of which five stay", async () => {
  const folder = join(daemon.dir, "state", "dumps");
  const written = () => daemon.log.split("dump written").length - 1;
  for (let count = 1; count <= 6; count++) {
    process.kill(daemon.pid, "SIGUSR1");
    await until("the dump is written", async () => written() === count);
  }
  const names = readdirSync(folder);
  expect(names).toHaveLength(5);
  const path = join(folder, names[0]!);
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect((JSON.parse(readFileSync(path, "utf8")) as Dump).process.pid).toBe(daemon.pid);
});

test("SIGUSR1 shows in which step a start hangs", async () => {
  const [monitor] = daemon.monitors();
  await daemon.stop();
  process.kill(monitor!, "SIGSTOP");
  const starting = daemon.start();
  /** Steps of the start, by the newest dump. */
  const steps = () => {
    const path = daemon.log.match(/(?<=dump written.*path=)\S+/g)?.at(-1);
    if (path === undefined) return undefined;
    const { calls } = JSON.parse(readFileSync(path, "utf8")) as Dump;
    return calls.find(({ call }) => call === "step start")?.steps.map(({ step }) => step);
  };
  try {
    await until("it handles the signal, which would end it", () => {
      const status = readFileSync(`/proc/${daemon.pid}/status`, "utf8");
      const caught = BigInt(`0x${/^SigCgt:\s*(.+)$/m.exec(status)![1]}`);
      return ((caught >> BigInt(constants.signals.SIGUSR1 - 1)) & 1n) === 1n;
    });
    await until("a dump shows that it waits for the monitor", async () => {
      process.kill(daemon.pid, "SIGUSR1");
      await sleep(100); // for the dump, of which only five stay
      return steps()?.includes("step start-monitor") === true;
    });
  } finally {
    process.kill(monitor!, "SIGCONT");
  }
  await starting;
  expect((await dump()).calls.filter(({ call }) => call === "step start")).toEqual([]);
});

test("a profile shows what the daemon's loop does; only one is made at a time", async () => {
  const profiling = daemon.client.Profile({ seconds: 1 });
  const refused = await failure(daemon.client.Profile({ seconds: 1 }));
  expect(refused.code).toBe("FAILED_PRECONDITION");
  const profile = { isMade: false };
  profiling.finally(() => (profile.isMade = true)).catch(() => {});
  while (!profile.isMade) await daemon.client.ListContainers({});
  const { nodes, samples } = JSON.parse((await profiling).json) as Record<string, unknown[]>;
  expect(nodes!.length).toBeGreaterThan(5);
  expect(samples!.length).toBeGreaterThan(5);
  for (const seconds of [0, 301]) {
    expect((await failure(daemon.client.Profile({ seconds }))).code).toBe("INVALID_ARGUMENT");
  }
});

test("the commands print the dump, and put it into a bundle", () => {
  const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
  const run = (...words: string[]) => {
    const { status, stdout } = spawnSync(executable, words, { env, cwd: daemon.dir });
    expect(status).toBe(0);
    return String(stdout);
  };
  expect((JSON.parse(run("debug", "dump")) as Dump).process.pid).toBe(daemon.pid);
  const file = join(daemon.dir, "bundle.tar.gz");
  expect(run("support-bundle", file, "--config", daemon.configFile)).toBe(`${file}\n`);
  expect(statSync(file).mode & 0o777).toBe(0o600);
  const read = (name: string) =>
    String(spawnSync("tar", ["-xzOf", file, `isulad-ts-support/${name}`]).stdout);
  expect((JSON.parse(read("dump.json")) as Dump).process.pid).toBe(daemon.pid);
  expect(read("records.txt")).toContain(container);
  expect(read("daemon.log")).toContain("dump written");
  expect(read("processes.txt")).toContain(`process ${daemon.pid}\n`);
  expect(read("doctor.txt")).toContain("kernel");
});

test("calls are traced, with namespaces, CNI, rootfs, and the OCI runtime's create and start", async () => {
  const spansOf = (method: string) => {
    const call = collector.spans.find(({ name }) => name === method);
    const inside = (id: string): string[] =>
      collector.spans
        .filter(({ parentSpanId }) => parentSpanId === id)
        .flatMap(({ name, spanId }) => [name, ...inside(spanId)]);
    return call === undefined ? [] : inside(call.spanId);
  };
  await until("the start is traced", () => spansOf("StartContainer").length > 0);
  const pod = spansOf("RunPodSandbox");
  expect(pod).toContain("step sandbox-namespaces");
  expect(pod.slice(pod.indexOf("step cni-add")).slice(0, 2)).toEqual([
    "step cni-add",
    "cni ADD bridge",
  ]);
  expect(spansOf("CreateContainer")).toContain("step container-rootfs");
  const start = spansOf("StartContainer");
  const created = start.indexOf("runtime create");
  expect(start.slice(created - 1, created + 2)).toEqual([
    "monitor start",
    "runtime create",
    "runtime start",
  ]);
});

test("a call is traced under its client's span", async () => {
  const traceId = "0af7651916cd43dd8448eb211c80319c";
  const { VersionRequest, VersionResponse } = runtime.v1;
  const metadata = new grpc.Metadata();
  metadata.set("traceparent", `00-${traceId}-b7ad6b7169203331-01`);
  const channel = new grpc.Client(`unix://${daemon.socket}`, grpc.credentials.createInsecure());
  await new Promise<void>((resolve, reject) => {
    channel.makeUnaryRequest(
      "/runtime.v1.RuntimeService/Version",
      (request: object) => Buffer.from(VersionRequest.encode(request).finish()),
      (bytes) => VersionResponse.decode(bytes),
      {},
      metadata,
      (error) => (error ? reject(error) : resolve()),
    );
  });
  channel.close();
  await until("the call is traced", () => collector.spans.some((one) => one.traceId === traceId));
  const span = collector.spans.find((one) => one.traceId === traceId)!;
  expect(span).toMatchObject({ name: "Version", parentSpanId: "b7ad6b7169203331" });
});
