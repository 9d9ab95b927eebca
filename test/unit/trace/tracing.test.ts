// Tests the export of spans to a collector, and that a dead, slow or refusing one costs the calls nothing.
import { describe, expect, test } from "bun:test";
import { beginCall, endActivity } from "../../../src/base/activity.ts";
import { openTracing } from "../../../src/trace/tracing.ts";
import { until } from "../../expect.ts";
import { startReceiver } from "../../otlp_receiver.ts";
import { freePort } from "../../registry.ts";
import { capturedLog } from "../fakes.ts";

function calls(count: number): void {
  for (let index = 0; index < count; index++) endActivity(beginCall(`Call${index}`));
}

function open(url: string, more: Record<string, string> = {}) {
  const { log, lines } = capturedLog("debug");
  const env = { OTEL_EXPORTER_OTLP_ENDPOINT: url, OTEL_BSP_SCHEDULE_DELAY: "20", ...more };
  return { tracing: openTracing(env, log)!, lines };
}

describe("a collector", () => {
  test("gets the spans in batches, with path, headers and resource", async () => {
    await using receiver = await startReceiver();
    const more = { OTEL_BSP_MAX_EXPORT_BATCH_SIZE: "4", OTEL_EXPORTER_OTLP_HEADERS: "tenant=a" };
    const { tracing } = open(receiver.url, more);
    await using _ = tracing;
    calls(10);
    await until("all spans are there", () => receiver.spans.length === 10);
    expect(receiver.spans.map(({ name }) => name)).toEqual(
      Array.from({ length: 10 }, (_, index) => `Call${index}`),
    );
    expect(receiver.requests.length).toBe(3);
    expect(receiver.requests[0]).toMatchObject({
      path: "/v1/traces",
      headers: { tenant: "a", "content-type": "application/json" },
      resource: { "service.name": "isulad-ts" },
    });
    expect(tracing).toMatchObject({ length: 0, dropped: 0 });
  });

  test("gets what waits when the daemon ends, and nothing afterwards", async () => {
    await using receiver = await startReceiver();
    const { tracing } = open(receiver.url, { OTEL_BSP_SCHEDULE_DELAY: "600000" });
    calls(3);
    expect(receiver.spans).toEqual([]);
    await tracing[Symbol.asyncDispose]();
    expect(receiver.spans).toHaveLength(3);
    calls(3);
    expect(tracing.length).toBe(0);
  });

  test("that is dead loses spans: one line says so, and the queue stays within its bound", async () => {
    const { tracing, lines } = open(`http://127.0.0.1:${await freePort()}`, {
      OTEL_BSP_MAX_QUEUE_SIZE: "5",
    });
    calls(20);
    // Five are being sent, five wait.
    expect(tracing).toMatchObject({ length: 5, dropped: 10 });
    await until("both batches are given up", () => tracing.dropped === 20);
    calls(2);
    await until("the next one, too", () => tracing.dropped === 22);
    const warnings = lines.filter((line) => line.includes("spans are dropped"));
    expect(warnings).toHaveLength(1);
    await tracing[Symbol.asyncDispose]();
  });

  test("that is slow is given up at the deadline, and ends the daemon no later than that", async () => {
    await using receiver = await startReceiver(() => {}); // never answers
    const { tracing } = open(receiver.url, { OTEL_EXPORTER_OTLP_TIMEOUT: "1000" });
    const begin = performance.now();
    calls(1);
    expect(performance.now() - begin).toBeLessThan(900);
    await until("the export is given up", () => tracing.dropped === 1);
    calls(1);
    await tracing[Symbol.asyncDispose]();
    expect(performance.now() - begin).toBeLessThan(9_000);
  });

  test("that refuses is named with its answer", async () => {
    await using receiver = await startReceiver((response) => {
      response.writeHead(401).end("no tenant");
    });
    const { tracing, lines } = open(receiver.url);
    calls(1);
    await until("the spans are dropped", () => tracing.dropped === 1);
    expect(lines.join("\n")).toContain("the collector answers 401 no tenant");
    await tracing[Symbol.asyncDispose]();
  });
});

test("an endless answer is cut off", async () => {
  await using receiver = await startReceiver((response) => {
    response.writeHead(500);
    const write = () => {
      while (response.write(Buffer.alloc(65_536, "x")));
      response.once("drain", write);
    };
    write();
  });
  const { tracing, lines } = open(receiver.url);
  calls(1);
  await until("the span is dropped", () => tracing.dropped === 1);
  expect(lines.join("\n")).toContain("the collector answers 500 xxx");
  await tracing[Symbol.asyncDispose]();
});

test("bad variables are warnings, and without a usable endpoint nothing is traced", () => {
  const { tracing, lines } = open("collector:4317");
  expect(tracing).toBeUndefined();
  expect(lines.join("\n")).toContain("nothing is traced");
});
