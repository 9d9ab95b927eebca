// Tests how the output of execs is captured: here while it is short, by the thread when it is not.
import { expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, writeSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { errnoOf } from "../../../src/base/errors.ts";
import { Captures } from "../../../src/monitor/captures.ts";
import type { CaptureRequest } from "../../../src/monitor/log_workers.ts";
import { Descriptor, hasHungUp, pipe, readNow } from "../../../src/sys/descriptor.ts";
import { libc } from "../../../src/sys/libc.ts";
import { socketAddress } from "../../../src/sys/socket_address.ts";
import { until } from "../../expect.ts";

/** Stands for the thread: keeps what it is given, and answers with it. */
class Thread {
  readonly taken: CaptureRequest[] = [];

  capture(request: CaptureRequest): void {
    this.taken.push(request);
  }

  collect(): Promise<{ stdout: Uint8Array; stderr: Uint8Array }> {
    const { stdout, stderr } = this.taken[0]!;
    const read = (fd: number) => {
      using reader = new Descriptor(fd);
      const buffer = Buffer.alloc(1 << 20);
      return buffer.subarray(0, Math.max(0, readNow(reader, buffer)));
    };
    return Promise.resolve({ stdout: read(stdout), stderr: read(stderr) });
  }
}

/** shortMs: by default longer than a busy machine keeps a test from going on. */
function exec(options = { shortMs: 60_000 }, maxBytes = 1 << 20) {
  const thread = new Thread();
  const captures = new Captures(thread, options);
  const [out, err] = [pipe(), pipe()];
  const readers = { stdout: out.reader.release(), stderr: err.reader.release() };
  captures.capture({ id: "one", ...readers, maxBytes });
  const exit = () => {
    out.writer.close();
    err.writer.close();
  };
  const collect = async () => {
    const { stdout, stderr } = await captures.collect("one", { isCopied: false });
    return [Buffer.from(stdout).toString(), Buffer.from(stderr).toString()];
  };
  return { thread, out: out.writer, err: err.writer, exit, collect };
}

test("short output is read after the exit, without the thread", async () => {
  const { thread, out, err, exit, collect } = exec();
  writeSync(out.fd, "a line\n");
  writeSync(err.fd, "an error\n");
  await sleep(50);
  exit();
  expect(await collect()).toEqual(["a line\n", "an error\n"]);
  expect(thread.taken).toEqual([]);
});

test("it is cut at the bound", async () => {
  const { out, exit, collect } = exec(undefined, 4);
  writeSync(out.fd, "a line\n");
  exit();
  expect(await collect()).toEqual(["a li", ""]);
});

test("more than a quarter of a pipe goes to the thread while the program runs, unread", async () => {
  const { thread, err, exit, collect } = exec();
  const written = "x".repeat((16 << 10) + 1);
  writeSync(err.fd, written);
  await until("the thread has it", () => thread.taken.length > 0);
  expect(thread.taken.map(({ id, maxBytes }) => [id, maxBytes])).toEqual([["one", 1 << 20]]);
  exit();
  expect(await collect()).toEqual(["", written]);
});

test("a program that runs long is left to the thread", async () => {
  const begin = performance.now();
  const { thread, out, exit, collect } = exec({ shortMs: 100 });
  writeSync(out.fd, "begun");
  await until("the thread has it", () => thread.taken.length === 1);
  expect(performance.now() - begin).toBeGreaterThan(100);
  exit();
  expect(await collect()).toEqual(["begun", ""]);
});

test("output that a child keeps open after the exit is left to the thread", async () => {
  const { thread, out, exit, collect } = exec();
  const child = spawn("/bin/sleep", ["60"], { stdio: ["ignore", out.fd, "ignore"] });
  await once(child, "spawn");
  writeSync(out.fd, "the parent's");
  exit();
  expect(await collect()).toEqual(["the parent's", ""]);
  expect(thread.taken).toHaveLength(1);
  child.kill();
});

test("output that is closed a moment after the exit is read without the thread", async () => {
  const { thread, out, err, exit, collect } = exec();
  writeSync(out.fd, "a line\n");
  err.close();
  const collected = collect();
  await sleep(1);
  exit();
  expect(await collected).toEqual(["a line\n", ""]);
  expect(thread.taken).toEqual([]);
});

test("an output that cannot be read fails the collection, and leaves no descriptor open", async () => {
  const server = createServer((socket) => socket.resetAndDestroy()).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const { call } = libc();
  const stdout = new Descriptor(Number(call.socket(2, 1, 0))); // AF_INET, SOCK_STREAM
  const address = socketAddress("127.0.0.1", port);
  expect(call.connect(stdout.fd, address, address.length)).toBe(0);
  await until("the connection is reset", () => hasHungUp(stdout));
  server.close();
  const captures = new Captures(new Thread());
  const { reader, writer } = pipe();
  const fds = [stdout.fd, reader.fd];
  const readers = { stdout: stdout.release(), stderr: reader.release() };
  captures.capture({ id: "one", ...readers, maxBytes: 1 });
  writer.close();
  const collected = captures.collect("one", { isCopied: false });
  expect(await collected.catch(errnoOf)).toBe("ECONNRESET");
  expect(fds.filter((fd) => existsSync(`/proc/self/fd/${fd}`))).toEqual([]);
});
