// Defines the calls on the monitor's socket, and their framing: a JSON header and an optional body of raw
// bytes (an exec's output), each preceded by its length.
import type { Socket } from "node:net";
import { join } from "node:path";
import { CriError, type ErrorCode } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import type { InFile } from "../monitor_log/capture.ts";
import type { LogState } from "./log_workers.ts";
import type { ExitRecord, RunRecord, StartRequest } from "./record_schemas.ts";

export type { ExitRecord, InFile, LogState, StartRequest };
export type LogTrouble = LogState["troubles"][number];

/** The exec of a process in the container `id`. */
export type ExecSubject = {
  id: string;
  /** The caller's name for this exec. */
  key: string;
  /** OCI process (runtime-spec config.md#process) as JSON. */
  process: string;
};

export type ExecRequest = ExecSubject & {
  /** 0: no limit. */
  timeoutMs: number;
  /** Bytes of both streams together; the rest is discarded. */
  maxOutputBytes: number;
  /** Limit, after its exit, for output of children that keep its streams open; older daemons do not send it. */
  drainMs?: number;
  /** Where the monitor may leave output that is too large for memory; older daemons do not send it. */
  outputFile?: string;
};

/** An exec whose streams are FIFOs of the daemon, or a terminal. */
export type StartExecRequest = ExecSubject & {
  /** Paths of FIFOs; "": /dev/null. */
  stdin: string;
  stdout: string;
  stderr: string;
  /** The socket on which the caller receives the terminal; "": none, or a shim has it. */
  console: string;
  /** A terminal that a shim holds: its input and output pass through stdin and stdout. */
  terminal?: boolean;
};

/** A call of a shim's Task service; only for containers that a shim runs. */
export type TaskRequest = {
  id: string;
  method: "Checkpoint" | "Pids" | "ResizePty" | "Stats" | "Update";
  /** The request message (proto/task.proto) in base64. */
  payload: string;
  timeoutMs: number;
};

export type HeldStreams = Pick<StartRequest, "id" | "stdio" | "stdin" | "terminal">;

/** A running container as the daemon knows it. */
export type AdoptRequest = StartRequest & Started;
export type RemoveRequest = Pick<StartRequest, "id" | "runtime" | "timeoutMs">;
export type Started = Pick<RunRecord, "pid" | "startedAtNs">;
/** pidStartTime: identifies one process together with the pid. */
export type ExecProcess = { pid: number; pidStartTime: string };
/** key: absent in requests of older daemons; needed where a shim runs the container. */
export type EndExecRequest = { id: string; key?: string } & ExecProcess;
export type ExecResult = {
  exitCode: number;
  stdoutBytes: number;
  timedOut: boolean;
  /** The body is empty, and the request's outputFile has the output, which the caller removes. */
  inFile?: InFile | undefined;
  /** Why some output was not kept. */
  cut?: string | undefined;
};
/** How long the OCI runtime took, in milliseconds. */
export type RuntimeTimes = { create?: number; start?: number };
/** What the monitor is doing, for a dump that people read: it may change with every build. */
export type Inspection = Record<string, unknown>;
export type Hello = {
  pid: number;
  version: string;
  /** The id of its executable (base/build.ts). */
  executable: string;
  /** terminalHeld: false when an earlier monitor had the terminal and this one has not received it. */
  running: (Started & HeldStreams & { terminalHeld: boolean })[];
  /** Containers whose start is under way; older monitors do not send it. */
  starting?: string[];
  exits: ExitRecord[];
};

