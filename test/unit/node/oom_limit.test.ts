// Tests the attribution of OOM kills to the limit that was reached.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { limitV1, limitV2, LimitWatches, type LimitHits } from "../../../src/node/oom_limit.ts";
import type { OomLimit } from "../../../src/state/exit.ts";

test.each<[string, [number, number, number], OomLimit]>([
  ["the container alone", [1, 0, 0], "container"],
  ["the container, and once the pod", [2, 1, 0], "container"],
  ["the pod", [1, 1, 0], "pod"],
  ["a cgroup above the pod", [1, 1, 1], "node"],
  ["no limit: the node ran out of memory", [0, 0, 0], "node"],
])("limitV1() attributes events of %s", (_, [own, pod, above], limit) => {
  expect(limitV1({ own, pod, above })).toBe(limit);
});

const none: LimitHits = { own: 0n, pod: 0n, podTree: 0n };

test.each<[string, LimitHits, LimitHits, OomLimit | undefined]>([
  ["a hit of the container's limit", none, { own: 1n, pod: 1n, podTree: 2n }, "container"],
  ["a hit of the pod's limit", none, { ...none, pod: 1n, podTree: 1n }, "pod"],
  [
    "a hit from before the container",
    { ...none, pod: 1n, podTree: 1n },
    { ...none, pod: 1n },
    "node",
  ],
  ["no hit: the node ran out of memory", none, none, "node"],
  ["a hit below the pod, the scope being removed", none, { pod: 0n, podTree: 1n }, "container"],
  ["a hit in another container of the pod", none, { own: 0n, pod: 0n, podTree: 1n }, "node"],
  ["no hit, the scope being removed", none, { pod: 0n, podTree: 0n }, "node"],
  [
    "a kernel without memory.events.local",
    { own: 0n, podTree: 0n },
    { own: 0n, podTree: 1n },
    undefined,
  ],
  ["a pod that was removed", none, {}, undefined],
])("limitV2() attributes %s", (_, before, now, limit) => {
  expect(limitV2(before, now)).toBe(limit);
});

test("LimitWatches shares v1's eventfds within a pod, and knows nothing without them", () => {
  const scratch = mkdtempSync(join(tmpdir(), "isulad-oom-"));
  const paths = ["a", "b"].map((name) => ({ memory: join(scratch, "pod", name) }));
  for (const { memory } of paths) mkdirSync(memory, { recursive: true });
  const watches = new LimitWatches();
  using stack = new DisposableStack();
  stack.defer(() => rmSync(scratch, { recursive: true }));
  const without = watches.open(paths[0]!);
  expect(without.limit()).toBeUndefined();
  without.close();
  for (const folder of [scratch, join(scratch, "pod"), ...paths.map(({ memory }) => memory)]) {
    for (const file of ["memory.oom_control", "cgroup.event_control"]) {
      writeFileSync(join(folder, file), "");
    }
  }
  const [a, b] = paths.map((one) => watches.open(one));
  expect([a!.limit(), b!.limit()]).toEqual(["node", "node"]); // no events
  a!.close();
  expect(b!.limit()).toBe("node");
  b!.close();
  expect(watches.open({}).limit()).toBeUndefined();
});

test("LimitWatches reads v2's counters", () => {
  const scratch = mkdtempSync(join(tmpdir(), "isulad-oom-"));
  using stack = new DisposableStack();
  stack.defer(() => rmSync(scratch, { recursive: true }));
  const unified = join(scratch, "c");
  mkdirSync(unified);
  writeFileSync(join(unified, "memory.events"), "oom 0\n");
  writeFileSync(join(scratch, "memory.events.local"), "oom 3\n");
  const watch = new LimitWatches().open({ unified });
  expect(watch.limit()).toBe("node");
  writeFileSync(join(scratch, "memory.events.local"), "oom 4\n");
  expect(watch.limit()).toBe("pod");
  writeFileSync(join(unified, "memory.events"), "oom 1\n");
  expect(watch.limit()).toBe("container");
});
