// Recognizes files that are no tar by their first bytes, so that an error can say what they are.

const compressions: [name: string, magic: string][] = [
  ["xz", "\xfd7zXZ\0"],
  ["bzip2", "BZh"],
  ["lz4", "\x04\x22\x4d\x18"],
  ["lzip", "LZIP"],
  ["lzma", "\x5d\0\0"],
  ["compress", "\x1f\x9d"],
  ["gzip a second time", "\x1f\x8b"],
  ["zstd a second time", "\x28\xb5\x2f\xfd"],
];
const others: [name: string, magic: string][] = [
  ["a squashfs file system", "hsqs"],
  ["a zip archive", "PK\x03\x04"],
  ["a 7-Zip archive", "7z\xbc\xaf\x27\x1c"],
  ["a deb package", "!<arch>\n"],
  ["an rpm package", "\xed\xab\xee\xdb"],
  ["a Singularity image", "#!/usr/bin/env run-singularity"],
  ["a web page", "<!DOCTYPE"],
  ["a web page", "<html"],
  ["a disk image (qcow2)", "QFI\xfb"],
];

/** Names the format of the data; undefined if it is unknown. */
export function formatOf(head: Buffer): string | undefined {
  const text = head.toString("latin1", 0, 32);
  const isOne = ([, magic]: [string, string]) => text.toLowerCase().startsWith(magic.toLowerCase());
  const compression = compressions.find(isOne)?.[0];
  if (compression !== undefined) {
    return `it is compressed with ${compression}, and only gzip and zstd can be read: compress it again`;
  }
  const other = others.find(isOne)?.[0];
  return other === undefined ? undefined : `it is ${other}`;
}

const erofsMagic = Buffer.from([0xe2, 0xe1, 0xf5, 0xe0]);
const ext4Magic = Buffer.from([0x53, 0xef]);

/**
 * Recognizes file systems whose first kilobyte is zeros, left for boot loaders: for a tar reader they are an empty tar,
 * and what follows does not count. rest: the bytes behind the first kilobyte.
 */
export function diskFormatOf(rest: Buffer): string | undefined {
  if (rest.subarray(0, 4).equals(erofsMagic)) return "it is an erofs file system";
  return rest.subarray(56, 58).equals(ext4Magic) ? "it is an ext4 file system" : undefined;
}
