// A streaming tar reader: ustar, pax and GNU's long names. It buffers nothing but headers.
import { CriError } from "../base/errors.ts";

export type TarHeader = {
  name: string;
  link: string;
  /** "0" file, "1" hard link, "2" symlink, "3" char, "4" block, "5" folder, "6" FIFO. */
  type: string;
  mode: number;
  uid: number;
  gid: number;
  size: number;
  /** Seconds since the epoch, with a fraction where pax has one. */
  mtime: number;
  major: number;
  minor: number;
  xattrs: [name: string, value: Uint8Array][];
  /** Where the entry's content starts in the stream. */
  offset: number;
};

export type TarHandler = {
  entry(header: TarHeader): void;
  data(chunk: Uint8Array): void;
  entryEnd(): void;
};

const block = 512;
const extensionBytesMax = 1 << 20;
const entriesMax = 4_000_000;

export class TarReader {
  readonly #handler: TarHandler;
  readonly #header = Buffer.alloc(block);
  #headerLength = 0;
  #offset = 0;
  #bodyLeft = 0;
  #padding = 0;
  #zeroBlocks = 0;
  #inEntry = false;
  #extension: { type: string; bytes: Buffer; length: number } | undefined;
  #local = new Map<string, Buffer>();
  readonly #global = new Map<string, Buffer>();
  /** What the extended headers that still count take. */
  #localBytes = 0;
  #globalBytes = 0;
  #longName = "";
  #longLink = "";
  #entries = 0;

  constructor(handler: TarHandler) {
    this.#handler = handler;
  }

