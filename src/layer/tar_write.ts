// Writes tar headers for the archives of `save`: plain files with short names (POSIX ustar).

const block = 512;
/** The largest number in eleven octal digits. */
const octalMax = 8 ** 11 - 1;

/** The header of a file that root may read and write; size in bytes. */
export function tarHeader(name: string, size: number): Buffer {
  const header = Buffer.alloc(block);
  if (Buffer.byteLength(name) > 100) throw new Error(`too long for a tar header: ${name}`);
  const octal = (value: number, at: number, width: number) =>
    header.write(value.toString(8).padStart(width - 1, "0"), at, width - 1, "latin1");
  header.write(name, 0, 100);
  octal(0o644, 100, 8);
  octal(0, 108, 8);
  octal(0, 116, 8);
  if (size <= octalMax) octal(size, 124, 12);
  else {
    // GNU's form, which all readers support: the first bit is set, the rest is a big-endian number.
    header[124] = 0x80;
    header.writeBigUInt64BE(BigInt(size), 128);
  }
  octal(0, 136, 12); // mtime 0: archives of one image are identical
  header.write("0", 156, 1, "latin1");
  header.write("ustar\x0000", 257, 8, "latin1");
  header.fill(" ", 148, 156);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, 8, "latin1");
  return header;
}

export function tarPadding(size: number): Buffer {
  return Buffer.alloc((block - (size % block)) % block);
}

/** The end of an archive: two zero blocks. */
export const tarEnd: Uint8Array = Buffer.alloc(2 * block);
