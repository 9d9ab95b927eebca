// Tests a program that waits in the kernel where SIGKILL does not reach it: its caller gets an error at the
// deadline.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, readSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { cgroupMounts } from "../../src/node/cgroup.ts";
import { CgroupAttachLock } from "../../src/node/cgroup_attach.ts";
import { Spawner } from "../../src/monitor/spawner.ts";
import { run } from "../../src/sys/run.ts";
import { failure, until } from "../expect.ts";
import { silentDisk } from "../silent_disk.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-deaf-"));
/** Who asks this disk for a file waits uninterruptibly once its server has read the question. */
const disk = join(dir, "disk");
let mounted: ReturnType<typeof silentDisk>;

beforeAll(async () => {
  mounted = silentDisk(disk);
  // linux/fuse.h: fuse_out_header (length, error, unique), fuse_init_out (major, minor, …).
  const answer = Buffer.alloc(16 + 64);
  answer.writeUInt32LE(answer.length, 0);
  answer.writeBigUInt64LE((await question()).readBigUInt64LE(8), 8);
  answer.writeUInt32LE(7, 16);
  answer.writeUInt32LE(31, 20);
  answer.writeUInt32LE(4096, 16 + 20); // the most of a write
  writeSync(mounted.server, answer);
});
afterAll(() => {
  mounted?.[Symbol.dispose]();
  rmSync(dir, { recursive: true });
});

/** What the kernel asks next; fuse_in_header has its number at 8. */
async function question(): Promise<Buffer> {
  const asked = Buffer.alloc(64 << 10);
  await until("the disk is asked", () => {
    try {
      return readSync(mounted.server, asked) > 0;
    } catch {
      return false; // nothing yet
    }
  });
  return asked;
}

test("run() ends with pid, state and what to look at", async () => {
  const deadline = new AbortController();
  const call = failure(run(["ls", join(disk, "x")], { signal: deadline.signal }));
  await question();
  deadline.abort(new DOMException("late", "TimeoutError"));
  const { code, message } = await call;
  expect(code).toBe("DEADLINE_EXCEEDED");
  expect(message).toMatch(/^ls \(pid \d+\), which SIGKILL does not end: ls, state D: deadline/);
  expect(message).toContain("the kernel's log");
});

test("so does a call of the OCI runtime", async () => {
  const program = join(dir, "runtime");
  writeFileSync(program, `#!/bin/sh\nexec ls ${disk}/y\n`, { mode: 0o755 });
  const runtime = { path: program, args: [], root: dir, systemdCgroup: false };
  const spawner = new Spawner(dir, new CgroupAttachLock(cgroupMounts()));
  const call = failure(spawner.runtime(runtime, ["create"], { timeoutMs: 5_000 }));
  await question();
  const { code, message } = await call;
  expect(code).toBe("DEADLINE_EXCEEDED");
  expect(message).toContain("which SIGKILL does not end: ls, state D");
});
