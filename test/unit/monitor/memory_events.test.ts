// Tests the counts of memory events in the monitor's thread: they remain when the cgroup is gone. cgroup v1
// has no such file, and nothing is watched.
import { afterAll, beforeAll, expect, test } from "bun:test";
import {
  constants,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { LogWorkers } from "../../../src/monitor/log_workers.ts";
import { Descriptor } from "../../../src/sys/descriptor.ts";
import { mkfifo } from "../../../src/sys/path.ts";
import { run } from "../../../src/sys/run.ts";
import { until } from "../../expect.ts";
import { isV2 } from "../../host.ts";

const top = "/sys/fs/cgroup";
const folder = join(top, `isulad-test-${process.pid}`);
const workers = new LogWorkers((error) => {
  throw error;
});

beforeAll(() => {
  if (!isV2) return;
  writeFileSync(join(top, "cgroup.subtree_control"), "+memory");
  mkdirSync(folder);
});
afterAll(() => {
  if (existsSync(folder)) rmdirSync(folder);
});

test("kills and limits that were met are known when their cgroup has gone", async () => {
  const watch = workers.watchMemory("container", isV2 ? { unified: folder } : { memory: folder });
  if (!isV2) return expect(watch).toBeUndefined();
  const { counts } = watch!;
  expect([counts.limitHits, counts.kills]).toEqual([0n, 0n]);
  writeFileSync(join(folder, "memory.max"), String(20 << 20));
  if (existsSync(join(folder, "memory.swap.max"))) {
    writeFileSync(join(folder, "memory.swap.max"), "0");
  }
  const eater = "dd if=/dev/zero of=/dev/null bs=200M count=1";
  const script = `echo 0 > ${folder}/cgroup.procs; ${eater}; echo $?`;
  const { stdout } = await run(["sh", "-c", `(${script}) 2>/dev/null`], {
    signal: AbortSignal.timeout(100_000),
  });
  expect(stdout).toBe("137\n");
  await until("the kill is seen", () => counts.kills === 1n);
  // The shell that was in it, too, has ended.
  await until("the cgroup can be removed", () => {
    try {
      rmdirSync(folder);
    } catch {
      return false;
    }
    return true;
  });
  expect(counts.limitHits).toBeGreaterThan(0n);
  watch!.close();
});

test("a cgroup that is not there is not watched", () => {
  expect(workers.watchMemory("container", { unified: join(top, "isulad-gone") })).toBeUndefined();
});

test.skipIf(!isV2)("the thread of a container's log watches its cgroup", async () => {
  const disk = mkdtempSync(join(tmpdir(), "isulad-memory-"));
  const own = new LogWorkers((error) => {
    throw error;
  });
  const fifo = join(disk, "stdout");
  mkfifo(fifo, 0o600);
  using container = Descriptor.open(fifo, constants.O_RDWR);
  const stdout = Descriptor.open(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
  const path = join(disk, "log");
  await own.log({
    id: "container",
    path,
    stdout: stdout.release(),
    terminal: false,
    hasReturns: false,
  });
  const watch = own.watchMemory("container", { unified: "/sys/fs/cgroup/system.slice" });
  expect(watch!.counts.kills).toBeGreaterThanOrEqual(0n);
  expect(own.threads).toMatchObject([{ logs: 1 }]);
  watch!.close();
  expect(await own.end("container")).toBe(0);
  container.close();
  rmSync(disk, { recursive: true });
});
