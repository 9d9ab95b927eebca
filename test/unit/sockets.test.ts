// Tests the daemon's sockets: that of containerd's API before and after the daemon is ready, and the owner, the
// message sizes and the versions of CRI's.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import * as grpc from "@grpc/grpc-js";
import process from "node:process";
import type { Context } from "../../src/cri/context.ts";
import { sandboxCommitted } from "../../src/cri/events.ts";
import { PodHistory } from "../../src/history/pod_history.ts";
import { runtime } from "../../src/proto/messages.js";
import { serve, serveContainerd } from "../../src/sockets.ts";
import { until } from "../expect.ts";
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
    history: stack.use(new PodHistory()),
    events: { isWatched: false },
  } as unknown as Context;
  const { promise: isReady, resolve: ready } = Promise.withResolvers<void>();
  await serveContainerd(context, stack, isReady);
  sandboxCommitted(context, sandbox, sandbox);
  await sleep(10);
  ready();
  await until("it is replaced", () => readdirSync(pod).join() === "isulad-pod-2-p1.scope");
  await until("its process is known", () => context.podMarkers?.processOf("p1") !== undefined);
  expect(context.podMarkers?.processOf("p1")).toBe(7);
  expect(lines).toEqual([]);
});

const mib = 1 << 20;

type Sizes = { socketUid?: number; maxRecvBytes?: number; maxSendBytes?: number };
type Answer = { code: number; bytes: Buffer };
type Served = { path: string; call: (method: string, request?: Buffer) => Promise<Answer> };

/** Serves CRI in a folder of its own, and calls it without limits of the client's. */
async function served<Result>(sizes: Sizes, use: (served: Served) => Promise<Result>) {
  await using stack = new AsyncDisposableStack();
  const dir = mkdtempSync(join(tmpdir(), "sockets-"));
  stack.defer(() => rmSync(dir, { recursive: true }));
  const path = join(dir, "cri.sock");
  const defaults = { socketUid: 0, maxRecvBytes: 16 * mib, maxSendBytes: 16 * mib };
  const { log } = capturedLog("error");
  const context = {
    config: {
      hosts: [`unix://${path}`],
      group: "",
      runtimeName: "isulad-ts",
      ...defaults,
      ...sizes,
    },
    health: { noteFailure: () => {} },
    log,
    events: { close: () => {} },
    calls: { count: 0, running: 0 },
    sandboxes: { listed: () => undefined },
    containers: { listed: () => undefined },
    reload: () => Promise.resolve({ warnings: ["x".repeat(17 * mib)] }),
  } as unknown as Context;
  await serve(context, stack);
  const client = new grpc.Client(`unix:${path}`, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
  });
  stack.defer(() => client.close());
  const call = (method: string, request: Buffer = Buffer.alloc(0)) =>
    new Promise<Answer>((resolve) => {
      const same = (bytes: Buffer) => bytes;
      client.makeUnaryRequest(method, same, same, request, (error, bytes) =>
        resolve({ code: error?.code ?? 0, bytes: bytes ?? Buffer.alloc(0) }),
      );
    });
  return await use({ path, call });
}

/** Returns the codes of a call with 17 MiB in its response (sent), and of one with as much in its request, too. */
function servedWith(sizes: Sizes) {
  return served(sizes, async ({ path, call }) => {
    const { uid, mode } = statSync(path);
    const large = Buffer.concat([
      Buffer.from([0x9a, 0x06, 0x80, 0x80, 0xc0, 0x08]),
      Buffer.alloc(17 * mib),
    ]);
    const { code: sent } = await call("/isulad.v1.NodeService/Reload");
    const { code: received } = await call("/isulad.v1.NodeService/Reload", large);
    return { uid, mode: mode & 0o777, sent, received };
  });
}

test("runtime.v1alpha2 has v1's messages, and the RPCs of its time alone", async () => {
  await served({}, async ({ call }) => {
    for (const version of ["v1", "v1alpha2"]) {
      const { bytes } = await call(`/runtime.${version}.RuntimeService/Version`);
      expect(runtime.v1.VersionResponse.decode(bytes)).toMatchObject({
        version: "0.1.0",
        runtime_name: "isulad-ts",
        runtime_api_version: "v1",
      });
    }
    const { code } = await call("/runtime.v1alpha2.RuntimeService/RuntimeConfig");
    expect(code).toBe(grpc.status.UNIMPLEMENTED);
  });
});

test("CRI's socket takes and sends messages up to the configured sizes", async () => {
  const { OK, RESOURCE_EXHAUSTED } = grpc.status;
  expect(await servedWith({})).toMatchObject({
    sent: RESOURCE_EXHAUSTED,
    received: RESOURCE_EXHAUSTED,
  });
  expect(await servedWith({ maxSendBytes: 32 * mib, maxRecvBytes: 32 * mib })).toMatchObject({
    sent: OK,
    received: OK,
  });
});

test.if(process.getuid?.() === 0)("CRI's socket belongs to socket-uid", async () => {
  expect(await servedWith({ socketUid: 1234 })).toMatchObject({ uid: 1234, mode: 0o600 });
  expect(await servedWith({})).toMatchObject({ uid: 0, mode: 0o600 });
});
