// Tests that a process is refused which the kernel would not start.
import { expect, test } from "bun:test";
import { requireStartable, requireStartableRequest } from "../../../src/spec/arguments_size.ts";

const mib = 1 << 20;
const stackOf = (soft: number) => [
  { type: "RLIMIT_STACK", soft: BigInt(soft), hard: BigInt(soft) },
];
/** Variables of 1,024 bytes with their NUL and their pointer. */
const variables = (kib: number) => Array.from({ length: kib }, () => `A=${"x".repeat(1013)}`);

test.each<[string, { kib: number; own: number; limit?: number }, boolean]>([
  ["2 MiB with a stack of 8 MiB", { kib: 2047, own: 8 * mib }, true],
  ["more than that", { kib: 2048, own: 8 * mib }, false],
  ["5 MiB with an unlimited stack", { kib: 5 << 10, own: Infinity }, true],
  ["6 MiB with an unlimited stack", { kib: 6 << 10, own: Infinity }, false],
  ["5 MiB with a limit of its own", { kib: 5 << 10, own: 8 * mib, limit: 64 * mib }, true],
  ["5 MiB with a small limit of its own", { kib: 5 << 10, own: Infinity, limit: 8 * mib }, false],
  ["100 KiB with a tiny stack", { kib: 100, own: 64 << 10 }, true],
])("%s", (_, { kib, own, limit }, isStartable) => {
  const rlimits = limit === undefined ? [] : stackOf(limit);
  const start = () => requireStartable({ args: ["true"], env: variables(kib), rlimits }, own);
  const envs = variables(kib).map((text) => ({ key: "A", value: Buffer.from(text.slice(2)) }));
  const request = () => requireStartableRequest({ args: ["true"], envs }, rlimits, own);
  for (const check of [start, request]) {
    if (isStartable) check();
    else expect(check).toThrow("bytes; the kernel starts no program with more than");
  }
});
