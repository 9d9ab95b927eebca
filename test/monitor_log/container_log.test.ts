// Tests a container's log from its streams to its disk: it has everything that the container wrote, and
// nothing else.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import {
  closeSync,
  constants,
  mkdtempSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { ContainerLog, type LogFormat } from "../../src/monitor_log/container_log.ts";
import { Inputs } from "../../src/monitor_log/inputs.ts";
import type { Turn } from "../../src/monitor_log/log_lines.ts";
import { Sink } from "../../src/monitor_log/tap.ts";
import { Descriptor, eventfd, setPipeSize } from "../../src/sys/descriptor.ts";
import { mkfifo } from "../../src/sys/path.ts";
import { pace } from "../expect.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-log-"));
let serial = 0;
afterAll(() => rmSync(dir, { recursive: true, force: true }));

class Fixture implements Disposable {
  readonly path: string;
  readonly stdout: Descriptor;
  readonly container: number;
  log: ContainerLog;

  constructor(folder = dir, before?: string) {
    this.path = join(folder, `${++serial}.log`);
    if (before !== undefined) writeFileSync(this.path, before);
    const fifo = join(dir, `${serial}.fifo`);
    mkfifo(fifo, 0o600);
    this.container = openSync(fifo, "r+");
    this.stdout = Descriptor.open(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
    this.log = this.open(before !== undefined);
  }

  /** As another monitor does. */
  open(resumed: boolean): ContainerLog {
    return new ContainerLog(this.path, this.streams(), resumed);
  }

  streams() {
    return { stdout: this.stdout.duplicate().release(), terminal: false, hasReturns: false };
  }

  turn(): Turn {
    return this.log.inputs[0]!.turn();
  }

  turns(): void {
    while (["more", "some"].includes(this.turn()));
  }

  get text(): string {
    return readFileSync(this.path, "utf8").replaceAll(/^\S+ stdout /gm, "");
  }

  [Symbol.dispose](): void {
    this.log.close();
    for (const { descriptor } of this.log.inputs) descriptor.close();
    this.stdout.close();
    closeSync(this.container);
  }
}

describe("a container's log", () => {
  test("leaves the start of a line in the FIFO", () => {
    using it = new Fixture();
    writeSync(it.container, "one\ntwo\nthr");
    it.turns();
    expect(it.text).toBe("F one\nF two\n");
    const left = Buffer.alloc(64);
    expect(left.toString("utf8", 0, readSync(it.container, left))).toBe("thr");
  });

  test("tells whether all that was there was taken", () => {
    using it = new Fixture();
    setPipeSize(it.stdout, 1 << 20);
    const line = `${"x".repeat(1023)}\n`;
    writeSync(it.container, line.repeat(200));
    expect(it.turn()).toBe("more");
    expect(it.turn()).toBe("more"); // its writer waits, or soon does
    expect(it.turn()).toBe("empty");
    writeSync(it.container, line);
    expect(it.turn()).toBe("some");
    expect(it.turn()).toBe("empty");
    writeSync(it.container, "the start of a line");
    expect(it.turn()).toBe("part");
    expect(it.text).toBe(`F ${line}`.repeat(201));
  });

  test("has all of a write(2) larger than the FIFO, in which the start of a line is left", async () => {
    using it = new Fixture();
    setPipeSize(it.stdout, 1 << 20);
    using wake = eventfd();
    using inputs = new Inputs(wake);
    inputs.add(it.log.inputs[0]!);
    const bytes = 20_000_000;
    const argv = ["if=/dev/zero", `bs=${bytes}`, "count=1"];
    const writer = spawn("dd", argv, { stdio: ["ignore", it.container, "ignore"] });
    const end = performance.now() + 60_000 * pace;
    while (writer.exitCode === null && performance.now() < end) {
      inputs.wait(20);
      while (inputs.anyReady) inputs.turns();
      await sleep(0);
    }
    writer.kill("SIGKILL");
    it.turns(); // the writer may end before its last bytes are read
    it.log.writeRest();
    expect(it.text.replaceAll(/[^\0]/g, "").length).toBe(bytes);
  });

  test("has the start of a line as a partial line where it fills the FIFO", () => {
    using it = new Fixture();
    setPipeSize(it.stdout, 8192);
    writeSync(it.container, "x".repeat(4096));
    expect([it.turn(), it.turn()]).toEqual(["part", "part"]);
    writeSync(it.container, "y");
    expect([it.turn(), it.turn(), it.turn()]).toEqual(["part", "some", "empty"]);
    writeSync(it.container, "z\n");
    it.turns();
    expect(it.text).toBe(`P ${"x".repeat(4096)}y\nF z\n`);
  });

  test("writes the rest at the end as a partial line, and takes it", () => {
    using it = new Fixture();
    writeSync(it.container, "one\ntwo");
    it.turns();
    expect(it.log.writeRest()).toBe(true);
    expect(it.text).toBe("F one\nP two\n");
    expect(it.log.unwritten()).toBe(0);
  });

  test("goes on after a killed writer at the last whole line", () => {
    using it = new Fixture(
      dir,
      "2026-01-01T00:00:00.000000000Z stdout F one\n2026-01-01T00:00:00.0",
    );
    writeSync(it.container, "two\n");
    it.turns();
    expect(it.text).toBe("F one\nF two\n");
  });

  test("is not shortened when it starts anew", () => {
    using it = new Fixture();
    writeFileSync(it.path, "what an earlier container wrote");
    it.log.close();
    it.log = it.open(false);
    writeSync(it.container, "one\n");
    it.turns();
    expect(it.text).toEndWith("F one\n");
  });

  test("goes on in a new file when it was moved away", () => {
    using it = new Fixture();
    writeSync(it.container, "one\n");
    it.turns();
    rmSync(it.path);
    it.log.reopen();
    writeSync(it.container, "two\n");
    it.turns();
    expect(it.text).toBe("F two\n");
  });

  test("follows no symlink in its place, neither at the start nor after a rotation", () => {
    using it = new Fixture();
    const victim = join(dir, "victim");
    writeFileSync(victim, "of the node");
    writeSync(it.container, "one\n");
    it.turns();
    renameSync(it.path, `${it.path}.old`);
    symlinkSync(victim, it.path);
    expect(() => it.log.reopen()).toThrow("ELOOP");
    expect(() => it.open(false)).toThrow("ELOOP");
    writeSync(it.container, "two\n");
    it.turns();
    expect(readFileSync(victim, "utf8")).toBe("of the node");
    expect(readFileSync(`${it.path}.old`, "utf8")).toContain(" two\n");
  });

  test("waits for a FIFO in its place that nobody reads, without holding up its thread", () => {
    using it = new Fixture();
    rmSync(it.path);
    mkfifo(it.path, 0o600);
    it.log.reopen();
    setPipeSize(it.stdout, 1 << 20);
    for (let lines = 0; lines < 20 && !it.log.blocked; lines++) {
      writeSync(it.container, `${"x".repeat(10_000)}\n`);
      it.turns();
    }
    expect(it.log.blocked).toBe(true);
  });

  test("waits for a folder that cannot be made", () => {
    const file = join(dir, `${++serial}.file`);
    writeFileSync(file, "");
    using it = new Fixture();
    expect(() => new ContainerLog(join(file, "x.log"), it.streams(), false)).toThrow();
    const log = new ContainerLog(join(file, "x.log"), it.streams(), true);
    expect(log.blocked).toBe(true);
    writeSync(it.container, "one\n");
    expect(log.inputs[0]!.turn()).toBe("empty");
    rmSync(file);
    log.retry();
    expect(log.inputs[0]!.turn()).toBe("some");
    expect(readFileSync(join(file, "x.log"), "utf8")).toEndWith("F one\n");
    log.close();
  });
});

describe("a log on a full disk", () => {
  const small = join(dir, "small");
  beforeAll(() => {
    mkdirSync(small);
    spawnSync("mount", ["-t", "tmpfs", "-o", "size=64k", "tmpfs", small]);
  });
  afterAll(() => void spawnSync("umount", ["-l", small]));

  test("ends with a whole line, and goes on when there is room", () => {
    const filler = join(small, "filler");
    writeFileSync(filler, Buffer.alloc(56 << 10));
    using it = new Fixture(small);
    const lines = Array.from({ length: 400 }, (_, index) => `line ${index}\n`);
    writeSync(it.container, lines.slice(0, 10).join(""));
    it.turns();
    writeSync(it.container, lines.slice(10).join(""));
    it.turns();
    expect(it.log.blocked).toBe(true);
    const whole = lines.map((line) => `F ${line}`).join("");
    expect(it.text).toEndWith("\n");
    expect(whole).toStartWith(it.text);
    // What has been written is not written again when the disk is tried: that would fill the same blocks again and again.
    const { length } = it.text;
    expect(length).toBeGreaterThan(1_000);
    for (let tries = 0; tries < 3; tries++) {
      it.log.retry();
      it.turns();
    }
    expect(it.text.length).toBe(length);
    rmSync(filler);
    it.log.retry();
    it.turns();
    expect(it.text).toBe(whole);
  });

  /** The kernel lets nothing be cut off the log, as on a disk that has failed; tmpfs: Linux 6.6. */
  const only = (how: "+a" | "-a", path: string) => spawnSync("chattr", [how, path]).status === 0;

  test("that does not let half a line be taken back either: it is, when the disk goes on", () => {
    const filler = join(small, "filler");
    writeFileSync(filler, Buffer.alloc(40 << 10));
    using it = new Fixture(small);
    if (!only("+a", it.path)) return console.error("not tested: no append-only files on a tmpfs");
    const lines = Array.from({ length: 400 }, (_, index) => `line ${index}`);
    writeSync(it.container, lines.map((line) => `${line}\n`).join(""));
    it.turns();
    expect(it.log.blocked).toBe(true);
    rmSync(filler);
    it.log.retry();
    expect(it.log.blocked).toBe(true); // or the next line would follow half of one
    only("-a", it.path);
    it.log.retry();
    it.turns();
    // Whole lines that could not be taken back are there twice.
    expect([...new Set(it.text.split("\n"))]).toEqual([...lines.map((line) => `F ${line}`), ""]);
  });

  test("says how much it lacks", () => {
    const filler = join(small, "filler");
    spawnSync("sh", ["-c", `cat /dev/zero > ${filler}`]);
    using it = new Fixture(small);
    writeSync(it.container, "lost\n");
    it.turns();
    expect(it.log.blocked).toBe(true);
    expect(it.log.unwritten()).toBe(5);
    rmSync(filler);
  });
});

/** A container whose log cannot be written after its first bytes, and what it writes then. */
class FullDisk extends Fixture {
  constructor(first: string, then: string, more: Partial<LogFormat> = {}) {
    super();
    this.end();
    const format = { ...this.streams(), lineBytes: 256, ...more };
    this.log = new ContainerLog(this.path, format, false, { stallMs: 0 });
    writeSync(this.container, first);
    this.turns();
    // Every write to this file fails with ENOSPC.
    expect(spawnSync("mount", ["--bind", "/dev/full", this.path]).status).toBe(0);
    this.log.reopen();
    writeSync(this.container, then);
    this.turns();
  }

