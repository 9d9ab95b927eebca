// Makes spans of a call's activities, under the caller's trace (W3C traceparent), in OTLP's JSON encoding.
import { randomBytes } from "node:crypto";
import { activityName, rootOf, type Activity } from "../base/activity.ts";
import { epochMs } from "../base/clock.ts";
import { codeOf, grpcCodes, messageOf } from "../base/errors.ts";
import { clip, shorten } from "../base/text.ts";
import type { Sampler } from "./trace_settings.ts";

export type Attribute = { key: string; value: { stringValue: string } | { intValue: string } };

/** opentelemetry-proto, trace.proto: Span. */
export type Span = {
  traceId: string;
  spanId: string;
  parentSpanId: string;
  name: string;
  kind: number;
  startTimeUnixNano: string;
  endTimeUnixNano: string;
  attributes: Attribute[];
  status: { code?: number; message?: string };
};

type Place = { traceId: string; spanId: string; parentSpanId: string; isSampled: boolean };

const [internal, server] = [1, 2];
const errorStatus = 2;
const textBytesMax = 1_000;

export class Spans {
  readonly #sampler: Sampler;
  /** Made at the end of the first activity inside: parents end after their children. */
  readonly #places = new WeakMap<Activity, Place>();

  constructor(sampler: Sampler) {
    this.#sampler = sampler;
  }

  /** Returns an activity's span; undefined if it is not sampled or belongs to no call. endedMs: performance.now(). */
  spanOf(activity: Activity, endedMs: number, error?: unknown): Span | undefined {
    if (rootOf(activity).kind !== "call") return undefined;
    const { isSampled, ...place } = this.#placeOf(activity);
    if (!isSampled) return undefined;
    const nanoseconds = (ms: number) => String(BigInt(Math.round(epochMs(ms) * 1000)) * 1000n);
    const isFailed = error !== undefined;
    return {
      ...place,
      // What a wait is for has ids: it is an attribute.
      name: activity.kind === "wait" ? "wait" : activityName(activity),
      kind: activity.kind === "call" ? server : internal,
      startTimeUnixNano: nanoseconds(activity.beganMs),
      endTimeUnixNano: nanoseconds(endedMs),
      attributes: attributesOf(activity, error),
      status: isFailed
        ? { code: errorStatus, message: shorten(messageOf(error), textBytesMax) }
        : {},
    };
  }

  #placeOf(activity: Activity): Place {
    const known = this.#places.get(activity);
    if (known !== undefined) return known;
    const { parent } = activity;
    const above = parent === undefined ? this.#begin(activity) : this.#placeOf(parent);
    const { traceId, isSampled } = above;
    const place = { traceId, spanId: newId(8), parentSpanId: above.spanId, isSampled };
    this.#places.set(activity, place);
    return place;
  }

  /** Continues the client's trace, or begins a new one. */
  #begin({ traceparent }: Activity): Pick<Place, "traceId" | "spanId" | "isSampled"> {
    const { followsParent, ratio } = this.#sampler;
    const parent = parseTraceparent(traceparent);
    const traceId = parent?.traceId ?? newId(16);
    const isSampled =
      parent !== undefined && followsParent ? parent.isSampled : isWithin(traceId, ratio);
    return { traceId, spanId: parent?.spanId ?? "", isSampled };
  }
}

/** By the trace's id, so that all services decide alike about one trace. */
function isWithin(traceId: string, ratio: number): boolean {
  return parseInt(traceId.slice(-13), 16) < ratio * 16 ** 13;
}

/** https://www.w3.org/TR/trace-context; undefined for one that is malformed. */
export function parseTraceparent(
  text: string,
): { traceId: string; spanId: string; isSampled: boolean } | undefined {
  const found = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/.exec(text);
  const [, format = "ff", traceId = "", spanId = "", flags = "", rest] = found ?? [];
  if (format === "ff" || /^0*$/.test(traceId) || /^0*$/.test(spanId)) return undefined;
  if (format === "00" && rest !== undefined) return undefined;
  return { traceId, spanId, isSampled: (parseInt(flags, 16) & 1) === 1 };
}

function attributesOf(activity: Activity, error: unknown): Attribute[] {
  const { kind, labels, subject, bytes } = activity;
  const isCall = kind === "call";
  const { pod, container, image, ...others } = subject?.() ?? {};
  const [namespace, name] = pod?.includes("/") ? pod.split("/") : [undefined, pod];
  const texts: Record<string, string | undefined> = {
    ...(isCall ? { "rpc.system": "grpc", "rpc.method": labels["method"] } : prefixed(labels)),
    "k8s.namespace.name": namespace,
    "k8s.pod.name": name,
    "k8s.container.name": container,
    "container.image.name": image,
    ...prefixed(others),
  };
  const numbers: Record<string, number | undefined> = {
    "rpc.grpc.status_code": isCall
      ? error === undefined
        ? 0
        : grpcCodes[codeOf(error)]
      : undefined,
    "isulad.bytes": bytes > 0 ? bytes : undefined,
  };
  return [
    // A refused request may have names of any length.
    ...defined(texts).map(([key, text]) => {
      return { key, value: { stringValue: clip(text, textBytesMax) } };
    }),
    ...defined(numbers).map(([key, value]) => ({ key, value: { intValue: String(value) } })),
  ];
}

function defined<Value>(values: Record<string, Value | undefined>): [string, Value][] {
  return Object.entries(values).flatMap(([key, value]) =>
    value === undefined ? [] : [[key, value] as [string, Value]],
  );
}

function prefixed(labels: Readonly<Record<string, string | undefined>>) {
  return Object.fromEntries(
    Object.entries(labels).map(([label, value]) => [`isulad.${label}`, value]),
  );
}

function newId(bytes: number): string {
  return randomBytes(bytes).toString("hex");
}