  /** Takes the next bytes. @throws CriError INVALID_ARGUMENT when they are no tar. */
  push(bytes: Uint8Array): void {
    const chunk = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    while (at < chunk.length && this.#zeroBlocks < 2) {
      const before = at;
      if (this.#bodyLeft > 0) at = this.#body(chunk, at);
      else if (this.#padding > 0) {
        const count = Math.min(this.#padding, chunk.length - at);
        this.#padding -= count;
        at += count;
      } else at = this.#collectHeader(chunk, at);
      this.#offset += at - before;
    }
  }

  /** How many of the next bytes are content or padding, which a reader of a file may seek over. */
  get skippable(): number {
    return this.#extension === undefined ? this.#bodyLeft + this.#padding : 0;
  }

  /** Pass over bytes that were not pushed; at most `skippable`. */
  skip(count: number): void {
    const ofBody = Math.min(count, this.#bodyLeft);
    this.#offset += count;
    this.#padding -= count - ofBody;
    if (ofBody > 0 && (this.#bodyLeft -= ofBody) === 0) this.#finishBody();
  }

  /** @throws CriError DATA_LOSS when the stream ended inside an entry. */
  end(): void {
    if (this.#bodyLeft > 0 || this.#headerLength > 0 || this.#padding > 0) {
      throw new CriError("DATA_LOSS", "the tar stream is cut off");
    }
  }

  #collectHeader(chunk: Buffer, at: number): number {
    const count = Math.min(block - this.#headerLength, chunk.length - at);
    chunk.copy(this.#header, this.#headerLength, at, at + count);
    this.#headerLength += count;
    if (this.#headerLength === block) {
      this.#headerLength = 0;
      this.#parseHeader(this.#header, this.#offset + count);
    }
    return at + count;
  }

  #body(chunk: Buffer, at: number): number {
    const count = Math.min(this.#bodyLeft, chunk.length - at);
    const part = chunk.subarray(at, at + count);
    if (this.#extension === undefined) this.#handler.data(part);
    else {
      part.copy(this.#extension.bytes, this.#extension.length);
      this.#extension.length += count;
    }
    this.#bodyLeft -= count;
    if (this.#bodyLeft === 0) this.#finishBody();
    return at + count;
  }

  #startBody(size: number): void {
    this.#bodyLeft = size;
    this.#padding = (block - (size % block)) % block;
    if (size === 0) this.#finishBody();
  }

  #finishBody(): void {
    const extension = this.#extension;
    this.#extension = undefined;
    if (extension === undefined) {
      if (this.#inEntry) this.#handler.entryEnd();
      this.#inEntry = false;
    } else if (extension.type === "L") this.#longName = text(extension.bytes);
    else if (extension.type === "K") this.#longLink = text(extension.bytes);
    else {
      const into = extension.type === "g" ? this.#global : this.#local;
      for (const [key, value] of paxRecords(extension.bytes)) into.set(key, value);
    }
  }

  #parseHeader(header: Buffer, offset: number): void {
    const sum = checksum(header);
    if (sum === 8 * 32) {
      this.#zeroBlocks++;
      return;
    }
    this.#zeroBlocks = 0;
    if (sum !== number(header, 148, 8)) throw bad("a header's checksum is wrong");
    const type = header[156] === 0 ? "0" : String.fromCharCode(header[156]!);
    const size = number(header, 124, 12);
    if ("xgLK".includes(type)) {
      if (type === "g") this.#globalBytes += size;
      else this.#localBytes += size;
      if (Math.max(this.#globalBytes, this.#localBytes) > extensionBytesMax) {
        throw bad(`extended headers of more than ${extensionBytesMax} bytes`);
      }
      this.#extension = { type, bytes: Buffer.alloc(size), length: 0 };
      this.#startBody(size);
      return;
    }
    if (++this.#entries > entriesMax) throw bad(`more than ${entriesMax} entries`);
    const entry = this.#entryOf(header, type, size, offset);
    this.#local = new Map();
    this.#localBytes = 0;
    this.#longName = this.#longLink = "";
    this.#inEntry = true;
    this.#handler.entry(entry);
    this.#startBody(entry.size);
  }

  #entryOf(header: Buffer, type: string, size: number, offset: number): TarHeader {
    const pax = (key: string) => {
      const value = this.#local.get(key) ?? this.#global.get(key);
      return value === undefined || value.length === 0 ? undefined : value.toString("utf8");
    };
    const paxNumber = (key: string, otherwise: number) => {
      const value = pax(key);
      return value === undefined ? otherwise : decimal(value, key);
    };
    const isUstar = header.toString("latin1", 257, 263) === "ustar\0";
    const prefix = isUstar ? text(header.subarray(345, 500)) : ""; // GNU keeps times there
    const short = text(header.subarray(0, 100));
    const ofHeader = prefix === "" ? short : `${prefix}/${short}`;
    const name = pax("path") ?? (this.#longName || ofHeader);
    const xattrs: TarHeader["xattrs"] = [];
    for (const [key, value] of [...this.#global, ...this.#local]) {
      if (key.startsWith("SCHILY.xattr.")) xattrs.push([key.slice(13), value]);
      if (key.startsWith("GNU.sparse.")) throw bad(`${name} is a sparse entry, not supported`);
    }
    const mtime = Number(pax("mtime") ?? number(header, 136, 12));
    if (!Number.isFinite(mtime)) throw bad(`${name} has no valid time`);
    const uid = paxNumber("uid", number(header, 108, 8));
    const gid = paxNumber("gid", number(header, 116, 8));
    if (uid > 0xfffffffe || gid > 0xfffffffe) throw bad(`${name} has no valid owner`);
    const isFile = type === "0" || type === "7";
    return {
      name,
      // Before ustar, a trailing slash was all that told a folder.
      type: isFile && name.endsWith("/") ? "5" : isFile ? "0" : type,
      link: pax("linkpath") ?? (this.#longLink || text(header.subarray(157, 257))),
      mode: number(header, 100, 8) & 0o7777,
      uid,
      gid,
      size: "123456".includes(type) ? 0 : paxNumber("size", size),
      mtime,
      major: number(header, 329, 8),
      minor: number(header, 337, 8),
      xattrs,
      offset,
    };
  }
}

function bad(what: string): CriError {
  return new CriError("INVALID_ARGUMENT", `not a valid tar stream: ${what}`);
}

function checksum(header: Buffer): number {
  let sum = 8 * 32; // the checksum's own field counts as spaces
  for (let i = 0; i < 148; i++) sum += header[i]!;
  for (let i = 156; i < block; i++) sum += header[i]!;
  return sum;
}

function text(field: Buffer): string {
  const end = field.indexOf(0);
  return field.toString("utf8", 0, end < 0 ? field.length : end);
}

/** Octal digits, or GNU's big-endian binary with the first bit set. */
function number(header: Buffer, at: number, length: number): number {
  let value = 0;
  if (header[at]! >= 0x80) {
    if (header[at] !== 0x80) throw bad("a negative or too large number");
    for (let i = at + 1; i < at + length; i++) value = value * 256 + header[i]!;
  } else {
    const digits = text(header.subarray(at, at + length)).trim();
    if (!/^[0-7]*$/.test(digits)) throw bad(`the number ${JSON.stringify(digits)}`);
    value = digits === "" ? 0 : Number.parseInt(digits, 8);
  }
  if (!Number.isSafeInteger(value)) throw bad("a number that is too large");
  return value;
}

function decimal(value: string, key: string): number {
  const parsed = Number(value);
  if (!/^\d+$/.test(value) || !Number.isSafeInteger(parsed)) {
    throw bad(`${key} is ${JSON.stringify(value)}`);
  }
  return parsed;
}

/** pax records are "LENGTH key=value\n", where LENGTH counts the whole record. */
function* paxRecords(bytes: Buffer): Generator<[string, Buffer]> {
  let at = 0;
  while (at < bytes.length) {
    const space = bytes.indexOf(0x20, at);
    if (space < 0) throw bad("a pax record without a length");
    const end = at + decimal(bytes.toString("latin1", at, space), "a pax record's length");
    const equals = bytes.indexOf(0x3d, space);
    if (end > bytes.length || equals < 0 || equals >= end || bytes[end - 1] !== 0x0a) {
      throw bad("a pax record that does not end where it says");
    }
    yield [bytes.toString("utf8", space + 1, equals), bytes.subarray(equals + 1, end - 1)];
    at = end;
  }
}
