// Tests execs in containers that a shim runs, with a monitor made of plain functions that opens the FIFOs late,
// as shims do.
import { afterAll, expect, test } from "bun:test";
import { closeSync, constants, mkdtempSync, openSync, readSync, rmSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../../src/base/errors.ts";
import type { StartExecRequest } from "../../../src/monitor/protocol.ts";
import type { MonitorClient } from "../../../src/monitor_client/client.ts";
import { task } from "../../../src/proto/task.js";
import type { Channels } from "../../../src/stream/channels.ts";
import { serveExec, type ExecSession } from "../../../src/stream/exec.ts";
import { Poller } from "../../../src/sys/poller.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-shim-exec-"));
const poller = new Poller();
afterAll(() => {
  poller[Symbol.dispose]();
  rmSync(folder, { recursive: true, force: true });
});

type Calls = [string, Record<string, unknown>][];
/** Opens the command's ends of its streams, and closes them at its end. */
type Command = (request: StartExecRequest) => { exited: Promise<number> };

function monitorOf(command: Command): { monitor: MonitorClient; calls: Calls } {
  const calls: Calls = [];
  let exited: Promise<number>;
  const call = async (name: string, params: Record<string, unknown>) => {
    calls.push([name, params]);
    if (name === "startExec") exited = command(params as StartExecRequest).exited;
    if (name === "waitExec") return { result: { exitCode: await exited } };
    return { result: { pid: 1, pidStartTime: "2" } };
  };
  return { monitor: { call } as unknown as MonitorClient, calls };
}

/** A client that sends this input, and these sizes. */
function client(input: string[], sizes: [number, number][] = []) {
  const heard: string[] = [];
  const channels: Channels = {
    stdin: (async function* () {
      for (const text of input) yield Buffer.from(text);
    })(),
    resizes: (async function* () {
      for (const [columns, rows] of sizes) yield { columns, rows };
    })(),
    write: async (name, bytes) => void heard.push(`${name} ${Buffer.from(bytes).toString()}`),
    finish: async () => {},
    [Symbol.dispose]: () => {},
  };
  return { channels, heard };
}

function serve(monitor: MonitorClient, channels: Channels, wanted: Partial<ExecSession["wanted"]>) {
  const none = { stdin: false, stdout: false, stderr: false, tty: false };
  const session = {
    containerId: "c",
    process: () => Promise.resolve("{}"),
    byShim: true,
    wanted: { ...none, ...wanted },
  };
  const parts = { monitor, poller, folder };
  return serveExec(parts, session, channels, new AbortController().signal);
}

const O_PATH = 0o10000000;

/** Opens a FIFO for reading after a while, although its name may have been removed by then. */
async function openLate(path: string): Promise<number> {
  const handle = openSync(path, O_PATH);
  await Bun.sleep(100);
  const reader = openSync(`/proc/self/fd/${handle}`, constants.O_RDONLY | constants.O_NONBLOCK);
  closeSync(handle);
  return reader;
}

/** Reads to the end of the input. */
async function readAll(reader: number): Promise<string> {
  const bytes = Buffer.alloc(1024);
  for (let length = 0; ; await Bun.sleep(1)) {
    try {
      const count = readSync(reader, bytes, length, bytes.length - length, null);
      if (count === 0) return bytes.toString("utf8", 0, length);
      length += count;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
    }
  }
}

test("input is sent once the shim reads it, and the shim gets its end", async () => {
  let received = "";
  const { monitor, calls } = monitorOf(({ stdin, stdout }) => {
    const output = openSync(stdout, "r+");
    const run = async () => {
      received = await readAll(await openLate(stdin));
      while (!calls.some(([name]) => name === "closeStdin")) await Bun.sleep(1);
      closeSync(output);
      return 0;
    };
    return { exited: run() };
  });
  const { channels } = client(["one ", "two"]);
  const outcome = await serve(monitor, channels, { stdin: true, stdout: true });
  expect(outcome).toEqual({ exitCode: 0 });
  expect(received).toBe("one two");
  const [, { key }] = calls[0]!;
  expect(calls.find(([name]) => name === "closeStdin")?.[1]).toEqual({ id: "c", key });
  expect(calls.at(-1)).toEqual(["cancelExec", { key }]); // its output was read
});

test("output that the shim copies after the exit is delivered", async () => {
  const { monitor } = monitorOf(({ stdout, stderr }) => {
    const [out, err] = [openSync(stdout, "r+"), openSync(stderr, "r+")];
    closeSync(err);
    const copy = async () => {
      await Bun.sleep(100);
      writeSync(out, "late");
      closeSync(out);
    };
    copy().catch(() => {});
    return { exited: Promise.resolve(3) };
  });
  const { channels, heard } = client([]);
  const outcome = await serve(monitor, channels, { stdout: true, stderr: true });
  expect([outcome, heard]).toEqual([{ exitCode: 3 }, ["stdout late"]]);
});