  end(): void {
    this.log.close();
    for (const { descriptor } of this.log.inputs) descriptor.close();
  }

  mend(): void {
    spawnSync("umount", ["-l", this.path]);
    this.log.reopen();
    this.turns();
  }

  override get text(): string {
    return readFileSync(this.path, "utf8")
      .replaceAll(/^\S+ /gm, "")
      .replaceAll(/dropped from \S+ to \S+: /g, "dropped: ");
  }

  override [Symbol.dispose](): void {
    spawnSync("umount", ["-l", this.path]);
    super[Symbol.dispose]();
  }
}

const noteOf = (bytes: number, lines: number) =>
  `stderr F isulad-ts: ${bytes} bytes of output with ${lines} line ends were dropped: ` +
  "this log could not be written (ENOSPC)\n";

describe("a log that cannot be written for long", () => {
  test("lacks whole lines, and says how much when it can be written", () => {
    using it = new FullDisk("one\n", "two\nthree\nthe rest");
    expect([it.log.blocked, it.log.isDropping]).toEqual([true, true]);
    it.log.drop();
    it.log.drop();
    it.mend();
    writeSync(it.container, " of a line\n");
    it.turns();
    expect(it.text).toBe(`stdout F one\n${noteOf(10, 2)}stdout F the rest of a line\n`);
  });

  test("ends a long line whose rest it lacks", () => {
    const long = "x".repeat(300);
    using it = new FullDisk(long, `${long}\n`);
    it.log.drop();
    it.mend();
    writeSync(it.container, "next\n");
    it.turns();
    const begin = `stdout P ${"x".repeat(256)}\nstdout F \n`;
    expect(it.text).toBe(`${begin}${noteOf(345, 1)}stdout F next\n`);
  });

  test("says nothing of it where it is asked not to", () => {
    using it = new FullDisk("one\n", "two\n", { hasNotes: false });
    it.log.drop();
    expect(it.log.trouble?.droppedBytes).toBe(4);
    it.mend();
    writeSync(it.container, "three\n");
    it.turns();
    expect(it.text).toBe("stdout F one\nstdout F three\n");
  });

  test("has everything with log-on-error block", () => {
    using it = new FullDisk("one\n", "two\n", { onError: "block" });
    expect(it.log.isDropping).toBe(false);
    it.mend();
    expect(it.text).toBe("stdout F one\nstdout F two\n");
  });

  test("counts what it lacks at the container's end", () => {
    using it = new FullDisk("one\n", "two\nthree\n");
    it.log.drop();
    writeSync(it.container, "four");
    expect(it.log.writeRest()).toBe(false);
    expect(it.log.unwritten()).toBe(14);
  });

  test.each(["drop", "block"] as const)("is no reason for clients to wait: %s", (onError) => {
    const fifo = join(dir, `${++serial}.client`);
    mkfifo(fifo, 0o600);
    using client = Descriptor.open(fifo, constants.O_RDWR | constants.O_NONBLOCK);
    using it = new FullDisk("one\n", "two\n", { onError });
    it.log.attach("stdout", new Sink(client.duplicate()));
    const got = Buffer.alloc(100);
    const heard = () => got.toString("utf8", 0, readSync(client.fd, got));
    writeSync(it.container, "three\n");
    it.turns();
    expect(heard()).toBe("three\n");
    it.mend();
    writeSync(it.container, "four\n");
    it.turns();
    expect(heard()).toBe("four\n");
    const kept = onError === "drop" ? noteOf(10, 2) : "stdout F two\nstdout F three\n";
    expect(it.text).toBe(`stdout F one\n${kept}stdout F four\n`);
  });

  test("goes on in a new file after a rotation, which has the note", () => {
    using it = new FullDisk("one\n", "two\n");
    it.log.drop();
    spawnSync("umount", ["-l", it.path]);
    renameSync(it.path, `${it.path}.1`);
    it.log.reopen();
    writeSync(it.container, "three\n");
    it.turns();
    expect(it.text).toBe(`${noteOf(4, 1)}stdout F three\n`);
  });
});
