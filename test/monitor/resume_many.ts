// Measures the work of resuming containers that are no children, on log threads that do nothing, and prints it.
import { EventEmitter } from "node:events";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Worker } from "node:worker_threads";
import { silentLog } from "../../src/base/log.ts";
import { Containers } from "../../src/monitor/containers.ts";
import { LogWorkers } from "../../src/monitor/log_workers.ts";
import { RecordFolder } from "../../src/monitor/records.ts";
import { Spawner } from "../../src/monitor/spawner.ts";
import type { WorkerBody } from "../../src/monitor_log/log_worker.ts";
import { CgroupAttachLock } from "../../src/node/cgroup_attach.ts";
import { cgroupMounts } from "../../src/node/cgroup.ts";
import { Descriptor, type Released } from "../../src/sys/descriptor.ts";
import { MNT_DETACH, mount, unmount } from "../../src/sys/mount.ts";
import { MountTable, readMountTable } from "../../src/sys/mount_table.ts";
import { deviceNumbers } from "../../src/sys/path.ts";
import { startTime } from "../../src/sys/process.ts";

export type Work = {
  looks: { atStart: number; atChildsEnd: number; atInterval: number };
  readings: { atStart: number; afterMount: number };
  isOfNewMount: boolean;
};

const [count = "1"] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "isulad-many-"));

class IdleThread extends EventEmitter {
  postMessage(body: WorkerBody): void {
    if (body.op === "await") Descriptor.adopt(body.pidfd).close();
  }
}

/** Counts the calls of a method of an object, since the last time it was asked. */
function counted<Name extends string>(
  object: Record<Name, (...args: never[]) => unknown>,
  name: Name,
): () => number {
  let calls = 0;
  const original = object[name].bind(object);
  object[name] = (...args) => {
    calls++;
    return original(...args);
  };
  return () => {
    const since = calls;
    calls = 0;
    return since;
  };
}

async function work(): Promise<Work> {
  let readings = 0;
  const mounts = new MountTable(() => {
    readings++;
    return readMountTable();
  });
  const start = (wake: Released) => {
    Descriptor.adopt(wake).close();
    return new IdleThread() as unknown as Worker;
  };
  const onFailure = (error: unknown) => {
    throw error;
  };
  const workers = new LogWorkers(onFailure, { start, mounts });
  const records = new RecordFolder(folder);
  await records.make();
  for (let index = 0; index < Number(count); index++) {
    records.writeRun({
      version: 1,
      id: `c${index}`,
      runtime: { path: "/none", args: [], root: folder, systemdCgroup: false },
      bundle: folder,
      stdio: join(folder, "none"),
      logPath: join(folder, `logs/c${index}/0.log`),
      stdin: false,
      terminal: false,
      cgroup: {},
      timeoutMs: 1_000,
      // Runs, and is no child.
      pid: process.pid,
      pidStartTime: startTime(process.pid)!,
      startedAtNs: "1",
      started: true,
    });
  }
  const spawner = new Spawner(folder, new CgroupAttachLock(cgroupMounts()));
  const parts = { folder, records, workers, spawner, log: silentLog(), announce: () => {} };
  const containers = new Containers(parts);
  const looks = counted(containers.runtimes, "endOf");
  await containers.resume(new Map());
  const atStart = { looks: looks(), readings };
  containers.checkChildren();
  const atChildsEnd = looks();
  containers.check();
  const atInterval = looks();
  mount("tmpfs", folder, "tmpfs", 0);
  const logs = workers.threads.length;
  workers.resume({
    id: "late",
    path: join(folder, "late.log"),
    terminal: false,
    hasReturns: false,
  });
  const { major, minor } = deviceNumbers(statSync(folder, { bigint: true }).dev);
  unmount(folder, MNT_DETACH);
  return {
    looks: { atStart: atStart.looks, atChildsEnd, atInterval },
    readings: { atStart: atStart.readings, afterMount: readings },
    isOfNewMount: workers.threads[logs]?.device === `${major}:${minor}`,
  };
}

try {
  process.stdout.write(JSON.stringify(await work()));
} finally {
  rmSync(folder, { recursive: true, force: true });
}
process.exit(0);
