// Unmaps this executable's machine code, of which the kernel maps 64 KiB around each instruction that ran
// once, at a start for example. It stays in the page cache; what still runs is mapped again at its next use.
import { readlinkSync } from "node:fs";
import { readKernelFile } from "./file.ts";
import { check } from "./libc.ts";

const MADV_DONTNEED = 4;

export type Mapping = { address: bigint; bytes: bigint };

/** Finds the code of the program at `path` in the text of /proc/PID/maps (proc(5)). */
export function codeOf(maps: string, path: string): Mapping[] {
  return maps.split("\n").flatMap((line) => {
    const [, from, to, file] = /^(\w+)-(\w+) r-xp \w+ \S+ \d+ +(.+)$/.exec(line) ?? [];
    if (file !== path) return [];
    const address = BigInt(`0x${from}`);
    return [{ address, bytes: BigInt(`0x${to}`) - address }];
  });
}

/** Safe for code alone: pages that were written to would be lost. */
export function unmapProgramText(): void {
  const maps = readKernelFile("/proc/self/maps") ?? "";
  for (const { address, bytes } of codeOf(maps, readlinkSync("/proc/self/exe"))) {
    check("madvise", "of the program's code", address, bytes, MADV_DONTNEED);
  }
}
