// Tests encoded lists: cached items, and batches of bounded size.
import { describe, expect, test } from "bun:test";
import { Encoded, recordItems, sendItems } from "../../../src/cri/encoded_lists.ts";
import { runtime } from "../../../src/proto/messages.js";

const { Container, ListContainersResponse } = runtime.v1;
const call = { signal: new AbortController().signal };

async function batchesOf(items: Uint8Array[], signal = call.signal): Promise<number[]> {
  const sizes: number[] = [];
  await sendItems(items, { signal }, async ({ bytes }) => void sizes.push(bytes.length));
  return sizes;
}

describe("recordItems()", () => {
  test("encodes a record once, and a changed record again", () => {
    let encodings = 0;
    const itemOf = recordItems(Container, ({ id }: { id: string }) => {
      encodings++;
      return { id };
    });
    const record = { id: "a" };
    expect(itemOf(record)).toBe(itemOf(record));
    expect(encodings).toBe(1);
    const { bytes } = new Encoded([itemOf(record), itemOf({ id: "b" })]);
    expect(ListContainersResponse.decode(bytes).containers.map(({ id }) => id)).toEqual(["a", "b"]);
    expect(encodings).toBe(2);
  });
});

describe("sendItems()", () => {
  const item = (bytes: number) => new Uint8Array(bytes);

  test("sends nothing for an empty list", async () => {
    expect(await batchesOf([])).toEqual([]);
  });

  test("fills batches up to 1 MiB, and sends a larger item by itself", async () => {
    const half = 512 << 10;
    expect(await batchesOf([item(half), item(half), item(1)])).toEqual([1 << 20, 1]);
    expect(await batchesOf([item(half), item(half + 1)])).toEqual([half, half + 1]);
    expect(await batchesOf([item(2 << 20), item(1)])).toEqual([2 << 20, 1]);
  });

  test("ends when the call is cancelled", async () => {
    const cancelled = AbortSignal.abort(new DOMException("cancelled", "AbortError"));
    expect(batchesOf([item(1)], cancelled)).rejects.toMatchObject({ code: "CANCELLED" });
  });
});
