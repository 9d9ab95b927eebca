// Tests which memory limits are refused because a cgroup v2 holds more.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { heldMemory, requireMemoryRoom } from "../../../src/node/memory_room.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const stat =
  "anon 60\nfile 30\nshmem 5\ninactive_anon 50\nactive_anon 15\ninactive_file 20\nactive_file 5\nslab_reclaimable 2\n";
const noSwap = "Filename\tType\tSize\tUsed\tPriority\n";
const oneSwap = `${noSwap}/dev/sda2 partition 1000 0 -2\n`;

const held = (files: Record<string, string>) =>
  heldMemory({ unified: "/c" }, (path) => files[path.replace("/c/memory.", "")]);

test.each([
  ["no swap device", noSwap, { "swap.current": "0\n", "swap.max": "max\n" }, 73n],
  ["no swap accounting", oneSwap, {}, 73n],
  ["no swap for the cgroup", oneSwap, { "swap.current": "0\n", "swap.max": "0\n" }, 73n],
  ["swap in part", oneSwap, { "swap.current": "10\n", "swap.max": "30\n" }, 53n],
  ["a lower swap limit", oneSwap, { "swap.current": "10\n", "swap.max": "5\n" }, 73n],
  ["swap without limit", oneSwap, { "swap.current": "0\n", "swap.max": "max\n" }, 8n],
])(
  "with %s a cgroup holds what is neither in files nor fits into swap",
  (_, swaps, swap, bytes) => {
    expect(held({ current: "100\n", stat, "/proc/swaps": swaps, ...swap })).toBe(bytes);
  },
);

test("what a removed cgroup and one of v1 hold is unknown", () => {
  expect(held({})).toBeUndefined();
  expect(held({ current: "100\n" })).toBeUndefined();
  expect(heldMemory({ memory: "/c" }, () => "100\n")).toBeUndefined();
});

const folder = mkdtempSync(join(tmpdir(), "isulad-room-"));
afterAll(() => rmSync(folder, { recursive: true }));
writeFileSync(join(folder, "memory.current"), "100\n");
writeFileSync(join(folder, "memory.stat"), stat);

const resources = (limit?: bigint) => (limit === undefined ? {} : { memory: { limit } });
const change = (old: bigint | undefined, limit: bigint | undefined) =>
  requireMemoryRoom(
    "container c",
    { unified: folder },
    { before: resources(old), after: resources(limit) },
  );

test.each([
  [200n, 72n],
  [-1n, 72n],
  [undefined, 1n],
])("a limit that was %p cannot become %p", (old, limit) => {
  const refusal = codeAndMessage(() => change(old, limit));
  expect(refusal).toStartWith(
    `FAILED_PRECONDITION: updating container c: with a memory limit of ${limit} bytes`,
  );
  expect(refusal).toContain("cannot reclaim 73 bytes");
});

test.each([
  ["enough", 200n, 73n],
  ["not lower", 10n, 10n],
  ["higher, but still too low", 10n, 20n],
  ["removed", 200n, -1n],
  ["not mentioned", undefined, undefined],
])("a limit that is %s is not refused", (_, old, limit) => {
  expect(() => change(old, limit)).not.toThrow();
});
