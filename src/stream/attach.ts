// Serves Attach: connects a client to a container's own streams. New output comes from the monitor's log worker
// (monitor_log/tap.ts); input goes straight into the container's stdin or terminal, or into the FIFO from which a shim
// feeds its terminal. The container outlives the client.
import { setTimeout as sleep } from "node:timers/promises";
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
  /** If false, what clients send is discarded: kubectl sends stdin also to a container without one. */
  hasStdin: boolean;
  /** The container's stdin ends with the first client's. */
  stdinOnce: boolean;
  /**
   * Waits until the exit is committed, so that a client whose stream ends can query the exit code. False: the container
   * runs on.
   */
  exited: () => Promise<boolean>;
  wanted: WantedStreams;
};

type Client = { channels: Channels; input: ByteStream | undefined };

/** Time for a disconnect to be noticed, after a write to the client has failed. */
const hangupMs = 1_000;
/** After a client has left, the rest of what it sent is dropped once the container has taken nothing for this long. */
const stuckMs = 10_000;
const lookMs = 250;

/** Returns when the container ends, the client disconnects, or the client's stdin ends. */
export async function serveAttach(
  parts: StreamParts,
  session: AttachSession,
  channels: Channels,
  hangup: AbortSignal,
): Promise<Outcome> {
  const { containerId: id, wanted } = session;
  try {
    // stdout even if unwanted: its end is the container's end.
    const names: ("stdout" | "stderr")[] = wanted.stderr ? ["stdout", "stderr"] : ["stdout"];
    using fifos = new Fifos(names, parts);
    using input = await openInput(parts, session);
    await parts.monitor.call("attach", { id, ...fifos.paths });
    fifos.connected();
    if (wanted.tty) {
      const resize = session.byShim
        ? resizeByShim(parts.monitor, { id, key: "" })
        : resizeTerminal(input!);
      followSizes(channels, resize).catch(() => {}); // the client broke the protocol
    }
    const left = aborted(hangup);
    const copies = names.map((name) =>
      copyOutput(fifos.streams[name]!, (bytes) => channels.write(name, bytes)),
    );
    const outputEnds = Promise.all(copies)
      .then(() => session.exited())
      .catch(async (error: unknown) => {
        await Promise.race([left, sleep(hangupMs)]);
        if (!hangup.aborted) throw error;
        return true;
      });
    const taken = takeInput(parts, session, { channels, input });
    // Output in response to the input may follow.
    const inputEnds = taken.then(({ detaches }) => (detaches ? undefined : left));
    const isOver = await Promise.race([outputEnds, inputEnds.then(() => true), left]);
    if (hangup.aborted) {
      fifos[Symbol.dispose](); // the container does not wait for this client any more
      await untilTaken(taken, input);
    } else if (isOver === false) {
      const hint = "it took none for 10 s, or the monitor was replaced; the container runs on";
      return { error: `the output of container ${id} to this client broke off: ${hint}` };
    }
    return { exitCode: 0 };
  } catch (error) {
    return { error: messageOf(error) };
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

/** Opens the container's stdin or terminal; undefined: the container takes no input. */
async function openInput(
  { monitor, poller }: StreamParts,
  { containerId, stdio, wanted, byShim, hasStdin }: AttachSession,
): Promise<ByteStream | undefined> {
  if (wanted.tty && !byShim) return new ByteStream(await monitor.terminal(containerId), poller);
  const [fd] = wanted.stdin && hasStdin ? openStdin(stdio) : [];
  return fd === undefined ? undefined : new ByteStream(fd, poller);
}

/**
 * Sends the client's stdin to the container. The end of that stdin detaches the client, as in containerd; with
 * stdinOnce and without a terminal, it closes the container's stdin instead, and the client keeps receiving output.
 */
async function takeInput(
  { monitor }: StreamParts,
  { containerId, hasStdin, stdinOnce, wanted }: AttachSession,
  { channels, input }: Client,
): Promise<{ detaches: boolean }> {
  if (!wanted.stdin) return { detaches: false };
  const end = await feed(channels.stdin, hasStdin ? input : undefined);
  if (!hasStdin) return { detaches: false };
  if (!stdinOnce || wanted.tty) return { detaches: end === "ended" };
  input?.close();
  await monitor.closeStdin(containerId);
  return { detaches: false };
}

/** Waits until the container has taken what a client sent before it left; drops the rest if the container is stuck. */
async function untilTaken(taken: Promise<unknown>, input: ByteStream | undefined): Promise<void> {
  const begin = performance.now();
  const timer = setInterval(() => {
    const waitedMs = Math.min(performance.now() - begin, input?.idleMs ?? Infinity);
    if (waitedMs >= stuckMs) input?.close();
  }, lookMs);
  await taken.finally(() => clearInterval(timer));
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
