// Reads tar as a stream: ustar, pax, GNU's long names and sparse files. It buffers only headers.
import { messageOf, CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { diskFormatOf, formatOf } from "./other_formats.ts";
import { partsMax, paxSparse, SparseBody } from "./sparse.ts";
import {
  bad,
  decimal,
  headerName,
  nameOf,
  number,
  ownerOf,
  paxRecords,
  signed,
  text,
  timeOf,
  type TarTime,
} from "./tar_fields.ts";

export type TarHeader = {
  name: string;
  link: string;
  /** "0" file, "1" hard link, "2" symlink, "3" char, "4" block, "5" folder, "6" FIFO. */
  type: string;
  mode: number;
  uid: number;
  gid: number;
  /** Of the file; a file with holes has fewer bytes in the stream. */
  size: number;
  mtime: TarTime;
  major: number;
  minor: number;
  xattrs: [name: string, value: Uint8Array][];
  /** Position of the entry's content in the stream. */
  offset: number;
  isSparse: boolean;
};

export type TarHandler = {
  entry(header: TarHeader): void;
  /** position: of the chunk in the file; gaps between chunks are holes. */
  data(chunk: Uint8Array, position: number): void;
  entryEnd(): void;
};

const block = 512;
const extensionBytesMax = 1 << 20;
/** Of the global ones, which cost time for every entry behind them; git's have a comment of 40 bytes. */
const globalBytesMax = 64 << 10;
/** Positions of the parts, 24 bytes each, in GNU's old sparse header and in the blocks after it. */
const oldParts = {
  inHeader: { at: 386, count: 4, more: 482 },
  behind: { at: 0, count: 21, more: 504 },
};

type OldSparse = { header: Buffer; offset: number; parts: number[] };

export class TarReader {
  readonly #handler: TarHandler;
  readonly #entriesMax: number;
  readonly #header = Buffer.alloc(block);
  #headerLength = 0;
  #offset = 0;
  #bodyLeft = 0;
  #position = 0;
  #padding = 0;
  #zeroBlocks = 0;
  #inEntry = false;
  #sparse: SparseBody | undefined;
  /** Parts of all sparse files. */
  #parts = 0;
  /** A header of type S whose map continues in the next block. */
  #oldSparse: OldSparse | undefined;
  #extension: { type: string; bytes: Buffer; length: number } | undefined;
  #local = new Map<string, Buffer>();
  readonly #global = new Map<string, Buffer>();
  #globalXattrs: TarHeader["xattrs"] = [];
  /** Size of the extended headers in effect. */
  #localBytes = 0;
  #globalBytes = 0;
  #longName = "";
  #longLink = "";
  #entries = 0;
  #lastName = "";

  constructor(handler: TarHandler, limits: { entriesMax: number } = { entriesMax: 4_000_000 }) {
    this.#handler = handler;
    this.#entriesMax = limits.entriesMax;
  }

  /** Reads the next bytes. @throws CriError INVALID_ARGUMENT when they are not a tar stream. */
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
    if (at > 0 && this.#offset === 2 * block && this.#zeroBlocks === 2) {
      const format = diskFormatOf(chunk.subarray(at));
      if (format !== undefined) throw bad(format);
    }
  }

  /** Skips content that is next; returns how many bytes the caller must seek over. */
  skip(): number {
    if (this.#extension !== undefined || this.#sparse !== undefined) return 0;
    const count = this.#bodyLeft;
    this.#offset += count;
    this.#bodyLeft = 0;
    if (count > 0) this.#finishBody();
    return count;
  }

  /** The last entry's padding may be missing. @throws CriError DATA_LOSS when the stream ended inside an entry. */
  end(): void {
    const isInside = this.#bodyLeft > 0 || this.#headerLength > 0;
    if (isInside || this.#oldSparse !== undefined) {
      throw new CriError("DATA_LOSS", `the tar stream is truncated${this.#where}`);
    }
  }

  get #where(): string {
    return this.#entries === 0 ? "" : ` (entry ${this.#entries} was ${quoted(this.#lastName)})`;
  }

  #collectHeader(chunk: Buffer, at: number): number {
    const count = Math.min(block - this.#headerLength, chunk.length - at);
    chunk.copy(this.#header, this.#headerLength, at, at + count);
    this.#headerLength += count;
    if (this.#headerLength < block) return at + count;
    this.#headerLength = 0;
    try {
      if (this.#oldSparse === undefined) this.#parseHeader(this.#header, this.#offset + count);
      else {
        const old = { ...this.#oldSparse, offset: this.#offset + count };
        this.#oldSparseParts(old, this.#header, oldParts.behind);
      }
    } catch (error) {
      if (!messageOf(error).startsWith("not a valid tar stream")) throw error;
      const isFirst = this.#offset + count === block;
      const format = isFirst ? formatOf(this.#header) : undefined;
      if (format !== undefined) throw bad(format);
      throw new CriError("INVALID_ARGUMENT", messageOf(error) + this.#where, { cause: error });
    }
    return at + count;
  }

  #body(chunk: Buffer, at: number): number {
    const count = Math.min(this.#bodyLeft, chunk.length - at);
    const part = chunk.subarray(at, at + count);
    if (this.#extension !== undefined) {
      part.copy(this.#extension.bytes, this.#extension.length);
      this.#extension.length += count;
    } else if (this.#sparse !== undefined) {
      this.#sparse.push(part, (bytes, position) => this.#handler.data(bytes, position));
    } else this.#handler.data(part, this.#position);
    this.#position += count;
    this.#bodyLeft -= count;
    if (this.#bodyLeft === 0) this.#finishBody();
    return at + count;
  }

  #startBody(size: number): void {
    this.#bodyLeft = size;
    this.#position = 0;
    this.#padding = (block - (size % block)) % block;
    if (size === 0) this.#finishBody();
  }

  #finishBody(): void {
    const extension = this.#extension;
    this.#extension = undefined;
    if (extension === undefined) {
      this.#sparse?.end();
      this.#sparse = undefined;
      if (this.#inEntry) this.#handler.entryEnd();
      this.#inEntry = false;
    } else if (extension.type === "L") this.#longName = text(extension.bytes);
    else if (extension.type === "K") this.#longLink = text(extension.bytes);
    else if (extension.type === "x") putAll(this.#local, extension.bytes);
    else if (extension.length > 0) {
      putAll(this.#global, extension.bytes);
      this.#globalXattrs = xattrsIn(this.#global);
    }
  }

  #parseHeader(header: Buffer, offset: number): void {
    const sum = checksum(header);
    if (sum === 8 * 32) {
      this.#zeroBlocks++;
      return;
    }
    this.#zeroBlocks = 0;
    const stated = number(header, 148, 8);
    if (sum !== stated && signedChecksum(header) !== stated) {
      throw bad("a header's checksum is wrong");
    }
    const type = header[156] === 0 ? "0" : String.fromCharCode(header[156]!);
    if ("xgLK".includes(type)) this.#startExtension(type, number(header, 124, 12));
    else if (type === "S") {
      const old = { header: Buffer.from(header), offset, parts: [] };
      this.#oldSparseParts(old, header, oldParts.inHeader);
    } else this.#startEntry(header, { type, offset });
  }

  #startExtension(type: string, size: number): void {
    if (type === "g") this.#globalBytes += size;
    else this.#localBytes += size;
    if (this.#localBytes > extensionBytesMax) {
      throw bad(`extended headers of more than ${extensionBytesMax} bytes`);
    }
    if (this.#globalBytes > globalBytesMax) {
      throw bad(`global extended headers of more than ${globalBytesMax} bytes`);
    }
    this.#extension = { type, bytes: Buffer.alloc(size), length: 0 };
    this.#startBody(size);
  }

  #oldSparseParts(old: OldSparse, from: Buffer, o: { at: number; count: number; more: number }) {
    for (let i = 0; i < o.count; i++) {
      const at = o.at + i * 24;
      if (from[at] === 0) break;
      old.parts.push(number(from, at, 12), number(from, at + 12, 12));
    }
    if (old.parts.length > partsMax * 2) throw bad(`a sparse map of over ${partsMax} parts`);
    this.#oldSparse = from[o.more] === 0 ? undefined : old;
    if (this.#oldSparse !== undefined) return;
    this.#startEntry(old.header, { type: "0", offset: old.offset, parts: old.parts });
  }

  #startEntry(header: Buffer, o: { type: string; offset: number; parts?: number[] }): void {
    if (this.#entries === this.#entriesMax) {
      const message = `it has more than ${this.#entriesMax} entries`;
      throw new CriError("RESOURCE_EXHAUSTED", message);
    }
    const { entry, stored } = this.#entryOf(header, o);
    this.#entries++;
    this.#lastName = entry.name;
    this.#local = new Map();
    this.#localBytes = 0;
    this.#longName = this.#longLink = "";
    this.#inEntry = true;
    this.#handler.entry(entry);
    this.#startBody(stored);
  }

  /** The layer manifest stores each part, so the layer's limit of entries applies to parts, too. */
  #countParts(more: number): void {
    this.#parts += more;
    if (this.#parts <= this.#entriesMax) return;
    const message = `its sparse files have more than ${this.#entriesMax} parts together (layer-max-entries)`;
    throw new CriError("RESOURCE_EXHAUSTED", message);
  }

  #pax(key: string): string | undefined {
    const value = this.#local.get(key) ?? this.#global.get(key);
    return value === undefined || value.length === 0 ? undefined : nameOf(value);
  }

  #paxNumber(key: string, otherwise: number): number {
    const value = this.#pax(key);
    return value === undefined ? otherwise : decimal(value, key);
  }

  #entryOf(
    header: Buffer,
    { type, offset, parts }: { type: string; offset: number; parts?: number[] },
  ): { entry: TarHeader; stored: number } {
    const pax = (key: string) => this.#pax(key);
    const sparse = paxSparse(pax);
    const name = sparse?.name ?? pax("path") ?? (this.#longName || headerName(header));
    const xattrs = [...this.#globalXattrs, ...xattrsIn(this.#local)];
    const uid = ownerOf(pax("uid") ?? signed(header, 108, 8), "uid");
    const gid = ownerOf(pax("gid") ?? signed(header, 116, 8), "gid");
    const isFile = type === "0" || type === "7";
    const stored = "123456".includes(type) ? 0 : this.#paxNumber("size", number(header, 124, 12));
    const count = (more: number) => this.#countParts(more);
    if (parts !== undefined) {
      const size = number(header, 483, 12);
      this.#sparse = new SparseBody(name, { size, stored, parts, count });
    } else if (sparse !== undefined && isFile) {
      const size = decimal(sparse.size, "a sparse file's size");
      const map = sparse.map === "" ? [] : sparse.map?.split(",");
      const known = map?.map((digits) => decimal(digits, "a sparse map's number"));
      this.#sparse = new SparseBody(name, { size, stored, parts: known, count });
    }
    const entry = {
      name,
      // Before ustar, only a trailing slash marked a folder.
      type: isFile && name.endsWith("/") ? "5" : isFile ? "0" : type,
      link: pax("linkpath") ?? (this.#longLink || text(header.subarray(157, 257))),
      mode: number(header, 100, 8) & 0o7777,
      uid,
      gid,
      size: this.#sparse?.size ?? stored,
      mtime: timeOf(pax("mtime") ?? signed(header, 136, 12)),
      major: number(header, 329, 8),
      minor: number(header, 337, 8),
      xattrs,
      offset,
      isSparse: this.#sparse !== undefined,
    };
    return { entry, stored };
  }
}

function putAll(into: Map<string, Buffer>, records: Buffer): void {
  const parts: Buffer[] = [];
  for (const [key, value] of paxRecords(records)) {
    // Form 0.0 repeats two keys for each part of a sparse file; form 0.1 has one key for all parts.
    if (key === "GNU.sparse.offset" || key === "GNU.sparse.numbytes") parts.push(value);
    else into.set(key, value);
  }
  if (parts.length > 0) into.set("GNU.sparse.map", Buffer.from(parts.join(",")));
}

function xattrsIn(records: Map<string, Buffer>): TarHeader["xattrs"] {
  const xattrs: TarHeader["xattrs"] = [];
  for (const [key, value] of records) {
    if (key.startsWith("SCHILY.xattr.")) xattrs.push([key.slice(13), value]);
  }
  return xattrs;
}

/** Of tars made where a char is signed: Sun's tar, old Unixes. */
function signedChecksum(header: Buffer): number {
  let sum = checksum(header);
  for (let i = 0; i < block; i++) {
    if (header[i]! >= 0x80 && (i < 148 || i >= 156)) sum -= 256;
  }
  return sum;
}

function checksum(header: Buffer): number {
  let sum = 8 * 32; // the checksum's own field counts as spaces
  for (let i = 0; i < 148; i++) sum += header[i]!;
  for (let i = 156; i < block; i++) sum += header[i]!;
  return sum;
}
