// Tests the spans of a call's activities: their place in the client's trace, times, names and attributes.
import { describe, expect, test } from "bun:test";
import {
  activity,
  beginCall,
  endActivity,
  observeActivities,
  reportActivity,
  within,
} from "../../../src/base/activity.ts";
import { CriError } from "../../../src/base/errors.ts";
import { step } from "../../../src/base/failpoints.ts";
import { parseTraceparent, Spans, type Span } from "../../../src/trace/spans.ts";

const trace = "0af7651916cd43dd8448eb211c80319c";
const parent = "b7ad6b7169203331";
const sampled = `00-${trace}-${parent}-01`;
const always = { followsParent: true, ratio: 1 };

/** The spans of a call with this work. */
async function spansOf(
  work: () => Promise<unknown>,
  traceparent = sampled,
  { sampler = always, pod = "shop/web" } = {},
) {
  const maker = new Spans(sampler);
  const found: Span[] = [];
  using _ = observeActivities((...ended) => {
    const span = maker.spanOf(...ended);
    if (span !== undefined) found.push(span);
  });
  const call = beginCall("RunPodSandbox", {
    subject: () => ({ pod, image: undefined }),
    traceparent,
  });
  const error = await within(call, work).then(
    () => undefined,
    (failure: unknown) => failure,
  );
  endActivity(call, error);
  return found;
}

const attributes = (span: Span) =>
  Object.fromEntries(span.attributes.map(({ key, value }) => [key, Object.values(value)[0]]));

describe("a call's spans", () => {
  test("of waits have one name; the lock with its id is an attribute", async () => {
    const lock = `container ${"4f2a".repeat(16)}`;
    const [wait] = await spansOf(() => activity("wait", { for: lock }, () => {}));
    expect(wait!.name).toBe("wait");
    expect(attributes(wait!)).toMatchObject({ "isulad.for": lock });
  });

  test("are under the client's span, each step under the one around it", async () => {
    const beforeNs = BigInt(Date.now() - 5) * 1_000_000n;
    const spans = await spansOf(() =>
      step("cni-add", () => activity("cni", { command: "ADD", plugin: "bridge" }, () => {})),
    );
    const [plugin, cni, call] = spans;
    expect(spans.map(({ name, kind }) => [name, kind])).toEqual([
      ["cni ADD bridge", 1],
      ["step cni-add", 1],
      ["RunPodSandbox", 2],
    ]);
    expect(call).toMatchObject({ traceId: trace, parentSpanId: parent, status: {} });
    expect(cni).toMatchObject({ traceId: trace, parentSpanId: call!.spanId });
    expect(plugin).toMatchObject({ traceId: trace, parentSpanId: cni!.spanId });
    expect(new Set(spans.map(({ spanId }) => spanId)).size).toBe(3);
    for (const { spanId, startTimeUnixNano: start, endTimeUnixNano: end } of spans) {
      expect(spanId).toMatch(/^[0-9a-f]{16}$/);
      expect(BigInt(start)).toBeGreaterThan(beforeNs);
      expect(BigInt(end)).toBeGreaterThanOrEqual(BigInt(start));
    }
    expect(attributes(call!)).toEqual({
      "rpc.system": "grpc",
      "rpc.method": "RunPodSandbox",
      "k8s.namespace.name": "shop",
      "k8s.pod.name": "web",
      "rpc.grpc.status_code": "0",
    });
    expect(attributes(plugin!)).toEqual({ "isulad.command": "ADD", "isulad.plugin": "bridge" });
  });

  test("names of a refused request are cut", async () => {
    const pod = `default/${"x".repeat(1 << 20)}`;
    const [call] = await spansOf(() => Promise.resolve(), sampled, { pod });
    expect(String(attributes(call!)["k8s.pod.name"])).toMatch(/^x{900,1000}…$/);
  });

  test("a failure has status and code", async () => {
    const failure = new CriError("NOT_FOUND", "no such image");
    const spans = await spansOf(() =>
      activity("pull", { phase: "resolve" }, () => Promise.reject(failure)),
    );
    for (const span of spans) expect(span.status).toEqual({ code: 2, message: "no such image" });
    expect(attributes(spans[1]!)["rpc.grpc.status_code"]).toBe("5");
  });

  test("a layer has its digest, its fetch and its bytes", async () => {
    const layer = () =>
      activity(
        "pull",
        { phase: "layer" },
        () => reportActivity("pull", { phase: "fetch" }, { beganMs: 0, endedMs: 1, bytes: 4096 }),
        () => ({ layer: "sha256:4c" }),
      );
    const [fetch, made] = await spansOf(layer);
    expect(attributes(fetch!)).toEqual({ "isulad.phase": "fetch", "isulad.bytes": "4096" });
    expect(fetch!.parentSpanId).toBe(made!.spanId);
    expect(attributes(made!)["isulad.layer"]).toBe("sha256:4c");
  });

  test("work that outlives its call, and work of no call, has none", async () => {
    const later = Promise.withResolvers<void>();
    let work: Promise<void> | undefined;
    const spans = await spansOf(async () => {
      work = later.promise.then(() => activity("store", { kind: "sandbox" }, () => {}));
    });
    later.resolve();
    await work;
    await activity("store", { kind: "sandbox" }, () => {});
    expect(spans.map(({ name }) => name)).toEqual(["RunPodSandbox"]);
  });
});

describe("sampling", () => {
  const nothing = async () => {};

  test("follows the client, unless the sampler ignores parents", async () => {
    const unsampled = `00-${trace}-${parent}-00`;
    expect(await spansOf(nothing, unsampled)).toEqual([]);
    expect(
      await spansOf(nothing, unsampled, { sampler: { followsParent: false, ratio: 1 } }),
    ).toHaveLength(1);
    expect(
      await spansOf(nothing, sampled, { sampler: { followsParent: false, ratio: 0 } }),
    ).toEqual([]);
    expect(
      await spansOf(nothing, sampled, { sampler: { followsParent: true, ratio: 0 } }),
    ).toHaveLength(1);
  });

  test("without a client's trace begins a new one, by its ratio", async () => {
    const [one] = await spansOf(nothing, "");
    expect(one!.traceId).toMatch(/^[0-9a-f]{32}$/);
    expect(one!.parentSpanId).toBe("");
    let count = 0;
    for (let index = 0; index < 400; index++) {
      count += (await spansOf(nothing, "", { sampler: { followsParent: true, ratio: 0.5 } }))
        .length;
    }
    expect(count).toBeGreaterThan(120);
    expect(count).toBeLessThan(280);
  });

  test.each([
    "",
    "nonsense",
    `00-${"0".repeat(32)}-${parent}-01`,
    `00-${trace}-${"0".repeat(16)}-01`,
    `ff-${trace}-${parent}-01`,
    `00-${trace}-${parent}-01-more`,
    `00-${trace.toUpperCase()}-${parent}-01`,
  ])("a malformed traceparent is ignored: %j", (text) => {
    expect(parseTraceparent(text)).toBeUndefined();
  });

  test("a traceparent of a later version may have more parts", () => {
    const expected = { traceId: trace, spanId: parent, isSampled: true };
    expect(parseTraceparent(`01-${trace}-${parent}-03-more`)).toEqual(expected);
  });
});
