// Serves Attach: connects a client to a container's own streams. New output comes from the monitor's log
// worker (tap.ts); input goes straight into the container's stdin or terminal, or into the FIFO from which a
// shim feeds its terminal. The container outlives the client.
import { messageOf } from "../base/errors.ts";
import { openStdin } from "../monitor_client/stdio_keepalive.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import type { Channels, Outcome, WantedStreams } from "./channels.ts";
import { copyOutput } from "./copy_output.ts";
import type { StreamParts } from "./exec_io.ts";
import { Fifos } from "./fifos.ts";
import { followSizes, resizeByShim, resizeTerminal } from "./resize.ts";

export type AttachSession = {
  containerId: string;
  /** The folder of the container's FIFOs. */
  stdio: string;
  /** A shim runs the container, and holds its terminal. */
  byShim: boolean;
  /** The container's stdin ends with the first client's. */
  stdinOnce: boolean;
  /** Resolves once the exit is committed, so that a client whose stream ends can query the exit code. */
  exited: () => Promise<void>;
  wanted: WantedStreams;
};

/** Returns when the container ends, the client disconnects, or its stdin ends. */
export async function serveAttach(
  parts: StreamParts,
  session: AttachSession,
  channels: Channels,
  hangup: AbortSignal,
): Promise<Outcome> {
  const { containerId: id, wanted } = session;
  try {
    // stdout even if unwanted: its end signals the container's.
    const names: ("stdout" | "stderr")[] = wanted.stderr ? ["stdout", "stderr"] : ["stdout"];
    using fifos = new Fifos(names, parts);
    using input = await openInput(parts, session);
    await parts.monitor.call("attach", { id, ...fifos.paths });
    fifos.connected();
    if (wanted.tty) {
      const resize = session.byShim
        ? resizeByShim(parts.monitor, { id, key: "" })
        : resizeTerminal(input!);
      followSizes(channels, resize).catch(() => {}); // the terminal is closed
    }
    const copies = names.map((name) =>
      copyOutput(fifos.streams[name]!, (bytes) => channels.write(name, bytes)),
    );
    const ended = Promise.all(copies).then(() => session.exited());
    await Promise.race([ended, clientDone(parts, session, { channels, input, hangup })]);
    return { exitCode: 0 };
  } catch (error) {
    return { error: messageOf(error) };
  }
}

/** Opens the container's stdin or terminal; undefined: the container takes no input. */
async function openInput(
  { monitor, poller }: StreamParts,
  { containerId, stdio, wanted, byShim }: AttachSession,
): Promise<ByteStream | undefined> {
  if (wanted.tty && !byShim) return new ByteStream(await monitor.terminal(containerId), poller);
  const [fd] = wanted.stdin ? openStdin(stdio) : [];
  return fd === undefined ? undefined : new ByteStream(fd, poller);
}

/**
 * Resolves when the client has disconnected or, as in containerd, half-closed its stdin. With stdinOnce the
 * end of its stdin closes the container's instead, and the client keeps receiving output.
 */
async function clientDone(
  { monitor }: StreamParts,
  { containerId, stdinOnce, wanted }: AttachSession,
  client: { channels: Channels; input: ByteStream | undefined; hangup: AbortSignal },
): Promise<void> {
  const { channels, input, hangup } = client;
  const disconnected = new Promise<void>((resolve) => {
    if (hangup.aborted) resolve();
    hangup.addEventListener("abort", () => resolve(), { once: true });
  });
  const done = wanted.stdin
    ? await Promise.race([feed(channels.stdin, input), disconnected])
    : "unread";
  if (stdinOnce && wanted.stdin && !wanted.tty) {
    input?.close();
    await monitor.closeStdin(containerId);
  } else if (done === "ended") return;
  await disconnected; // output in response to the input may follow
}

/** unread: the container closed its stdin, which does not end the client. */
async function feed(
  stdin: AsyncIterable<Buffer>,
  input: ByteStream | undefined,
): Promise<"ended" | "unread"> {
  try {
    for await (const chunk of stdin) await input?.send(chunk);
    return "ended";
  } catch {
    return "unread"; // EPIPE
  }
}
