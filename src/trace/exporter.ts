// Exports spans by OTLP over HTTP, in JSON.
// Decision: own code. The protocol is one POST of a documented JSON, for which OpenTelemetry's libraries bring 20
// packages and a second context propagation. Calls never wait: spans are queued up to a bound and dropped beyond
// it, one export is under way at a time, and one that fails or is late is given up.
import { messageOf } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import type { Log } from "../base/log.ts";
import { clip } from "../base/text.ts";
import { version } from "../base/build.ts";
import type { Span } from "./spans.ts";
import type { TraceSettings } from "./trace_settings.ts";

/** A collector that stays away is logged once in this time. */
const logAgainMs = 60_000;
/** Limit for the last export at the daemon's end. */
const endMsMax = 2_000;
/** How much of a response's body an error shows: the later lines of a collector's error are not needed. */
const reasonBytesMax = 200;
/** A server that is no collector may send any amount. */
const bodyBytesMax = 64 << 10;

export class SpanExporter implements AsyncDisposable {
  readonly #settings: TraceSettings;
  readonly #log: Log;
  #queue: Span[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;
  #exporting: Promise<void> | undefined;
  #dropped = 0;
  #loggedMs = -Infinity;

  constructor(settings: TraceSettings, log: Log) {
    this.#settings = settings;
    this.#log = log;
  }

  /** Spans that wait. */
  get length(): number {
    return this.#queue.length;
  }

  get max(): number {
    return this.#settings.queueMax;
  }

  /** The number of spans that no collector has received. */
  get dropped(): number {
    return this.#dropped;
  }

  /** Never waits and never throws. */
  add(span: Span): void {
    const { queueMax, batchMax, delayMs } = this.#settings;
    if (this.#queue.length >= queueMax) return this.#drop(1, "the queue is full");
    this.#queue.push(span);
    if (this.#exporting !== undefined) return;
    if (this.#queue.length >= batchMax) this.#export();
    else this.#timer ??= setTimeout(() => this.#export(), delayMs).unref();
  }

  #export(timeoutMs = this.#settings.timeoutMs): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const batch = this.#queue.splice(0, this.#settings.batchMax);
    this.#exporting = sendSpans(this.#settings, batch, timeoutMs)
      .catch((error: unknown) => this.#drop(batch.length, messageOf(error)))
      .finally(() => {
        this.#exporting = undefined;
        if (this.#queue.length === 0) return;
        this.#timer = setTimeout(() => this.#export(), this.#isFull ? 0 : this.#settings.delayMs);
        this.#timer.unref();
      });
  }

  get #isFull(): boolean {
    return this.#queue.length >= this.#settings.batchMax;
  }

  #drop(count: number, reason: string): void {
    this.#dropped += count;
    const now = performance.now();
    if (now - this.#loggedMs < logAgainMs) return;
    this.#loggedMs = now;
    const { host } = new URL(this.#settings.url);
    const fields = { collector: host, dropped: this.#dropped, reason };
    this.#log.warn("spans are dropped: the trace collector does not take them", fields);
  }

  /** Sends what waits, within two seconds. */
  async [Symbol.asyncDispose](): Promise<void> {
    const end = performance.now() + endMsMax;
    while (this.#exporting !== undefined || this.#queue.length > 0) {
      const leftMs = Math.round(end - performance.now());
      if (leftMs <= 0) return;
      if (this.#exporting === undefined) this.#export(Math.min(leftMs, this.#settings.timeoutMs));
      const late = Promise.withResolvers<void>();
      const timer = setTimeout(late.resolve, leftMs);
      await Promise.race([this.#exporting, late.promise]);
      clearTimeout(timer);
    }
  }
}

/** @throws the reason if the collector does not take them. */
export async function sendSpans(
  { url, headers, ca, resource }: TraceSettings,
  spans: Span[],
  timeoutMs: number,
): Promise<void> {
  const attributes = Object.entries(resource).map(([key, value]) => ({
    key,
    value: { stringValue: value },
  }));
  const scopeSpans = [{ scope: { name: "isulad-ts", version }, spans }];
  const init: RequestInit & { tls?: { ca: string } } = {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: jsonText({ resourceSpans: [{ resource: { attributes }, scopeSpans }] }),
    signal: AbortSignal.timeout(timeoutMs),
    redirect: "error",
  };
  if (ca !== undefined) init.tls = { ca };
  const response = await fetch(url, init).catch((cause: unknown) => {
    const reason = messageOf(cause).replace(/ (Is the computer able|For more information).*/s, "");
    throw new Error(reason, { cause });
  });
  const reason = await beginning(response);
  if (!response.ok) throw new Error(`the collector answers ${response.status} ${reason}`.trim());
}

async function beginning(response: Response): Promise<string> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of response.body ?? []) {
    chunks.push(chunk);
    bytes += chunk.length;
    if (bytes > bodyBytesMax) break; // which closes the connection
  }
  return clip(Buffer.concat(chunks).toString("utf8"), reasonBytesMax);
}
