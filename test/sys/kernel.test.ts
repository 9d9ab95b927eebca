// Tests system calls through libc by their effects on this process's own descriptors and children.
import { expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { constants, mkdtempSync, readSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { spawn as spawnKnown } from "../../src/sys/children.ts";
import { Descriptor, discard, pipe, readNow, tee } from "../../src/sys/descriptor.ts";
import { mountDescriptor, unmount } from "../../src/sys/mount.ts";
import { mkfifo } from "../../src/sys/path.ts";
import { DescriptorInbox, sendDescriptors } from "../../src/sys/unix_socket.ts";
import { execve, exitOfPidfd, openPidfd, reap, waitStatus } from "../../src/sys/wait.ts";

function scratch(): { dir: string } & Disposable {
  const dir = mkdtempSync(join(tmpdir(), "isulad-sys-"));
  return { dir, [Symbol.dispose]: () => rmSync(dir, { recursive: true, force: true }) };
}

test("tee leaves in the FIFO what it copies, and discard takes it away", () => {
  using folder = scratch();
  const path = join(folder.dir, "fifo");
  mkfifo(path, 0o600);
  using fifo = Descriptor.open(path, constants.O_RDWR);
  using copy = pipe();
  using none = Descriptor.open("/dev/null", constants.O_WRONLY);
  const buffer = Buffer.alloc(64);
  expect(tee(fifo, copy.writer, 64)).toBe(-1);
  writeSync(fifo.fd, "one\ntwo");
  expect(tee(fifo, copy.writer, 64)).toBe(7);
  expect(buffer.toString("utf8", 0, readNow(copy.reader, buffer))).toBe("one\ntwo");
  expect(discard(fifo, none, 4)).toBe(4);
  expect(buffer.toString("utf8", 0, readSync(fifo.fd, buffer))).toBe("two");
});

test("descriptors that are sent to a mailbox are taken from it", () => {
  using folder = scratch();
  using mailbox = new DescriptorInbox(join(folder.dir, "made/by/it"));
  expect(mailbox.takeIfSent()).toBeUndefined();
  expect(() => mailbox.take()).toThrow(`no descriptor was sent to ${mailbox.path}`);
  const files = Array.from({ length: 12 }, (_, index) => join(folder.dir, `file${index}`));
  files.forEach((file) => writeFileSync(file, file));
  const sent = files.map((file) => Descriptor.open(file, constants.O_RDONLY));
  sendDescriptors(mailbox.path, sent);
  sent.forEach((one) => one.close());
  const buffer = Buffer.alloc(256);
  const taken = mailbox.takeAll();
  const texts = taken.map(({ fd }) => buffer.toString("utf8", 0, readSync(fd, buffer)));
  expect(texts).toEqual(files);
  taken.forEach((one) => one.close());
});

test("reap leaves a child alone that the engine waits for", async () => {
  const child = spawnKnown("/bin/sh", ["-c", "exit 5"], { stdio: "ignore" });
  const code = new Promise((resolve) => child.on("exit", resolve));
  expect(() => reap(child.pid!)).toThrow("ECHILD");
  expect(await code).toBe(5);
});

test("a wait status is an exit code, or 128 and the signal", () => {
  expect(waitStatus(77 << 8)).toEqual({ signal: 0, exitCode: 77 });
  expect(waitStatus(9)).toEqual({ signal: 9, exitCode: 137 });
});

test("a mounted pidfd tells the exit code after others reaped the process", async () => {
  using folder = scratch();
  const child = spawn("/bin/sh", ["-c", "read line; exit 77"], {
    stdio: ["pipe", "ignore", "ignore"],
  });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  const path = join(folder.dir, "pidfd");
  writeFileSync(path, "");
  const pidfd = openPidfd(child.pid!);
  try {
    if (pidfd === undefined) throw new Error("no pidfd_open");
    mountDescriptor(pidfd, path);
    pidfd.close();
  } catch (error) {
    child.stdin.end();
    console.log(`not on this kernel, or not as this user: ${String(error)}`);
    return;
  }
  child.stdin.end();
  await ended;
  const again = Descriptor.open(path, constants.O_RDONLY);
  expect(exitOfPidfd(again)).toEqual({ signal: 0, exitCode: 77 });
  again.close();
  unmount(path);
});

test("execve keeps the process when there is no such program", () => {
  expect(() => execve("/nowhere/at-all", ["x"], process.env)).toThrow("ENOENT");
});

test("execve passes arguments and environment on", async () => {
  const program = `const { execve } = await import(${JSON.stringify(join(import.meta.dirname, "../../src/sys/wait.ts"))});
    execve("/bin/sh", ["sh", "-c", 'echo "$1 $NAME $$"', "sh", "an argument"], { NAME: "a name" });`;
  const child = spawn(process.execPath, ["-e", program], { stdio: ["ignore", "pipe", "inherit"] });
  const output: Buffer[] = [];
  child.stdout.on("data", (chunk: Buffer) => output.push(chunk));
  await new Promise((resolve) => child.on("close", resolve));
  expect(Buffer.concat(output).toString()).toBe(`an argument a name ${child.pid}\n`);
});
