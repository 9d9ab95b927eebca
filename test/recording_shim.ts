// Records the calls that a shim gets, as lines of JSON in the file that RECORDING_SHIM names. It is a shim of Kata's
// generation (a bare address, task v2) that runs nothing and fails as a test demands; recordingShim() makes its
// executable.
import { type ChildProcess, spawn } from "node:child_process";
import {
  appendFileSync,
  chmodSync,
  existsSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
  readlinkSync,
} from "node:fs";
import { createServer, type Socket } from "node:net";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../src/base/int64.ts";
import { grpcCodes } from "../src/base/errors.ts";
import { encodeMessage } from "../src/base/protobuf.ts";
import { task } from "../src/proto/task.js";
import {
  decodeRequest,
  encodeResponse,
  messageHeader,
  Messages,
  RESPONSE,
  type Message,
} from "../src/sys/ttrpc_wire.ts";
import { wholeLines } from "./whole_lines.ts";

/** One recorded call: a verb of the executable, or a method of the Task service. */
export type Recorded = { call: string; id: string } & Record<string, unknown>;

/**
 * What a shim says of processes:
 *   plain    its own pid for its own and the containers'
 *   wasm     Connect is refused before the Create, whose pid is the shim's; that of Start is a process in namespaces
 *            of its own, as with runwasi
 *   silent   as plain, but the shim's own pid is never told
 */
type Kind = "plain" | "wasm" | "silent";

/** Makes a shim's executable at `path`, which records into `file`. */
export function recordingShim(path: string, file: string, kind: Kind = "plain"): void {
  const command = `exec ${process.execPath} ${import.meta.filename} "$@"`;
  const environment = `export RECORDING_SHIM=${file} RECORDING_SHIM_KIND=${kind}`;
  writeFileSync(path, `#!/bin/sh\n${environment}\n${command}\n`);
  chmodSync(path, 0o755);
}

export function recordedCalls(file: string): Recorded[] {
  return wholeLines(file).map((line) => JSON.parse(line) as Recorded);
}

/**
 * What happens to a call of the method: it gets an error, an answer after a second or none. The first such call only
 * gets an error ("error-once"), or closes the connection ("cut").
 */
export type Fault = "error" | "error-once" | "slow" | "silence" | "cut";

/** From here on, calls of these methods fail; `of`: only those for this container. */
export function setFaults(file: string, faults: Record<string, Fault>, of = ""): void {
  // At once: the shim reads it at each call.
  writeFileSync(`${file}.faults.new`, JSON.stringify({ faults, of }));
  renameSync(`${file}.faults.new`, `${file}.faults`);
}

function faultOf(method: string, id: string): Fault | undefined {
  const file = `${process.env["RECORDING_SHIM"]}.faults`;
  if (!existsSync(file)) return undefined;
  type Faults = { faults: Record<string, Fault>; of: string };
  const { faults, of } = JSON.parse(readFileSync(file, "utf8")) as Faults;
  const fault = of === "" || of === id ? faults[method] : undefined;
  if (fault === "cut" || fault === "error-once") setFaults(file.slice(0, -".faults".length), {});
  return fault;
}

function record(call: Recorded): void {
  appendFileSync(process.env["RECORDING_SHIM"]!, `${JSON.stringify(call)}\n`);
}

/** Closes the connection instead of an answer. */
class Cut extends Error {}
class NotFound extends Error {}

const kind = process.env["RECORDING_SHIM_KIND"] as Kind;
/** By container: the processes of a wasm shim. */
const processes = new Map<string, ChildProcess>();

function startProcess(id: string): number {
  if (kind !== "wasm") return pid;
  const program = ["--pdeathsig", "KILL", "unshare", "--ipc", "--uts", "sleep", "infinity"];
  const child = spawn("setpriv", program, { stdio: "ignore" });
  processes.set(id, child);
  // Its namespaces are new once unshare runs: a real shim answers when they are.
  const uts = (of: number | "self") => readlinkSync(`/proc/${of}/ns/uts`);
  for (const end = Date.now() + 10_000; uts(child.pid!) === uts("self") && Date.now() < end;)
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
  return child.pid!;
}

function shimPid(id: string): number {
  if (kind === "wasm" && !running.has(`${id}/`)) throw new NotFound(`no container ${id}`);
  return kind === "silent" ? 0 : pid;
}

