// Attach: a client of a container's own streams. Its output comes from the monitor's log worker (tap.ts),
// from now on and not from the past; what it types goes straight into the container's stdin or terminal.
// A client that leaves does not end the container.
import { messageOf } from "../base/errors.ts";
import { openStdin } from "../monitor_client/stdio_keepalive.ts";
import { ByteStream } from "../sys/byte_stream.ts";
import { setTerminalSize } from "../sys/terminal.ts";
import type { Channels, Outcome, Wanted } from "./channels.ts";
import { copyOutput } from "./copy.ts";
import type { StreamParts } from "./exec.ts";
import { Fifos } from "./fifo.ts";

export type AttachSession = {
  containerId: string;
  /** Folder of the container's FIFOs. */
  stdio: string;
  /** Its stdin ends with that of the first client. */
  stdinOnce: boolean;
  /** Until its exit is committed, if it has ended: whoever hears of that here can ask for its code. */
  exited: () => Promise<void>;
  wanted: Wanted;
};

const never = new Promise<never>(() => {});

/** Until the container ends, the client goes, or what it types ends. */
export async function serveAttach(
  parts: StreamParts,
  session: AttachSession,
  channels: Channels,
  gone: AbortSignal,
): Promise<Outcome> {
  const { containerId: id, wanted } = session;
  try {
    // Standard output in any case: its end is the container's.
    const names: ("stdout" | "stderr")[] = wanted.stderr ? ["stdout", "stderr"] : ["stdout"];
    using fifos = new Fifos(names, parts);
    const input = await openInput(parts, session);
    using _ = { [Symbol.dispose]: () => input?.close() };
    await parts.monitor.call("attach", { id, ...fifos.paths });
    fifos.connected();
    if (wanted.tty) resize(input, channels).catch(() => {}); // the terminal has gone
    const copies = names.map((name) =>
      copyOutput(fifos.streams[name]!, (bytes) => channels.write(name, bytes), never),
    );
    const ended = Promise.all(copies).then(() => session.exited());
    await Promise.race([ended, leave(parts, session, { channels, input, gone })]);
    return { exitCode: 0 };
  } catch (error) {
    return { error: messageOf(error) };
  }
}

/** Where what the client types goes; undefined: nowhere. */
async function openInput(
  { monitor, poller }: StreamParts,
  { containerId, stdio, wanted }: AttachSession,
): Promise<ByteStream | undefined> {
  if (wanted.tty) return new ByteStream(await monitor.terminal(containerId), poller);
  const [fd] = wanted.stdin ? openStdin(stdio) : [];
  return fd === undefined ? undefined : new ByteStream(fd, poller);
}

/**
 * Resolves when this client is done, because it has gone or half-closed what it types. Then the container's
 * stdin ends too if it is for one client only; else the client is let go, as containerd does.
 */
async function leave(
  { monitor }: StreamParts,
  { containerId, stdinOnce, wanted }: AttachSession,
  client: { channels: Channels; input: ByteStream | undefined; gone: AbortSignal },
): Promise<void> {
  const { channels, input, gone } = client;
  const hungUp = new Promise<"gone">((resolve) => {
    if (gone.aborted) resolve("gone");
    gone.addEventListener("abort", () => resolve("gone"), { once: true });
  });
  const done = wanted.stdin ? await Promise.race([feed(channels.stdin, input), hungUp]) : "unread";
  if (stdinOnce && wanted.stdin && !wanted.tty) {
    input?.close();
    await monitor.closeStdin(containerId);
  } else if (done === "ended") return;
  await hungUp; // what the container answers to its input is still to come
}

/** unread: the container takes no more, which is no reason for the client to go. */
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

async function resize(input: ByteStream | undefined, { resizes }: Channels): Promise<void> {
  for await (const { columns, rows } of resizes) {
    if (input?.closed === false) setTerminalSize(input.descriptor, { columns, rows });
  }
}
