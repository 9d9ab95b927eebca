// Tests the socket of containerd's API before and after the daemon is ready.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Context } from "../../src/cri/context.ts";
import { sandboxCommitted } from "../../src/cri/events.ts";
import { serveContainerd } from "../../src/sockets.ts";
import { capturedLog, containerRecord, phases, recordStore, sandboxRecord } from "./fakes.ts";

test("serveContainerd() replaces the marker of an earlier daemon, also after commits before ready", async () => {
  await using stack = new AsyncDisposableStack();
  const dir = mkdtempSync(join(tmpdir(), "sockets-"));
  stack.defer(() => rmSync(dir, { recursive: true }));
  const pod = join(dir, "pod1");
  mkdirSync(join(pod, "isulad-pod-1-p1.scope"), { recursive: true });
  const cgroup = { driver: "cgroupfs", parent: "/pod1" } as const;
  const sandbox = sandboxRecord({ cgroup });
  const { log, lines } = capturedLog("warn");
  const context = {
    config: { containerdSocket: join(dir, "containerd.sock"), state: dir },
    log,
    sandboxes: recordStore([sandbox]),
    containers: recordStore([containerRecord({ phase: phases.running })]),
    cgroup: { name: "cgroupfs", podCgroup: () => ({ paths: { memory: pod } }) },
    sampler: { forget: () => {} },
    events: { isWatched: false },
  } as unknown as Context;
  const { promise: isReady, resolve: ready } = Promise.withResolvers<void>();
  await serveContainerd(context, stack, isReady);
  sandboxCommitted(context, sandbox, sandbox);
  await sleep(10);
  ready();
  await sleep(10);
  expect(readdirSync(pod)).toEqual(["isulad-pod-2-p1.scope"]);
  expect(context.podMarkers?.processOf("p1")).toBe(7);
  expect(lines).toEqual([]);
});
