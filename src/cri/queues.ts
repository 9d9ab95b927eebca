// Lists the daemon's queues with their bounds, for metrics and the dump.
import { eventsMax, subscribersMax } from "../base/event_bus.ts";
import { queuedBytes } from "../sys/chunk_queue.ts";
import type { Context } from "./context.ts";

/** max: undefined where the number of pods and containers is the bound. */
export type Queue = { queue: string; length: number; max: number | undefined };

export function queuesOf(context: Context): Queue[] {
  const { events, monitor, sandboxes, containers, streams, tracing } = context;
  const spans = tracing && [{ queue: "trace-spans", length: tracing.length, max: tracing.max }];
  const queued = queuedBytes();
  return [
    ...(spans ?? []),
    { queue: "event-subscribers", length: events.subscribers, max: subscribersMax },
    { queue: "events-of-slowest-subscriber", length: events.backlog, max: eventsMax },
    { queue: "monitor-calls", length: monitor.pending, max: undefined },
    { queue: "sandbox-records-to-copy", length: sandboxes.unflushed, max: undefined },
    { queue: "container-records-to-copy", length: containers.unflushed, max: undefined },
    { queue: "stream-clients", length: streams.clients, max: undefined },
    { queue: "stream-bytes", length: queued.bytes, max: queued.bytesMax },
  ];
}
