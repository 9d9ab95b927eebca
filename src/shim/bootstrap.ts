// Runs a shim's executable: `start`, which starts the shim or finds the one of the same pod and returns its
// address, and `delete`, which cleans up after a shim that has ended.
//
// Three generations of shims read and answer `start` differently:
//   containerd ≤ 1.7, Kata      stdin: options as Any, or nothing     stdout: the address, task v2
//   containerd 2.0–2.2, gVisor  stdin: ignored                        stdout: JSON with version and address
//   containerd ≥ 2.3            stdin: BootstrapParams                stdout: BootstrapResult
// The newest is tried first. An older shim that fails on it is called again in the older way.
import { CriError, messageOf } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import { encodeMessage } from "../base/protobuf.ts";
import { quoted } from "../base/text.ts";
import { task } from "../proto/task.js";
import type { Any } from "../proto/task_types.ts";
import { failureOutput, run, type RunResult } from "../sys/run.ts";

/** The containerd namespace of all containers: part of the shims' socket paths. */
export const shimNamespace = "isulad";
/** The containerd whose API proto/task.proto has: shims choose the generation of the protocol by this version. */
const containerdVersion = "2.4.2";
/** Of an answer of `start`. */
const answerBytesMax = 64 << 10;

/** version: 2 or 3, of the Task service. path: of its unix socket. */
export type ShimAddress = { version: number; path: string };

export type ShimCall = {
  /** The shim's executable. */
  program: string;
  /** The container's id. */
  id: string;
  bundle: string;
  /** A path that no other daemon of this node has: shims derive their socket's name from it. */
  owner: string;
  options?: Any;
  signal: AbortSignal;
};

/** @throws CriError with the shim's own message; DEADLINE_EXCEEDED or CANCELLED with the signal. */
export async function startShim(call: ShimCall): Promise<ShimAddress> {
  const { program, options } = call;
  const first = await runShim(call, ["start"], bootstrapParams(call));
  if (first.exitCode === 0) return parseAddress(first.stdout, program);
  const older = options === undefined ? "" : encodeMessage(task.Any, options);
  const second = await runShim(call, ["start"], older);
  if (second.exitCode === 0) return parseAddress(second.stdout, program);
  // A shim of the newest generation complains about the older input: then the first answer is the one that counts.
  const meant = /bootstrap|deprecated/i.test(second.stderr) ? first : second;
  throw new CriError("UNKNOWN", `${program} start: ${failureOutput(meant)}`);
}

/** How a container ended whose shim has ended; undefined where the shim's executable does not tell. */
export type DeletedTask = { exitCode: number; pid: number };

/**
 * Kills and cleans up what a shim that has ended left of a container.
 * @throws CriError with the shim's own message; DEADLINE_EXCEEDED or CANCELLED with the signal.
 */
export async function deleteWithoutShim(call: ShimCall): Promise<DeletedTask | undefined> {
  const result = await runShim(call, ["-bundle", call.bundle, "delete"], "");
  if (result.exitCode !== 0) {
    throw new CriError("UNKNOWN", `${call.program} delete: ${failureOutput(result)}`);
  }
  try {
    const answer = task.DeleteResponse.decode(Buffer.from(result.stdout, "latin1"));
    if (answer.exited_at === null || answer.exited_at === undefined) return undefined;
    return { exitCode: answer.exit_status, pid: answer.pid };
  } catch {
    return undefined; // a shim may print a warning instead
  }
}

function runShim(call: ShimCall, verb: string[], input: string | Uint8Array): Promise<RunResult> {
  const { program, id, bundle, owner, signal } = call;
  const flags = ["-namespace", shimNamespace, "-address", owner, "-publish-binary", "/bin/true"];
  return run([program, ...flags, "-id", id, ...verb], {
    signal,
    input,
    cwd: bundle,
    encoding: "latin1",
    maxOutputBytes: answerBytesMax,
    env: {
      ...(process.env as Record<string, string>),
      GOMAXPROCS: "2",
      MAX_SHIM_VERSION: "3",
      // No sink of events: exits come by Wait, and most shims do without one.
      TTRPC_ADDRESS: "",
      GRPC_ADDRESS: owner,
      NAMESPACE: shimNamespace,
    },
  });
}

function bootstrapParams({ id, owner, options }: ShimCall): Buffer {
  return encodeMessage(task.BootstrapParams, {
    instance_id: id,
    namespace: shimNamespace,
    log_level: 0,
    containerd_version: containerdVersion,
    containerd_ttrpc_address: "",
    containerd_grpc_address: owner,
    containerd_binary: "/bin/true",
    extensions: options === undefined ? [] : [{ value: options }],
  });
}

/**
 * Parses the answer of `start`, given in latin1.
 * @throws CriError UNKNOWN for an invalid one, or a socket other than ttrpc's on a unix path.
 */
export function parseAddress(answer: string, program: string): ShimAddress {
  const { version, address, protocol } = decodeAnswer(answer, program);
  const path = address.replace(/^unix:\/\//, "");
  const isUsable = (protocol === "ttrpc" || protocol === "") && path.startsWith("/");
  if (isUsable && (version === 2 || version === 3)) return { version, path };
  const message = `${program} start: protocol ${quoted(protocol)} version ${version} at ${quoted(address)} is not supported, only ttrpc of version 2 and 3 on a unix socket`;
  throw new CriError("UNKNOWN", message);
}

type Answer = { version: number; address: string; protocol: string };

function decodeAnswer(answer: string, program: string): Answer {
  const text = answer.trim();
  try {
    if (text.startsWith("{")) {
      const { version, address, protocol } = jsonValue(text) as Partial<Answer>;
      return { version: version ?? 0, address: address ?? "", protocol: protocol ?? "" };
    }
    if (/^(unix|vsock|hvsock):\/\/|^\//.test(text)) {
      return { version: 2, address: text, protocol: "ttrpc" };
    }
    return task.BootstrapResult.decode(Buffer.from(answer, "latin1"));
  } catch (cause) {
    const message = `${program} start: its answer ${quoted(text)} is invalid: ${messageOf(cause)}`;
    throw new CriError("UNKNOWN", message, { cause });
  }
}
