// Unmaps this executable's file pages: machine code, constants, and embedded modules. The kernel maps 64 KiB around
// each address that was used once, for example at the start. Unmapped pages stay in the page cache, and those still
// used are mapped again at their next use.
//
// Decision: embedded modules lie in a writable segment, where a page that was written to would be lost. The engine only
// reads them (test/sys/program_pages.test.ts looks at a daemon); if one has been written to all the same, all stay.
import { constants, readFileSync, readlinkSync, readSync } from "node:fs";
import { Descriptor } from "./descriptor.ts";
import { sectionOf } from "./elf.ts";
import { readKernelFile } from "./file.ts";
import { check } from "./libc.ts";

const MADV_DONTNEED = 4;
/** Where `bun build --compile` puts modules, in source and bytecode. */
const modulesSection = ".bun";

export type Range = { address: bigint; bytes: bigint };
type Mapping = Range & { permissions: string; offset: bigint };

/** Finds the mappings of the program at `path` in the text of /proc/PID/maps (proc(5)). */
function mappingsOf(maps: string, path: string): Mapping[] {
  return maps.split("\n").flatMap((line) => {
    const fields = /^(\w+)-(\w+) (\S+) (\w+) \S+ \d+ +(\S.*)$/.exec(line)?.slice(1) ?? [];
    const [from, to, permissions = "", at, file] = fields;
    if (file !== path) return [];
    const [address, end, offset] = [from, to, at].map((text) => BigInt(`0x${text}`)) as [
      bigint,
      bigint,
      bigint,
    ];
    return [{ address, bytes: end - address, permissions, offset }];
  });
}

/**
 * Returns the mappings that are never written to: the code, and the constants at the beginning of the file. Later
 * read-only mappings are not among them: the loader wrote to them before it made them read-only (RELRO).
 */
export function readOnlyParts(maps: string, path: string): Range[] {
  return mappingsOf(maps, path)
    .filter(({ permissions, offset }) => {
      return permissions === "r-xp" || (permissions === "r--p" && offset === 0n);
    })
    .map(({ address, bytes }) => ({ address, bytes }));
}

/** Returns the whole pages of a process's embedded modules; undefined: its program has none. */
export function modulesOf(
  pid: number | "self",
  maps = readKernelFile(`/proc/${pid}/maps`) ?? "",
): Range | undefined {
  const program = `/proc/${pid}/exe`;
  const section = sectionOf(program, modulesSection);
  if (section === undefined) return undefined;
  const [begin, end] = [BigInt(section.offset), BigInt(section.offset + section.bytes)];
  const mapping = mappingsOf(maps, readlinkSync(program)).findLast(({ offset }) => offset <= begin);
  if (mapping === undefined || end > mapping.offset + mapping.bytes) return undefined;
  const place = (offset: bigint) => mapping.address + offset - mapping.offset;
  const page = pageBytes();
  const first = ((place(begin) + page - 1n) / page) * page;
  const last = (place(end) / page) * page;
  return last > first ? { address: first, bytes: last - first } : undefined;
}

/** Size of a page of memory: 4 KiB, or up to 64 KiB on arm64; AT_PAGESZ of getauxval(3). */
function pageBytes(): bigint {
  const AT_PAGESZ = 6n;
  const vector = new BigUint64Array(Uint8Array.from(readFileSync("/proc/self/auxv")).buffer);
  const at = vector.findIndex((type, index) => index % 2 === 0 && type === AT_PAGESZ);
  return vector[at + 1]!;
}

/** True if every page is as in the file: /proc/PID/pagemap, bits 61 (of a file), 62 (swapped) and 63 (present). */
export function isUnwritten(pid: number | "self", { address, bytes }: Range): boolean {
  const page = pageBytes();
  const pages = Buffer.alloc(Number(bytes / page) * 8);
  using file = Descriptor.open(`/proc/${pid}/pagemap`, constants.O_RDONLY);
  const got = readSync(file.fd, pages, 0, pages.length, Number(address / page) * 8);
  if (got < pages.length) return false;
  const [ofFile, swapped, present] = [0x20, 0x40, 0x80]; // of the last byte
  for (let at = 7; at < pages.length; at += 8) {
    const flags = pages[at]! & (ofFile | swapped | present);
    if ((flags & swapped) !== 0 || flags === present) return false;
  }
  return true;
}

export function unmapProgram(): void {
  const maps = readKernelFile("/proc/self/maps") ?? "";
  const parts = readOnlyParts(maps, readlinkSync("/proc/self/exe"));
  const modules = modulesOf("self", maps);
  if (modules !== undefined && isUnwritten("self", modules)) parts.push(modules);
  for (const { address, bytes } of parts) {
    check("madvise", "of the program's pages", address, bytes, MADV_DONTNEED);
  }
}
