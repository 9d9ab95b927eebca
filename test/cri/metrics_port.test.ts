// Tests metrics-port, where the daemon serves its own metrics to Prometheus.
import { afterAll, beforeAll, expect, test } from "bun:test";
import * as grpc from "@grpc/grpc-js";
import { spawnSync } from "node:child_process";
import { once } from "node:events";
import { rmSync } from "node:fs";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../../src/base/int64.ts";
import { grpc as messages } from "../../src/proto/messages.js";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { freePort } from "../registry.ts";

let daemon: Daemon;
let port: number;
beforeAll(async () => {
  port = await freePort();
  daemon = await startDaemon({ config: { "metrics-port": port } });
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

async function metrics(): Promise<Map<string, number>> {
  const response = await fetch(`http://127.0.0.1:${port}/metrics`);
  expect(response.status).toBe(200);
  expect(response.headers.get("content-type")).toContain("text/plain; version=0.0.4");
  const lines = (await response.text()).trimEnd().split("\n");
  const sample = /^([a-z_]+(?:\{(?:[a-z_]+="[^"]*",?)+\})?) ([0-9.e+-]+)$/;
  for (const line of lines)
    expect(line).toMatch(/^# (HELP|TYPE) (isulad|process)_|^(isulad|process)_/);
  const samples = lines.filter((line) => !line.startsWith("#"));
  return new Map(
    samples.map((line) => {
      const [, name, value] = sample.exec(line) ?? [];
      if (name === undefined) throw new Error(`No sample: ${line}`);
      return [name, Number(value)] as const;
    }),
  );
}

test("calls are counted by method and code, and how long they take", async () => {
  const before = await metrics();
  await daemon.client.ListContainers({});
  await daemon.client.ListContainers({});
  await failure(daemon.client.ContainerStatus({ container_id: "0badf00d" }));
  const unimplemented = failure(daemon.client.CheckpointPod({}));
  expect((await unimplemented).code).toBe("UNIMPLEMENTED");
  await failure(daemon.client.PullImage({ image: { image: "127.0.0.1:1/none:none" } }));
  const after = await metrics();
  const more = (name: string) => (after.get(name) ?? 0) - (before.get(name) ?? 0);
  expect(more('isulad_calls_total{method="ListContainers",code="OK"}')).toBe(2);
  expect(more('isulad_calls_total{method="ContainerStatus",code="NOT_FOUND"}')).toBe(1);
  expect(more('isulad_calls_total{method="CheckpointPod",code="UNIMPLEMENTED"}')).toBe(1);
  expect(more('isulad_call_duration_seconds_count{method="ListContainers"}')).toBe(2);
  expect(more('isulad_call_duration_seconds_bucket{method="ListContainers",le="+Inf"}')).toBe(2);
  expect(more('isulad_call_duration_seconds_sum{method="ListContainers"}')).toBeGreaterThan(0);
  const failed = [...after.keys()].filter((name) => name.startsWith("isulad_image_pulls_total"));
  expect(failed).toHaveLength(1);
  expect(after.get(failed[0]!)).toBe(1);
});

test("event loop lag is measured while an image is pulled, and only then", async () => {
  const lags = async () => (await metrics()).get("isulad_loop_lag_seconds_count") ?? 0;
  const held: ServerResponse[] = [];
  let isHeld = true;
  const answer = (response: ServerResponse) => void response.writeHead(404).end();
  const registry = createServer((_, response) => {
    if (isHeld) held.push(response);
    else answer(response);
  });
  await once(registry.listen(0, "127.0.0.1"), "listening");
  const { port: at } = registry.address() as AddressInfo;
  const before = await lags();
  await sleep(200);
  expect(await lags()).toBe(before);
  const pulled = failure(
    daemon.client.PullImage({ image: { image: `127.0.0.1:${at}/none:none` } }),
  );
  await until("lag is measured", async () => (await lags()) - before > 20);
  isHeld = false;
  held.forEach(answer);
  await pulled;
  const after = await lags();
  await sleep(200);
  expect(await lags()).toBe(after);
  registry.close();
});

test("pods, containers, OOM kills and memory are counted", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  await daemon.create(podId, pod, ["true"]);
  await daemon.run(podId, pod, ["sleep", "600"]);
  const bytes = toLong(16n << 20n);
  const resources = { memory_limit_in_bytes: bytes, memory_swap_limit_in_bytes: bytes };
  const command = "exec dd if=/dev/zero of=/dev/null bs=64M";
  const killed = await daemon.run(podId, pod, command, { linux: { resources } });
  expect((await daemon.exited(killed)).reason).toBe("OOMKilled");
  const found = await metrics();
  expect(found.get('isulad_pods{state="ready"}')).toBe(1);
  expect(found.get('isulad_containers{state="created"}')).toBe(1);
  expect(found.get('isulad_containers{state="running"}')).toBe(1);
  expect(found.get('isulad_containers{state="exited"}')).toBe(1);
  expect(found.get("isulad_oom_kills_total")).toBe(1);
  expect(found.get("isulad_images")).toBe(1);
  expect(found.get("process_resident_memory_bytes")).toBeGreaterThan(10 << 20);
  expect(found.get("isulad_monitor_resident_memory_bytes")).toBeGreaterThan(10 << 20);
  await daemon.removePod(podId);
  expect((await metrics()).get('isulad_pods{state="ready"}')).toBe(0);
});

test("a monitor that was killed is counted", async () => {
  expect((await metrics()).get("isulad_monitor_restarts_total")).toBe(0);
  process.kill(daemon.monitors()[0]!, "SIGKILL");
  await until("its end is counted", async () => {
    const found = await metrics();
    const isBack = found.has("isulad_monitor_resident_memory_bytes");
    return found.get("isulad_monitor_restarts_total") === 1 && isBack;
  });
});

test("nothing else is served, and only for reading, on loopback", async () => {
  const at = (path: string, init?: RequestInit) => fetch(`http://127.0.0.1:${port}${path}`, init);
  expect((await at("/")).status).toBe(404);
  expect((await at("/metrics", { method: "POST" })).status).toBe(405);
  expect((await at("/metrics?x=1", { method: "HEAD" })).status).toBe(200);
  const elsewhere = fetch(`http://127.0.0.2:${port}/metrics`).then(
    () => "answered",
    () => "refused",
  );
  expect(await elsewhere).toBe("refused");
});

test("a port in use stops the start, and the error names it", async () => {
  const other = startDaemon({ config: { "metrics-port": port }, image: false });
  const message = await other.then(
    () => "it started",
    (error: unknown) => String(error),
  );
  expect(message).toContain(`cannot serve metrics on 127.0.0.1:${port}`);
  expect(message).toContain("metrics-port");
});

test("health is served by HTTP, and by grpc.health.v1 on the CRI socket", async () => {
  const page = async (path: string) => {
    const response = await fetch(`http://127.0.0.1:${port}${path}`);
    return { status: response.status, text: await response.text() };
  };
  const ok = { status: 200, text: "ok\n" };
  expect([await page("/healthz"), await page("/readyz")]).toEqual([ok, ok]);

  const { HealthCheckRequest, HealthCheckResponse, ServingStatus } = messages.health.v1;
  const channel = new grpc.Client(`unix://${daemon.socket}`, grpc.credentials.createInsecure());
  try {
    const stream = channel.makeServerStreamRequest<object, { status: number }>(
      "/grpc.health.v1.Health/Watch",
      (request) => Buffer.from(HealthCheckRequest.encode(request).finish()),
      (bytes) => HealthCheckResponse.decode(bytes),
      { service: "runtime.v1.RuntimeService" },
    );
    stream.on("error", () => {}); // of the cancellation
    const [first] = (await once(stream, "data")) as [{ status: number }];
    expect(first.status).toBe(ServingStatus.SERVING);
    stream.cancel();
  } finally {
    channel.close();
  }

  const list = join(daemon.cniDir, "10-test.conflist");
  rmSync(list);
  try {
    await until("the node is not ready", async () => (await page("/readyz")).status === 503);
    expect((await page("/readyz")).text).toStartWith("network: no CNI network list in ");
    expect(await page("/healthz")).toEqual(ok);
  } finally {
    daemon.writeNetwork();
  }
});

test("an address that the node gets only later stops no daemon, and is served from then on", async () => {
  const address = `198.18.${process.pid & 255}.77`; // of a network for benchmarks
  const ip = (verb: string) => spawnSync("ip", ["addr", verb, `${address}/32`, "dev", "lo"]).status;
  const late = await freePort();
  const config = { "metrics-port": late, "metrics-address": address };
  await using other = await startDaemon({ config, network: false, image: false });
  expect(other.log).toMatch(/no metrics yet: the address is none of this node's/);
  expect((await other.client.Version({})).runtime_name).toBe("isulad-ts");
  try {
    expect(ip("add")).toBe(0);
    await until("it is served", () => other.log.includes("serving metrics: the node has"));
    expect((await fetch(`http://${address}:${late}/healthz`)).status).toBe(200);
  } finally {
    ip("del");
  }
});
