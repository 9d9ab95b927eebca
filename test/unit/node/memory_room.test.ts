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

const held = (files: Record<string, string>, more: Parameters<typeof heldMemory>[1] = {}) =>
  heldMemory({ unified: "/c" }, more, (path) => files[path.replace("/c/memory.", "")]);

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

test.each<[what: string, after: object, bytes: bigint]>([
  ["none, as a memory limit alone has it", { memory: { limit: 20n, swap: 20n } }, 73n],
  ["30 bytes", { memory: { limit: 20n, swap: 50n } }, 43n],
  ["no limit", { memory: { limit: 20n, swap: -1n } }, 8n],
  [
    "none, by unified",
    { memory: { limit: 20n, swap: -1n }, unified: { "memory.swap.max": "0" } },
    73n,
  ],
  ["no limit, by unified", { unified: { "memory.swap.max": "max" } }, 8n],
])("the swap limit of the update counts, not that of before: %s", (_, after, bytes) => {
  const swap = { "swap.current": "0\n", "swap.max": "64\n" };
  expect(held({ current: "100\n", stat, "/proc/swaps": oneSwap, ...swap }, { after })).toBe(bytes);
});

test("a pod's memory fits into swap as far as the limits of its containers allow", () => {
  const files: Record<string, string> = {
    current: "100\n",
    stat,
    "/proc/swaps": oneSwap,
    "swap.current": "0\n",
    "swap.max": "max\n",
  };
  for (const [part, limit] of [
    ["/a", "0"],
    ["/b", "10"],
  ]) {
    files[`${part}/memory.stat`] = "inactive_anon 30\nactive_anon 2\n";
    files[`${part}/memory.swap.current`] = "0\n";
    files[`${part}/memory.swap.max`] = `${limit}\n`;
  }
  expect(held(files, { parts: ["/a", "/b", "/gone"] })).toBe(63n);
});

test("no more fits into swap than is free on its devices", () => {
  const stat = `active_anon ${3 << 20}\n`;
  const files = { current: `${4 << 20}\n`, stat, "swap.current": "0\n", "swap.max": "max\n" };
  const swaps = `${noSwap}/a file 1000 500 -2\n/b partition 1024 500 -3\n`;
  expect(held({ ...files, "/proc/swaps": swaps })).toBe(BigInt((4 << 20) - 1024 * 1024));
});

test("what a removed cgroup and one of v1 hold is unknown", () => {
  expect(held({})).toBeUndefined();
  expect(held({ current: "100\n" })).toBeUndefined();
  expect(heldMemory({ memory: "/c" }, {}, () => "100\n")).toBeUndefined();
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
