// Serves Exec: runs a command in a container, with its streams over FIFOs between it and this process, or
// over a terminal (exec_io.ts). The bytes bypass the monitor. When this process ends, the command's streams
// end, and the monitor kills it.
import { randomBytes } from "node:crypto";
import { codeOf, messageOf } from "../base/errors.ts";
import type { MonitorClient } from "../monitor_client/client.ts";
import type { EndExecRequest } from "../monitor/protocol.ts";
import type { Channels, Outcome } from "./channels.ts";
import { copyOutput, lingerMs, shimLingerMs } from "./copy_output.ts";
import { openExecIo, type ExecIo, type ExecStreams, type StreamParts } from "./exec_io.ts";
import { followSizes } from "./resize.ts";

export type ExecSession = Omit<ExecStreams, "key"> & {
  /** Makes the OCI process as JSON: a URL that waits for its client does not hold the container's environment. */
  process: () => Promise<string>;
};

/** Runs the command to its end; kills it if the client disconnects or its streams fail. */
export async function serveExec(
  parts: StreamParts,
  session: ExecSession,
  channels: Channels,
  hangup: AbortSignal,
): Promise<Outcome> {
  const key = randomBytes(16).toString("hex");
  let hasExited = false;
  const cancel = () => {
    // A shim keeps an exec that has ended until its output was read. A dead monitor's execs are killed anyway.
    if (hasExited && !session.byShim) return;
    parts.monitor.call("cancelExec", { key }).catch(() => {});
  };
  hangup.addEventListener("abort", cancel, { once: true });
  try {
    using io = openExecIo(parts, { ...session, key });
    const { containerId: id } = session;
    const process = await session.process();
    const { result } = await parts.monitor.call("startExec", { id, key, process, ...io.request });
    if (hangup.aborted) cancel(); // the first cancel may have preceded the exec
    const exec = { id, key, ...result };
    const exited = waitExec(parts.monitor, exec).finally(() => (hasExited = true));
    exited.catch(() => {}); // reported by its other awaiters
    io.started();
    // The client broke the protocol.
    if (session.wanted.tty) followSizes(channels, (size) => io.resize(size)).catch(() => {});
    return await copyStreams(io, channels, {
      exited,
      lingerMs: session.byShim ? shimLingerMs : lingerMs,
    });
  } catch (error) {
    return { error: messageOf(error) };
  } finally {
    hangup.removeEventListener("abort", cancel);
    cancel();
  }
}

async function copyStreams(
  io: ExecIo,
  channels: Channels,
  end: { exited: Promise<number>; lingerMs: number },
): Promise<Outcome> {
  feed(io, channels.stdin).catch(() => {}); // EPIPE: the command closed its stdin
  const copies = io.outputs.map(({ name, stream }) =>
    copyOutput(stream, (bytes) => channels.write(name, bytes), end).finally(() =>
      // The command must not block on a client that has disconnected.
      stream.close(),
    ),
  );
  const [exitCode] = await Promise.all([end.exited, ...copies]);
  return { exitCode };
}

/** Returns the exit code. @throws if the monitor died; its successor then kills the process. */
async function waitExec(
  monitor: MonitorClient,
  exec: EndExecRequest & { key: string },
): Promise<number> {
  try {
    const { result } = await monitor.call("waitExec", { key: exec.key });
    return result.exitCode;
  } catch (error) {
    // The monitor died: the next one kills the orphan.
    if (codeOf(error) === "UNAVAILABLE") await monitor.call("endExec", exec);
    throw error;
  }
}

/** Copies the client's stdin; a command that closes its stdin ends only this copy. */
async function feed(io: ExecIo, stdin: AsyncIterable<Buffer>): Promise<void> {
  try {
    await io.inputRead();
    for await (const chunk of stdin) await io.input?.send(chunk);
  } finally {
    await io.endInput();
  }
}
