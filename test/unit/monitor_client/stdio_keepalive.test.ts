// Tests the streams that the daemon keeps open for its containers.
import { afterAll, expect, test } from "bun:test";
import { constants, mkdtempSync, openSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openStdin, StdioKeepalive } from "../../../src/monitor_client/stdio_keepalive.ts";
import { Descriptor } from "../../../src/sys/descriptor.ts";
import { mkfifo } from "../../../src/sys/path.ts";

const root = mkdtempSync(join(tmpdir(), "isulad-keepalive-"));
afterAll(() => rmSync(root, { recursive: true, force: true }));

/** A container's FIFOs, without anybody who has them open. */
function fifos(): string {
  const stdio = mkdtempSync(join(root, "stdio-"));
  for (const name of ["stdin", "stdout", "stderr"]) mkfifo(join(stdio, name), 0o600);
  return stdio;
}

/** ENXIO: no process has it open for reading. */
function isRead(stdio: string, name: string): boolean {
  try {
    using _ = Descriptor.open(join(stdio, name), constants.O_WRONLY | constants.O_NONBLOCK);
    return true;
  } catch {
    return false;
  }
}

test("a container's output stays readable until it is released", () => {
  const stdio = fifos();
  const keepalive = new StdioKeepalive();
  const streams = { id: "c", stdio, stdin: false, terminal: false };
  keepalive.hold(streams);
  keepalive.hold(streams); // the second call must not open them again
  expect([isRead(stdio, "stdout"), isRead(stdio, "stderr")]).toEqual([true, true]);
  keepalive.release("c");
  expect([isRead(stdio, "stdout"), isRead(stdio, "stderr")]).toEqual([false, false]);
});

test("a terminal has no FIFOs to keep", () => {
  const stdio = fifos();
  new StdioKeepalive().hold({ id: "c", stdio, stdin: true, terminal: true });
  expect(isRead(stdio, "stdout")).toBeFalse();
});

test("stdin is kept open only where the container reads it", () => {
  const stdio = fifos();
  expect(openStdin(stdio)).toEqual([]); // nobody reads it
  using reader = new Descriptor(
    openSync(join(stdio, "stdin"), constants.O_RDONLY | constants.O_NONBLOCK),
  );
  const [writer] = openStdin(stdio);
  expect(writer?.isOpen).toBeTrue();
  writer?.close();
  expect(reader.isOpen).toBeTrue();
  rmSync(join(stdio, "stdin"));
  expect(openStdin(stdio)).toEqual([]); // closed for good
});
