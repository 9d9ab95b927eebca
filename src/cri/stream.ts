// Exec, Attach and PortForward: checked, then answered with a URL that is good for one use.
import { CriError } from "../base/errors.ts";
import type {
  AttachRequest,
  AttachResponse,
  ExecRequest,
  ExecResponse,
  PortForwardRequest,
  PortForwardResponse,
} from "../proto/types.ts";
import { execProcess, ociJson } from "../spec/oci.ts";
import { readSpec } from "./bundle.ts";
import { runningContainer } from "./container.ts";
import type { Context } from "./context.ts";
import { stdioFolder } from "./pause.ts";
import { unready } from "./sandbox.ts";

type Wanted = { stdin: boolean; stdout: boolean; stderr: boolean; tty: boolean };

export async function exec(context: Context, request: ExecRequest): Promise<ExecResponse> {
  const wanted = wantedOf(request);
  const { id, selinux } = runningContainer(context, request.container_id ?? "");
  const { process } = await readSpec(context, id);
  const command = ociJson(execProcess(process, request.cmd ?? [], wanted.tty));
  const label = selinux?.mount;
  return { url: context.streams.exec({ containerId: id, process: command, label, wanted }) };
}

export function attach(context: Context, request: AttachRequest): AttachResponse {
  const wanted = wantedOf(request);
  const { id, config } = runningContainer(context, request.container_id ?? "");
  const [hasTty, hasStdin] = [config.tty === true, config.stdin === true];
  if (wanted.tty !== hasTty) {
    const has = hasTty ? "has a terminal" : "has no terminal";
    throw new CriError("INVALID_ARGUMENT", `tty ${wanted.tty}: container ${id} ${has}`);
  }
  if (wanted.stdin && !hasStdin) {
    throw new CriError("INVALID_ARGUMENT", `stdin true: container ${id} was made without stdin`);
  }
  const stdinOnce = config.stdin_once === true;
  const stdio = stdioFolder(context, id);
  const exited = () => exitCommitted(context, id);
  return { url: context.streams.attach({ containerId: id, stdio, stdinOnce, wanted, exited }) };
}

/** A container's streams end a moment before its exit is committed. */
const commitMs = 5_000;

async function exitCommitted(context: Context, id: string): Promise<void> {
  const enough = new AbortController();
  const committed = context.exits.wait(id, commitMs, enough.signal);
  if (context.containers.find(id)?.phase.phase === "running") await committed;
  enough.abort();
}

/** @throws CriError NOT_FOUND, or FAILED_PRECONDITION when the sandbox is not ready. */
export function portForward(context: Context, request: PortForwardRequest): PortForwardResponse {
  const sandbox = context.sandboxes.get(request.pod_sandbox_id ?? "");
  const { phase, namespaces, networkMode } = sandbox;
  if (phase.phase !== "ready") throw unready(sandbox);
  const netns = networkMode === "host" ? undefined : namespaces.net?.path;
  return { url: context.streams.portForward({ netns, ports: request.port ?? [] }) };
}

/** @throws CriError INVALID_ARGUMENT for streams that cannot be had together, or none. */
function wantedOf(request: ExecRequest | AttachRequest): Wanted {
  const { stdin = false, stdout = false, stderr = false, tty = false } = request;
  if (tty && stderr) {
    throw new CriError("INVALID_ARGUMENT", "tty and stderr: a terminal has one output, stdout");
  }
  if (!stdin && !stdout && !stderr) {
    throw new CriError("INVALID_ARGUMENT", "stdin, stdout, stderr: at least one must be true");
  }
  return {
    stdin: stdin === true,
    stdout: stdout === true,
    stderr: stderr === true,
    tty: tty === true,
  };
}
