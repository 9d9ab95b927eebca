// Reads and writes SPDY/3.1 header blocks (section 2.6.10): pairs of name and value, compressed in one zlib
// stream per direction, with a dictionary that both sides know.
import { constants, createInflate, type Inflate } from "node:zlib";

// Each name has its length before it in the dictionary; "_" stands for a space.
const names = `options head post put delete trace accept accept-charset accept-encoding accept-language
accept-ranges age allow authorization cache-control connection content-base content-encoding
content-language content-length content-location content-md5 content-range content-type date etag
expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since
last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer
retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate
method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin`;
const tail =
  "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505" +
  "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request" +
  "401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented" +
  "503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, " +
  "Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml," +
  "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch" +
  "charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

export type Headers = Record<string, string>;

/** Returns the dictionary of SPDY/3 and 3.1. */
export function spdyDictionary(): Buffer {
  const words = names.split(/\s+/).map((name) => withLength(name.replace("_", " ")));
  return Buffer.concat([...words, Buffer.from(tail)]);
}

function withLength(text: string): Buffer {
  const bytes = Buffer.from(text);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
}

/** Writes header blocks without compression, as stored deflate blocks: they have only a few bytes. */
export class HeaderWriter {
  #begun = false;

  block(headers: Headers): Buffer {
    const pairs = Object.entries(headers);
    const count = Buffer.alloc(4);
    count.writeUInt32BE(pairs.length);
    const plain = Buffer.concat([
      count,
      ...pairs.flatMap(([name, value]) => [withLength(name.toLowerCase()), withLength(value)]),
    ]);
    const stored = Buffer.alloc(5);
    stored.writeUInt16LE(plain.length, 1);
    stored.writeUInt16LE(plain.length ^ 0xffff, 3);
    const begin = this.#begun ? [] : [Buffer.from([0x78, 0x01])];
    this.#begun = true;
    // An empty stored block is a sync flush: some decompressors return the data only after it.
    return Buffer.concat([...begin, stored, plain, Buffer.from([0, 0, 0, 0xff, 0xff])]);
  }
}

/** Bytes of a header block after decompression, and its headers: kubelets and clients send three in 100 bytes. */
const blockBytesMax = 8 << 10;
const headersMax = 64;

/** Reads header blocks in the order in which they were received; calls of read() must not overlap. */
export class HeaderReader implements Disposable {
  readonly #inflate: Inflate = createInflate({
    dictionary: spdyDictionary(),
    chunkSize: 2 << 10, // a stream that waits keeps a buffer of this size, by default 16 KiB
    finishFlush: constants.Z_SYNC_FLUSH,
  });
  #chunks: Buffer[] = [];
  #bytes = 0;
  #failed: PromiseWithResolvers<never> = Promise.withResolvers();

  constructor() {
    this.#failed.promise.catch(() => {});
    this.#inflate.on("error", (error) => this.#failed.reject(error));
    this.#inflate.on("data", (chunk: Buffer) => {
      this.#bytes += chunk.length;
      if (this.#bytes > blockBytesMax) {
        this.#failed.reject(new Error(`a SPDY header block of more than ${blockBytesMax} bytes`));
        this.#inflate.destroy();
      } else this.#chunks.push(chunk);
    });
  }

  /** Reads a block; names are in lower case. @throws for an invalid block, or one over the limit. */
  async read(block: Uint8Array): Promise<Headers> {
    [this.#chunks, this.#bytes] = [[], 0];
    const flushed = new Promise<void>((resolve) => {
      this.#inflate.write(block);
      this.#inflate.flush(constants.Z_SYNC_FLUSH, () => resolve());
    });
    await Promise.race([flushed, this.#failed.promise]);
    return pairsOf(Buffer.concat(this.#chunks));
  }

  /** Of the block that was read last, after decompression. */
  get blockBytes(): number {
    return this.#bytes;
  }

  [Symbol.dispose](): void {
    this.#inflate.destroy();
  }
}

function pairsOf(plain: Buffer): Headers {
  const headers: Headers = {};
  let at = 4;
  const text = () => {
    const length = plain.readUInt32BE(at);
    if (length > plain.length - at - 4) throw new Error("a SPDY header block is cut off");
    at += 4 + length;
    return plain.toString("latin1", at - length, at);
  };
  const count = plain.readUInt32BE(0);
  if (count > headersMax) {
    throw new Error(`a SPDY header block of ${count} headers: at most ${headersMax}`);
  }
  for (let left = count; left > 0; left--) {
    const name = text().toLowerCase();
    headers[name] = text();
  }
  return headers;
}