type Ended = PromiseWithResolvers<number>;
/** By container and exec. */
const running = new Map<string, Ended>();
const pid = process.pid;
const requests: Record<string, { decode(bytes: Uint8Array): object }> = {
  Connect: task.ConnectRequest,
  Create: task.CreateTaskRequest,
  Exec: task.ExecProcessRequest,
  Kill: task.KillRequest,
  Update: task.UpdateTaskRequest,
};
const exited_at = { seconds: toLong(1), nanos: 0 };

type Subject = { id: string; exec_id?: string };

/** Returns the answer's message. */
async function answer(method: string, payload: Uint8Array): Promise<Uint8Array> {
  const request = (requests[method] ?? task.ProcessRequest).decode(payload) as Subject;
  const { id } = request;
  const subject = `${id}/${request.exec_id ?? ""}`;
  record({ call: method, ...(JSON.parse(JSON.stringify(request)) as { id: string }) });
  const fault = faultOf(method, id);
  if (fault === "error" || fault === "error-once") throw new Error(`${method} is broken`);
  if (fault === "slow") await sleep(1_000);
  if (fault === "silence") await new Promise(() => {});
  if (fault === "cut") throw new Cut();
  switch (method) {
    case "Connect":
      return encodeMessage(task.ConnectResponse, { shim_pid: shimPid(id) });
    case "Exec":
      running.set(subject, Promise.withResolvers());
      return new Uint8Array();
    case "Create":
      running.set(subject, Promise.withResolvers());
      return encodeMessage(task.CreateTaskResponse, { pid });
    case "Start":
      return encodeMessage(task.StartResponse, { pid: startProcess(id) });
    case "Wait":
      return encodeMessage(task.WaitResponse, { exit_status: await end(subject), exited_at });
    case "Kill":
      running.get(subject)?.resolve(128 + (request as unknown as task.KillRequest).signal);
      return new Uint8Array();
    case "Delete":
      running.delete(subject);
      processes.get(id)?.kill("SIGKILL");
      return encodeMessage(task.DeleteResponse, { pid, exit_status: 0, exited_at });
    case "Shutdown":
      if (running.size === 0) setTimeout(() => process.exit(0), 10);
      return new Uint8Array();
    default:
      return new Uint8Array();
  }
}

function end(subject: string): Promise<number> {
  return running.get(subject)?.promise ?? Promise.resolve(255);
}

function serveConnection(socket: Socket): void {
  const reply = async ({ stream, body }: Message) => {
    const { method, payload } = decodeRequest(body);
    const response = await answer(method, payload).then(
      (message) => encodeResponse({ payload: message }),
      (error: Error) => {
        if (error instanceof Cut) throw error;
        const code = error instanceof NotFound ? grpcCodes.NOT_FOUND : grpcCodes.INTERNAL;
        return encodeResponse({ code, message: error.message });
      },
    );
    socket.write(messageHeader({ stream, type: RESPONSE }, response.length));
    socket.write(response);
  };
  const messages = new Messages((message) => {
    reply(message).catch((error: Error) => socket.destroy(error));
  });
  socket.on("data", (chunk: Buffer) => {
    for (const _ of messages.feed(chunk, () => false));
  });
  socket.on("error", () => {});
}

async function start(id: string): Promise<void> {
  type Spec = { annotations: Record<string, string>; mounts: object[]; linux: object };
  const { annotations, mounts, linux } = JSON.parse(readFileSync("config.json", "utf8")) as Spec;
  const environment = ["NAMESPACE", "TTRPC_ADDRESS", "GRPC_ADDRESS"].map(
    (name) => process.env[name],
  );
  record({
    call: "start",
    id,
    argv: process.argv.slice(2),
    environment,
    annotations,
    mounts,
    linux,
  });
  const socket = join(
    "/tmp",
    `recording-${annotations["io.kubernetes.cri.sandbox-id"]!.slice(0, 12)}`,
  );
  if (!existsSync(socket)) {
    const child = spawn(process.execPath, [import.meta.filename, "serve", socket], {
      detached: true,
      stdio: "ignore",
    });
    child.unref();
    while (!existsSync(socket)) await sleep(5);
  }
  process.stdout.write(`unix://${socket}`);
}

if (import.meta.main) {
  const verb = process.argv.at(-1)!;
  const id = process.argv[process.argv.indexOf("-id") + 1]!;
  if (process.argv[2] === "serve") {
    process.on("exit", () => rmSync(verb, { force: true }));
    createServer(serveConnection).listen(verb);
  } else if (verb === "start") await start(id);
  else record({ call: verb, id });
}
