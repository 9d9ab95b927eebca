// Carries a command's streams over SPDY (channel.k8s.io, v2 to v4): the client opens each in any order, named
// by a header.
import { afterGrace, untilAborted } from "../base/abort.ts";
import { FramePace } from "../sys/frame_pace.ts";
import { SpdySession, type SpdyStream } from "../sys/spdy.ts";
import type { Wire } from "../sys/byte_stream.ts";
import { NewestSize, statusJson, statusText } from "./channels.ts";
import type { Channels, WantedStreams } from "./channels.ts";

/** In order of preference. */
export const spdyProtocols = [
  "v4.channel.k8s.io",
  "v3.channel.k8s.io",
  "v2.channel.k8s.io",
  "channel.k8s.io",
];

/** Time for a client to open its streams, as in kubelet. */
const openMs = 30_000;
/** Time in which the streams that a client opened before it disconnected must be found in what it sent. */
const hangupMs = 1_000;

type Opened = Map<string, SpdyStream>;

/**
 * ended: settles when the client disconnects. @throws if it does not open its streams in time, or disconnects before,
 * which aborts `hangup`.
 */
export async function spdyChannels(
  wire: Wire,
  wanted: WantedStreams,
  { protocol, hangup }: { protocol: string; hangup: AbortSignal },
): Promise<{ channels: Channels; ended: Promise<void> }> {
  const resize = wanted.tty && (protocol.startsWith("v3") || protocol.startsWith("v4"));
  const names = ["error", ...(["stdin", "stdout", "stderr"] as const).filter((one) => wanted[one])];
  if (resize) names.push("resize");
  const opened: Opened = new Map();
  const all = Promise.withResolvers<void>();
  const session = new SpdySession(wire, (stream) => {
    const name = stream.headers["streamtype"] ?? "";
    if (!names.includes(name) || opened.has(name)) {
      stream.reset().catch(() => {});
      return;
    }
    opened.set(name, stream);
    if (name !== "stdin" && name !== "resize") stream.inbox.discard();
    if (opened.size === names.length) all.resolve();
  });
  const ended = session.run();
  ended.catch(() => {});
  const lost = ended.then(() => {
    throw new Error(`the client disconnected before it opened ${names.join(", ")}`);
  });
  const late = AbortSignal.any([afterGrace(hangup, hangupMs), AbortSignal.timeout(openMs)]);
  try {
    await untilAborted(Promise.race([all.promise, lost]), "waiting for the client's streams", late);
  } catch (error) {
    discardAll(opened);
    throw error;
  }
  return { channels: channelsOf(session, opened, protocol), ended };
}

/** Nothing reads the streams: the session goes on to the end of the connection. */
function discardAll(opened: Opened): void {
  for (const { inbox } of opened.values()) inbox.discard();
}

function channelsOf(session: SpdySession, opened: Opened, protocol: string): Channels {
  return {
    stdin: chunksOf(opened.get("stdin")),
    resizes: sizesOf(opened.get("resize")).sizes(),
    write: async (stream, bytes) => opened.get(stream)?.write(bytes),
    finish: async (outcome) => {
      const error = opened.get("error")!;
      const isJson = protocol.startsWith("v4");
      const status = isJson ? statusJson(outcome) : Buffer.from(statusText(outcome));
      if (status.length > 0) await error.write(status);
      for (const stream of opened.values()) await stream.end();
      await session.goAway();
    },
    [Symbol.dispose]: () => discardAll(opened),
  };
}

async function* chunksOf(stream: SpdyStream | undefined): AsyncGenerator<Buffer> {
  if (stream !== undefined) yield* stream.chunks();
}

/** Reads all sizes as they come: they must not hold up the other streams. */
function sizesOf(stream: SpdyStream | undefined): NewestSize {
  const newest = new NewestSize();
  const read = async () => {
    const pace = new FramePace();
    for await (const chunk of chunksOf(stream)) {
      if (pace.isSpent()) await pace.rest();
      newest.push(chunk);
    }
    newest.end();
  };
  read().catch(() => {}); // a queue does not fail
  return newest;
}
