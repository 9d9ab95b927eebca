// Measures what a daemon writes to the node's disk.
import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Daemon } from "./harness.ts";

export type DiskWrites = {
  /** Each file and folder under graph, without images' files, with the time of its last change of any kind in ns. */
  files: Map<string, bigint>;
  /** Bytes that daemon and monitor have caused to be written to disks, proc_pid_io(5); tmpfs does not count. */
  bytes: number[];
};

export function diskWrites({ dir, scope }: Daemon): DiskWrites {
  const graph = join(dir, "graph");
  const paths = readdirSync(graph, { recursive: true, encoding: "utf8" });
  const own = ["", ...paths.filter((path) => !path.includes("/rootfs"))];
  const changedNs = (path: string) => lstatSync(join(graph, path), { bigint: true }).ctimeNs;
  return {
    files: new Map(own.map((path) => [path, changedNs(path)])),
    bytes: scope.pids().map(bytesWritten),
  };
}

function bytesWritten(pid: number): number {
  return Number(/^write_bytes: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, "utf8"))![1]);
}

/** Returns the files and folders that were made, changed or removed, relative to the daemon's folder. */
export function changedFiles(before: DiskWrites, after: DiskWrites): string[] {
  const paths = new Set([...before.files.keys(), ...after.files.keys()]);
  const changed = [...paths].filter((path) => before.files.get(path) !== after.files.get(path));
  return changed.map((path) => join("graph", path));
}

export function bytesBetween(before: DiskWrites, after: DiskWrites): number {
  const sum = ({ bytes }: DiskWrites) => bytes.reduce((all, one) => all + one, 0);
  return sum(after) - sum(before);
}
