// Tests how the output of execs is captured: here while it is short, by the thread when it is not.
import { expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Captures } from "../../../src/monitor/captures.ts";
import type { CaptureRequest } from "../../../src/monitor/log_workers.ts";
import { Descriptor, pipe, readNow } from "../../../src/sys/descriptor.ts";

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

function exec(options?: { shortMs: number }, maxBytes = 1 << 20) {
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
  await sleep(100);
  expect(thread.taken.map(({ id, maxBytes }) => [id, maxBytes])).toEqual([["one", 1 << 20]]);
  exit();
  expect(await collect()).toEqual(["", written]);
});

test("a program that runs long is left to the thread", async () => {
  const { thread, out, exit, collect } = exec({ shortMs: 100 });
  writeSync(out.fd, "begun");
  await sleep(50);
  expect(thread.taken).toHaveLength(0);
  await sleep(150);
  expect(thread.taken).toHaveLength(1);
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
