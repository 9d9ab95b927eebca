// Tests the end of output that a shim copies: it goes on after the container's exit, until the shim closes it.
import { afterAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import {
  closeSync,
  constants,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { LogWorkers } from "../../src/monitor/log_workers.ts";
import { Descriptor } from "../../src/sys/descriptor.ts";
import { mkfifo } from "../../src/sys/path.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-copied-"));
const workers = new LogWorkers(
  (error) => {
    throw error;
  },
  { lingerMs: 10 },
);
afterAll(() => rmSync(dir, { recursive: true, force: true }));

let serial = 0;
/** Makes a FIFO; keeper: the monitor's own end, shim: the only other writer. */
function fifo() {
  const path = join(dir, `${++serial}.fifo`);
  mkfifo(path, 0o600);
  const keeper = Descriptor.open(path, constants.O_RDWR);
  const shim = openSync(path, constants.O_WRONLY);
  const reader = Descriptor.open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  return { keeper, shim, reader: reader.release() };
}

async function startLog(id: string) {
  const { keeper, shim, reader } = fifo();
  const path = join(dir, `${id}.log`);
  await workers.log({ id, path, stdout: reader, terminal: false, hasReturns: false });
  const text = () => readFileSync(path, "utf8").replaceAll(/^\S+ stdout /gm, "");
  return { keeper, shim, text };
}

describe("the log of a container whose shim copies its output", () => {
  test("has what the shim writes after the exit, and a last line without a newline", async () => {
    const { keeper, shim, text } = await startLog("late");
    writeSync(shim, "early\n");
    keeper.close();
    const ended = workers.end("late", true);
    await sleep(100);
    writeSync(shim, "late\nhalf");
    closeSync(shim);
    expect(await ended).toBe(0);
    expect(text()).toBe("F early\nF late\nP half\n");
  });

  test("has all that the shim writes once a full disk has room again, though the exit is long past", async () => {
    const small = join(dir, "small");
    mkdirSync(small);
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=64k", "tmpfs", small]);
    using _ = { [Symbol.dispose]: () => execFileSync("umount", ["-l", small]) };
    writeFileSync(join(small, "filler"), Buffer.alloc(56 << 10));
    const { keeper, shim, text } = await startLog("small/full");
    writeSync(shim, `${"x".repeat(8_000)}\n`.repeat(2));
    keeper.close();
    const ended = workers.end("small/full", true);
    await sleep(2_500);
    rmSync(join(small, "filler"));
    await sleep(100);
    writeSync(shim, "last\n");
    closeSync(shim);
    expect(await ended).toBe(0);
    expect(text()).toEndWith("x\nF last\n");
  });

  test("ends 2 s after the exit even if the shim keeps its stream open", async () => {
    const { keeper, shim, text } = await startLog("open");
    writeSync(shim, "all\n");
    keeper.close();
    expect(await workers.end("open", true)).toBe(0);
    expect(text()).toBe("F all\n");
    closeSync(shim);
  });

  test("does not wait without a shim", async () => {
    const { keeper, shim, text } = await startLog("own");
    writeSync(shim, "all\nha");
    const copied = await startLog("copied");
    const ends: string[] = [];
    await Promise.all([
      workers.end("copied", true).then(() => ends.push("with a shim")),
      workers.end("own").then(() => ends.push("without")),
    ]);
    expect(ends).toEqual(["without", "with a shim"]);
    expect(text()).toBe("F all\nP ha\n");
    for (const log of [copied, { keeper, shim }]) {
      log.keeper.close();
      closeSync(log.shim);
    }
  });
});

test("the captured output of an exec has what the shim writes after the exit", async () => {
  const [out, err] = [fifo(), fifo()];
  const request = { id: "exec-1", stdout: out.reader, stderr: err.reader, maxBytes: 1 << 20 };
  workers.capture(request);
  out.keeper.close();
  err.keeper.close();
  closeSync(err.shim);
  const collected = workers.collect("exec-1", { isCopied: true });
  await sleep(100);
  writeSync(out.shim, "late");
  closeSync(out.shim);
  const { stdout, stderr } = await collected;
  expect(Buffer.from(stdout).toString()).toBe("late");
  expect(stderr).toHaveLength(0);
});
