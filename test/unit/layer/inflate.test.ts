// Tests Inflate with chunks of many sizes: whole streams, truncated ones, and ones with trailing bytes.
import { describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import * as zlib from "node:zlib";
import { Inflate } from "../../../src/layer/inflate.ts";
import { failure } from "../../expect.ts";

const plain = Buffer.concat([randomBytes(3000), Buffer.alloc(300_000, "abc"), randomBytes(900)]);

// The types of our minimum Node version lack them.
const { zstdCompressSync, constants } = zlib as unknown as {
  zstdCompressSync: (data: Uint8Array, options?: { params: Record<number, number> }) => Buffer;
  constants: { ZSTD_c_checksumFlag: number; ZSTD_c_contentSizeFlag: number };
};
const { ZSTD_c_checksumFlag, ZSTD_c_contentSizeFlag } = constants;
/** A skippable frame, as pzstd writes before each frame. */
const skippable = Buffer.from("502a4d1804000000abcd0000", "hex");
const half = plain.length >> 1;
const halves = [plain.subarray(0, half), plain.subarray(half)];

const forms: [string, Buffer][] = [
  ["gzip", zlib.gzipSync(plain)],
  ["gzip in two members", Buffer.concat(halves.map((part) => zlib.gzipSync(part)))],
  ["zstd", zstdCompressSync(plain)],
  ["zstd in two frames", Buffer.concat(halves.map((part) => zstdCompressSync(part)))],
  ["zstd with checksum", zstdCompressSync(plain, { params: { [ZSTD_c_checksumFlag]: 1 } })],
  ["zstd of unknown size", zstdCompressSync(plain, { params: { [ZSTD_c_contentSizeFlag]: 0 } })],
  [
    "zstd with skippable frames",
    Buffer.concat([skippable, ...halves.flatMap((part) => [zstdCompressSync(part), skippable])]),
  ],
];
const stepBytes = [1, 1000, 65_537, 256 << 10];

async function inflate(packed: Buffer, step: number): Promise<Buffer> {
  const parts: Buffer[] = [];
  const inflate = new Inflate((chunk) => parts.push(Buffer.from(chunk)));
  for (let at = 0; at < packed.length; at += step) {
    await inflate.push(packed.subarray(at, at + step));
  }
  await inflate.end();
  return Buffer.concat(parts);
}

test.each([0, 1, 3, 4, 5000])("%d bytes of plain data pass through", async (length) => {
  const bytes = Buffer.alloc(length, "plain");
  for (const step of [1, 2, 4096]) expect(await inflate(bytes, step)).toEqual(bytes);
});

describe.each(forms)("%s", (_, packed) => {
  test("is decompressed, also with trailing zeros", async () => {
    for (const zeros of [0, 1, 4, 512, 300_000]) {
      const padded = Buffer.concat([packed, Buffer.alloc(zeros)]);
      for (const step of zeros > 4 ? stepBytes.slice(1) : stepBytes) {
        expect((await inflate(padded, step)).equals(plain)).toBe(true);
      }
    }
  });

  test("is DATA_LOSS when truncated or with other trailing bytes", async () => {
    const trailing = ["x", "garbage", "\0x", `${"\0".repeat(600)}x`].map((text) =>
      Buffer.from(text),
    );
    const wrong = [
      ...[...trailing, Buffer.concat([Buffer.alloc(8), packed])].map((rest) =>
        Buffer.concat([packed, rest]),
      ),
      ...[5, packed.length >> 1, packed.length - 1].map((end) => packed.subarray(0, end)),
    ];
    for (const bytes of wrong) {
      for (const step of stepBytes.slice(1)) {
        expect((await failure(inflate(bytes, step))).code).toBe("DATA_LOSS");
      }
    }
  });
});
