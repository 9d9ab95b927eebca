// Tests the threads that write logs: there is one for each file system, and it ends with its last log.
import { expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { constants, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { LogWorkers } from "../../src/monitor/log_workers.ts";
import { Descriptor } from "../../src/sys/descriptor.ts";
import { MountTable } from "../../src/sys/mount_table.ts";
import { mkfifo } from "../../src/sys/path.ts";
import { mountTmpfs } from "../host.ts";
import { failure, until } from "../expect.ts";

const failures: unknown[] = [];
const descriptors = () => readdirSync("/proc/self/fd").length;

/** Writes one line as a container would, and returns its log. */
async function write(workers: LogWorkers, folder: string, id: string): Promise<string> {
  const fifo = join(folder, `${id}.fifo`);
  const path = join(folder, "disk", `${id}.log`);
  mkfifo(fifo, 0o600);
  using container = Descriptor.open(fifo, constants.O_RDWR);
  const stdout = Descriptor.open(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  await workers.log({ id, path, stdout: stdout.release(), terminal: false, hasReturns: false });
  await Bun.write(Bun.file(container.fd), "a line\n");
  await workers.reopen(id);
  expect(await workers.end(id)).toBe(0);
  expect((await failure(workers.reopen(id))).code).toBe("FAILED_PRECONDITION");
  return readFileSync(path, "utf8");
}

test("a file system can be unmounted after its last log, and its thread has gone", async () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-threads-"));
  mountTmpfs(join(folder, "disk"));
  const mounts = new MountTable();
  expect(mounts.entries).not.toEqual([]); // it keeps a descriptor from here on
  const workers = new LogWorkers((error) => failures.push(error), { lingerMs: 50, mounts });
  try {
    const before = descriptors();
    for (const id of ["one", "two"]) {
      expect(await write(workers, folder, id)).toMatch(/^\S+ stdout F a line\n$/);
      await until("the thread has gone", () => descriptors() <= before);
    }
    expect(failures).toEqual([]);
  } finally {
    execFileSync("umount", [join(folder, "disk")]);
    rmSync(folder, { recursive: true });
  }
});
