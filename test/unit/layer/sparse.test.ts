// Tests sparse files in tar streams: maps in headers and in data, pushed in chunks of any size.
import { describe, expect, test } from "bun:test";
import { partsMax, paxSparse, SparseBody } from "../../../src/layer/sparse.ts";

type Body = { size?: number; stored?: number; parts?: number[] | undefined };

function body({ size = 100, stored = 8, parts }: Body, count: (parts: number) => void = () => {}) {
  return new SparseBody("f", { size, stored, parts, count });
}

/** Pushes text in chunks, and returns what goes where. */
function spread(sparse: SparseBody, bytes: string, step: number): Map<number, string> {
  const written = new Map<number, string>();
  for (let at = 0; at < bytes.length; at += step) {
    sparse.push(Buffer.from(bytes.slice(at, at + step)), (chunk, position) => {
      for (const [i, byte] of chunk.entries()) written.set(position + i, String.fromCharCode(byte));
    });
  }
  sparse.end();
  return written;
}

describe.each([1, 3, 600])("SparseBody, in chunks of %d", (step) => {
  test("writes data to the parts' positions", () => {
    const written = spread(body({ parts: [2, 3, 50, 0, 90, 5] }), "abcdefgh", step);
    expect([...written.keys()]).toEqual([2, 3, 4, 90, 91, 92, 93, 94]);
    expect([...written.values()].join("")).toBe("abcdefgh");
  });

  test("reads the map of pax form 1.0 from the data", () => {
    const map = "2\n2\n3\n90\n5\n".padEnd(512, "\0");
    const written = spread(body({ stored: 512 + 8 }), `${map}abcdefgh`, step);
    expect([...written.keys()]).toEqual([2, 3, 4, 90, 91, 92, 93, 94]);
    expect([...written.values()].join("")).toBe("abcdefgh");
  });

  test.each([
    ["no number", "nonsense\n", "nonsense"],
    ["a line without an end", "1".repeat(30), "no valid sparse map"],
    ["too many parts", `${partsMax + 1}\n`, "too many parts"],
    ["a truncated map", "2\n0\n", "truncated"],
  ])("refuses a map with %s", (_, map, why) => {
    expect(() => spread(body({ stored: 512 }), map, step)).toThrow(why);
  });
});

describe("SparseBody", () => {
  test.each<[string, Body, string]>([
    ["overlapping parts", { parts: [8, 4, 0, 4] }, "overlap"],
    ["a part beyond the file", { parts: [98, 8] }, "outside"],
    ["less data than stored", { parts: [0, 4] }, "has 8 bytes; its sparse map lists 4"],
    ["half a part", { parts: [0, 8, 9] }, "half a part"],
    ["a file of 2^50 bytes", { size: 2 ** 50, parts: [0, 8] }, "is a file of"],
    [
      "too many parts",
      { parts: Array.from({ length: partsMax * 2 + 2 }, () => 0) },
      "too many parts",
    ],
  ])("refuses %s", (_, o, why) => expect(() => body(o)).toThrow(why));

  test("counts its parts, and passes on the error of the count", () => {
    let counted = 0;
    body({ parts: [0, 4, 10, 4] }, (parts) => (counted += parts));
    expect(counted).toBe(2);
    const full = () => {
      throw new Error("full");
    };
    expect(() => body({ parts: [0, 8] }, full)).toThrow("full");
  });
});

describe("paxSparse()", () => {
  const of = (records: Record<string, string>) => paxSparse((key) => records[key]);

  test("is undefined for a file that is not sparse", () => expect(of({})).toBeUndefined());

  test.each<[string, Record<string, string>, ReturnType<typeof paxSparse>]>([
    [
      "0.1",
      { "GNU.sparse.size": "9", "GNU.sparse.map": "0,1" },
      { name: undefined, size: "9", map: "0,1" },
    ],
    ["0.0 without parts", { "GNU.sparse.size": "9" }, { name: undefined, size: "9", map: "" }],
    [
      "1.0",
      { "GNU.sparse.major": "1", "GNU.sparse.realsize": "9", "GNU.sparse.name": "n" },
      { name: "n", size: "9", map: undefined },
    ],
  ])("reads form %s", (_, records, result) => expect(of(records)).toEqual(result));

  test("refuses form 1.0 without a size", () => {
    expect(() => of({ "GNU.sparse.major": "1" })).toThrow("without its size");
  });
});