test("output that a shim holds while the client is slow is delivered, though the exit is long past", async () => {
  const total = 512 << 10;
  const { monitor } = monitorOf(({ stdout }) => {
    const out = openSync(stdout, constants.O_RDWR | constants.O_NONBLOCK);
    const copy = async () => {
      for (let left = total; left > 0; await Bun.sleep(5)) left -= writeNow(out, left);
      closeSync(out);
    };
    copy().catch(() => {});
    return { exited: Promise.resolve(0) };
  });
  const { channels } = client([]);
  let received = 0;
  channels.write = async (_, bytes) => {
    if (received === 0) await Bun.sleep(2_500);
    received += bytes.length;
  };
  expect(await serve(monitor, channels, { stdout: true })).toEqual({ exitCode: 0 });
  expect(received).toBe(total);
});

test("a child that goes on writing does not keep a shim's exec", async () => {
  const { monitor } = monitorOf(({ stdout }) => {
    const out = openSync(stdout, constants.O_RDWR | constants.O_NONBLOCK);
    const chat = setInterval(() => writeSync(out, "tick\n"), 20);
    setTimeout(() => (clearInterval(chat), closeSync(out)), 30_000);
    return { exited: Promise.resolve(0) };
  });
  const { channels, heard } = client([]);
  const begin = performance.now();
  expect(await serve(monitor, channels, { stdout: true })).toEqual({ exitCode: 0 });
  expect(performance.now() - begin).toBeLessThan(20_000);
  expect(heard.length).toBeGreaterThan(5);
});

test("a shim's terminal has FIFOs, and the shim sets its size", async () => {
  const resized = (all: Calls) => all.filter(([name]) => name === "task");
  const { monitor, calls } = monitorOf(({ stdin, stdout }) => {
    const [input, output] = [openSync(stdin, "r+"), openSync(stdout, "r+")];
    const run = async () => {
      while (resized(calls).length < 2) await Bun.sleep(1);
      writeSync(output, readAllNow(input).toUpperCase());
      closeSync(output);
      return 0;
    };
    return { exited: run() };
  });
  const sizes: [number, number][] = [
    [80, 24],
    [132, 50],
  ];
  const { channels, heard } = client(["typed"], sizes);
  const wanted = { stdin: true, stdout: true, tty: true };
  expect(await serve(monitor, channels, wanted)).toEqual({ exitCode: 0 });
  expect(heard).toEqual(["stdout TYPED"]);
  const [, request] = calls[0]!;
  expect(request).toMatchObject({ terminal: true, console: "", stderr: "" });
  const payloads = resized(calls).map(([, { payload }]) => Buffer.from(String(payload), "base64"));
  const requests = payloads.map((payload) => task.ResizePtyRequest.decode(payload).toJSON());
  const exec = { id: "c", exec_id: request["key"] };
  expect(requests).toEqual([
    { ...exec, width: 80, height: 24 },
    { ...exec, width: 132, height: 50 },
  ]);
  expect(calls.some(([name]) => name === "closeStdin")).toBeFalse();
});

test("a size that the shim fails to set does not end the following of sizes", async () => {
  const { monitor, calls } = monitorOf(({ stdout }) => {
    const output = openSync(stdout, "r+");
    const run = async () => {
      while (calls.filter(([name]) => name === "task").length < 2) await Bun.sleep(1);
      closeSync(output);
      return 0;
    };
    return { exited: run() };
  });
  const call = monitor.call.bind(monitor);
  let failures = 0;
  monitor.call = async (...request: Parameters<typeof call>) => {
    const done = await call(...request);
    if (request[0] !== "task" || failures++ > 0) return done;
    throw new CriError("DEADLINE_EXCEEDED", "the shim is busy");
  };
  const { channels } = client(
    [],
    [
      [80, 24],
      [132, 50],
    ],
  );
  const wanted = { stdin: true, stdout: true, tty: true };
  expect(await serve(monitor, channels, wanted)).toEqual({ exitCode: 0 });
  expect(failures).toBe(2);
});

test("the next monitor gets what it needs to end the exec of one that died", async () => {
  const { monitor, calls } = monitorOf(({ stdout }) => {
    closeSync(openSync(stdout, "r+"));
    return { exited: Promise.reject(new CriError("UNAVAILABLE", "the monitor ended")) };
  });
  const { channels } = client([]);
  expect(await serve(monitor, channels, { stdout: true })).toEqual({ error: "the monitor ended" });
  const [, { key }] = calls[0]!;
  const ended = calls.find(([name]) => name === "endExec");
  expect(ended?.[1]).toEqual({ id: "c", key, pid: 1, pidStartTime: "2" });
});

/** Writes as much of the count as there is room for; returns how much. */
function writeNow(writer: number, count: number): number {
  try {
    return writeSync(writer, Buffer.alloc(Math.min(count, 64 << 10), "x"));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EAGAIN") return 0;
    throw error;
  }
}

function readAllNow(reader: number): string {
  const bytes = Buffer.alloc(1024);
  return bytes.toString("utf8", 0, readSync(reader, bytes, 0, bytes.length, null));
}
