// Finds sections of executables (ELF-64, little-endian: elf(5)).
import { constants, readSync } from "node:fs";
import { Descriptor } from "./descriptor.ts";

/** A part of a file, in bytes. */
export type Section = { offset: number; bytes: number };

/** Returns the section of that name; undefined where there is none, or if the file is no such executable. */
export function sectionOf(path: string, name: string): Section | undefined {
  using file = Descriptor.open(path, constants.O_RDONLY);
  const part = (offset: number, bytes: number) => {
    const buffer = Buffer.alloc(bytes);
    return buffer.subarray(0, readSync(file.fd, buffer, 0, bytes, offset));
  };
  const header = part(0, 64);
  if (header.length < 64 || header.toString("latin1", 0, 6) !== "\x7fELF\x02\x01") return undefined;
  const [size, count, nameTable] = [58, 60, 62].map((at) => header.readUInt16LE(at)) as [
    number,
    number,
    number,
  ];
  const table = part(Number(header.readBigUInt64LE(40)), size * count);
  if (nameTable >= count || table.length < size * count) return undefined; // stripped, or cut off
  const entry = (index: number) => table.subarray(index * size, (index + 1) * size);
  const placeOf = (one: Buffer): Section => ({
    offset: Number(one.readBigUInt64LE(24)),
    bytes: Number(one.readBigUInt64LE(32)),
  });
  const { offset, bytes } = placeOf(entry(nameTable));
  const names = part(offset, bytes);
  for (let index = 0; index < count; index++) {
    const at = entry(index).readUInt32LE(0);
    if (names.toString("latin1", at, names.indexOf(0, at)) === name) return placeOf(entry(index));
  }
  return undefined;
}
