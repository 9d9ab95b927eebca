// What daemon and monitor say to each other on the monitor's socket: frames of a JSON header and an
// optional body of raw bytes (an exec's output), each with its length in front.
import type { Socket } from "node:net";
import { CriError, type ErrorCode } from "../base/errors.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import type { CgroupPaths } from "../node/cgroup.ts";
import type { OomLimit } from "../node/oom_limit.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";

export type StreamOwner = { uid: number; gid: number };

/** Everything the monitor needs to start a container and to look after it. */
export type StartRequest = {
  id: string;
  runtime: RuntimeCommand;
  bundle: string;
  /** Folder with the FIFOs stdin, stdout and stderr; the monitor makes them. */
  stdio: string;
  /** CRI log, absolute; empty: output is discarded. */
  logPath: string;
  /** The container reads from the stdin FIFO; else from /dev/null. */
  stdin: boolean;
  /** A terminal instead of FIFOs: output is one stream. */
  terminal: boolean;
  /** The root of its user namespace, where it has one of its own: who its streams belong to. */
  owner?: StreamOwner;
  /** SELinux's of its streams, where it has labels. */
  label?: string;
  /** Where its memory is counted and its processes are found. */
  cgroup: CgroupPaths;
  timeoutMs: number;
};

export type ExecRequest = {
  id: string;
  /** The caller's name for this exec. */
  key: string;
  /** OCI process (runtime-spec config.md#process) as JSON. */
  process: string;
  /** 0: no limit. */
  timeoutMs: number;
  /** Bytes of both streams together; what comes after is discarded. */
  maxOutputBytes: number;
};

/** A process whose streams are the daemon's: FIFOs that it has made, or a terminal. */
export type StartExecRequest = {
  id: string;
  /** The caller's name for this exec. */
  key: string;
  /** OCI process (runtime-spec config.md#process) as JSON. */
  process: string;
  /** Paths of FIFOs; "": /dev/null. */
  stdin: string;
  stdout: string;
  stderr: string;
  /** A socket on which the caller waits for the terminal; "": none. */
  console: string;
};

/** How a container ended. Times in nanoseconds since the epoch, as decimal text. */
export type ExitRecord = {
  id: string;
  pid: number;
  /** 128 + n for signal n; 255 when it cannot be known. */
  exitCode: number;
  known: boolean;
  startedAtNs: string;
  finishedAtNs: string;
  /** The kernel killed a process of this container's cgroup for memory. */
  oomKilled: boolean;
  /** Whose memory limit it was; absent where that is not known, and from older monitors. */
  oomLimit?: OomLimit;
  /** Bytes of output that no log took (disk full), after everything was tried. */
  lostLogBytes: number;
};

export type HeldStreams = { id: string; stdio: string; stdin: boolean; terminal: boolean };

/** A container that runs, as the daemon knows it. */
export type AdoptRequest = StartRequest & Started;
export type RemoveRequest = { id: string; runtime: RuntimeCommand; timeoutMs: number };
export type Started = { pid: number; startedAtNs: string };
/** pidStartTime: with the pid it names one process. */
export type ExecProcess = { pid: number; pidStartTime: string };
export type ExecResult = { exitCode: number; stdoutBytes: number; timedOut: boolean };
export type Hello = {
  pid: number;
  version: string;
  /** Which executable it runs (base/build.ts). */
  executable: string;
  /** terminalHeld: false when its terminal was an earlier monitor's. */
  running: (Started & HeldStreams & { terminalHeld: boolean })[];
  /** Containers whose start has not ended; absent from older monitors. */
  starting?: string[];
  exits: ExitRecord[];
};

/** Requests by name: parameters and result. */
export type Calls = {
  hello: [Record<string, never>, Hello];
  /** Answered at once, also while other calls wait for an upgrade. */
  ping: [Record<string, never>, Record<string, never>];
  start: [StartRequest, Started];
  /** Joins a start under way, whoever asked for it. */
  awaitStart: [{ id: string }, Started];
  /** What runs and the monitor has lost its record of; one that has ended is told of as an exit. */
  adopt: [AdoptRequest, Record<string, never>];
  exec: [ExecRequest, ExecResult];
  /** Ends an exec whose caller has gone. */
  cancelExec: [{ key: string }, Record<string, never>];
  /** Answered when it runs; it is killed when the caller's connection ends. */
  startExec: [StartExecRequest, ExecProcess];
  /** The end of an exec that was started; once. */
  waitExec: [{ key: string }, { exitCode: number }];
  /** Ends one that an earlier monitor has started. */
  endExec: [{ id: string } & ExecProcess, Record<string, never>];
  /** Output from now on goes into FIFOs too ("": does not), which end with the container. */
  attach: [{ id: string; stdout: string; stderr: string }, Record<string, never>];
  /** What the container reads ends, for good. */
  closeStdin: [{ id: string }, Record<string, never>];
  kill: [{ id: string; signal: number }, { running: boolean }];
  reopenLog: [{ id: string }, Record<string, never>];
  /** Sends a terminal to the socket at path. */
  lendTerminal: [{ id: string; path: string }, Record<string, never>];
  /** Listens for a terminal that the caller kept; it is sent, then taken. */
  awaitTerminal: [{ id: string }, { path: string }];
  takeTerminal: [{ id: string }, Record<string, never>];
  /** Becomes another build of this program; answered only when that fails. */
  upgrade: [{ argv: string[] }, Record<string, never>];
  remove: [RemoveRequest, Record<string, never>];
};

export type RequestHeader = { call: keyof Calls; seq: number; params: unknown };
export type ReplyHeader = {
  seq: number;
  result?: unknown;
  error?: { code: ErrorCode; message: string };
};
export type EventHeader = { event: "exit"; exit: ExitRecord };

const maxHeaderBytes = 4 << 20;
const maxBodyBytes = 32 << 20;

/**
 * @throws CriError INVALID_ARGUMENT for what is over the limits, before anything is sent: the other side
 * would end the connection, and with it the calls of others.
 */
export function writeFrame(socket: Socket, header: object, body: Uint8Array[] = []): void {
  const json = Buffer.from(jsonText(header));
  const bodyBytes = body.reduce((sum, part) => sum + part.length, 0);
  checkSize("call", json.length, maxHeaderBytes);
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
    `the ${what} takes ${bytes} bytes as the monitor is told of it, and ${max} is the most: make its command or environment shorter`,
  );
}

/** Puts frames together from what arrives; a frame over the limits ends the connection. */
export function readFrames(
  socket: Socket,
  onFrame: (header: Record<string, unknown>, body: Buffer) => void,
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
      const header = jsonValue(data.toString("utf8", 8, 8 + headerBytes)) as Record<
        string,
        unknown
      >;
      onFrame(header, data.subarray(8 + headerBytes, need));
      data = data.subarray(need);
      need = 8;
    }
    chunks = data.length === 0 ? [] : [data];
    length = data.length;
  });
}

/** A monitor's arguments (main.ts); what it has after an upgrade begins with the same. */
export function monitorWords(state: string): string[] {
  return ["monitor", "--state", state];
}