/** Requests by name: parameters and result. */
export type Calls = {
  hello: [Record<string, never>, Hello];
  /** Answered at once, even while other calls wait for an upgrade. */
  ping: [Record<string, never>, Record<string, never>];
  /** tookMs: older monitors do not send it. */
  start: [StartRequest, Started & { tookMs?: RuntimeTimes }];
  /**
   * Creates a container, which startCreated starts. Its creation is undone by remove, at the end of the caller's
   * connection, and after the request's timeout. Older monitors do not have it.
   */
  create: [StartRequest, Started & { tookMs?: RuntimeTimes }];
  startCreated: [StartRequest, Started & { tookMs?: RuntimeTimes }];
  inspect: [Record<string, never>, Inspection];
  /** Joins a start under way, also one that an earlier daemon requested. */
  awaitStart: [{ id: string }, Started];
  /** Ends a start under way, which then fails; nothing without one. Older monitors do not have it. */
  cancelStart: [{ id: string }, Record<string, never>];
  /** A running container whose record the monitor has lost; one that has ended is announced as an exit. */
  adopt: [AdoptRequest, Record<string, never>];
  exec: [ExecRequest, ExecResult];
  /** Kills an exec whose caller has disconnected. */
  cancelExec: [{ key: string }, Record<string, never>];
  /** Answered when the process runs; it is killed when the caller's connection ends. */
  startExec: [StartExecRequest, ExecProcess];
  /** Waits for the end of a started exec; possible once. */
  waitExec: [{ key: string }, { exitCode: number }];
  /** Kills an exec that an earlier monitor has started. */
  endExec: [EndExecRequest, Record<string, never>];
  /** Copies further output to FIFOs too ("": none), until the container ends. */
  attach: [{ id: string; stdout: string; stderr: string }, Record<string, never>];
  /** Ends the container's stdin for good; key: that of a shim's exec instead, once the caller has closed its end. */
  closeStdin: [{ id: string; key?: string }, Record<string, never>];
  kill: [{ id: string; signal: number }, { running: boolean }];
  /**
   * Returns the logs that cannot be written, and has their changes sent to this connection as events. Older monitors do
   * not have it; older daemons take every event for an exit.
   */
  watchLogs: [Record<string, never>, LogState];
  reopenLog: [{ id: string }, Record<string, never>];
  /** Calls the shim of a running container; the response message is the reply's body. */
  task: [TaskRequest, Record<string, never>];
  /** Sends a terminal to the socket at path. */
  lendTerminal: [{ id: string; path: string }, Record<string, never>];
  /** Returns a socket for a terminal that the caller kept; the caller sends it and calls takeTerminal. */
  awaitTerminal: [{ id: string }, { path: string }];
  takeTerminal: [{ id: string }, Record<string, never>];
  /** Replaces the monitor by another build; answered only when that fails. */
  upgrade: [{ argv: string[] }, Record<string, never>];
  remove: [RemoveRequest, Record<string, never>];
};

export type RequestHeader = { call: keyof Calls; seq: number; params: unknown };
export type ReplyHeader = {
  seq: number;
  result?: unknown;
  error?: { code: ErrorCode; message: string };
};
export type EventHeader = { event: "exit"; exit: ExitRecord } | { event: "logs"; logs: LogState };
/** One of these three, or another of a newer build. */
type FrameHeader = Record<string, unknown>;

const maxHeaderBytes = 4 << 20;
const maxBodyBytes = 32 << 20;

/**
 * Sends a frame. @throws CriError INVALID_ARGUMENT before sending one over the limits: the peer would close
 * the connection, and with it fail the calls of others.
 */
export function writeFrame(socket: Socket, header: object, body: Uint8Array[] = []): void {
  const json = Buffer.from(jsonText(header));
  const bodyBytes = body.reduce((sum, part) => sum + part.length, 0);
  checkSize("request", json.length, maxHeaderBytes);
  checkSize("output", bodyBytes, maxBodyBytes);
  const lengths = Buffer.allocUnsafe(8);
  lengths.writeUInt32BE(json.length, 0);
  lengths.writeUInt32BE(bodyBytes, 4);
  socket.cork();
  socket.write(lengths);
  socket.write(json);
  for (const part of body) if (part.length > 0) socket.write(part);
  socket.uncork();
}

function checkSize(what: string, bytes: number, max: number): void {
  if (bytes <= max) return;
  throw new CriError(
    "INVALID_ARGUMENT",
    `${what} is ${bytes} bytes; the monitor accepts at most ${max}: shorten its command or environment`,
  );
}

/** Assembles frames from the chunks that arrive; a frame over the limits closes the connection. */
export function readFrames(
  socket: Socket,
  onFrame: (header: FrameHeader, body: Buffer) => void,
): void {
  let chunks: Buffer[] = [];
  let length = 0;
  let need = 8;
  socket.on("data", (chunk: Buffer) => {
    chunks.push(chunk);
    length += chunk.length;
    if (length < need) return;
    let data = chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
    need = 8;
    while (data.length >= 8) {
      const headerBytes = data.readUInt32BE(0);
      const bodyBytes = data.readUInt32BE(4);
      if (headerBytes > maxHeaderBytes || bodyBytes > maxBodyBytes) {
        socket.destroy(new Error(`monitor frame of ${headerBytes} + ${bodyBytes} bytes`));
        return;
      }
      need = 8 + headerBytes + bodyBytes;
      if (data.length < need) break;
      const header = trustedJsonValue(data.toString("utf8", 8, 8 + headerBytes)) as FrameHeader;
      onFrame(header, data.subarray(8 + headerBytes, need));
      data = data.subarray(need);
      need = 8;
    }
    chunks = data.length === 0 ? [] : [data];
    length = data.length;
  });
}

/** Returns a monitor's arguments (main.ts); after an upgrade, further ones follow them. */
export function monitorArgs(state: string): string[] {
  return ["monitor", "--state", state];
}

/** Returns the folder with the bundles of the shims' containers, named by their ids. folder: the monitor's. */
export function shimBundles(folder: string): string {
  return join(folder, "shims");
}
