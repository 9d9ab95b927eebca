// Exec, Attach and PortForward: checks the request and returns a URL for a single use.
import type * as cri from "../proto/types.ts";
import { execProcess, ociJson } from "../spec/oci.ts";
import { isByShim, isInGuest } from "../state/sandbox.ts";
import { readSpec } from "./bundle.ts";
import { stdioFolder, type Context } from "./context.ts";
import { commandFields, containerFields } from "./log_subject.ts";
import {
  requestedStreams,
  requireAttachable,
  requireReady,
  requireRunning,
} from "./preconditions.ts";

export async function exec(context: Context, request: cri.ExecRequest): Promise<cri.ExecResponse> {
  const wanted = requestedStreams(request);
  const container = requireRunning(context.containers.get(request.container_id ?? ""));
  const { id, selinux } = container;
  const cmd = request.cmd ?? [];
  const process = async () =>
    ociJson(execProcess((await readSpec(context, id)).process, cmd, wanted.tty));
  await process(); // what is invalid is refused here
  const label = selinux?.mount;
  const subject = { ...containerFields(context, container), ...commandFields(request.cmd) };
  context.log.debug("exec with streams", { ...subject, tty: wanted.tty });
  const streams = { containerId: id, byShim: isByShim(container), label, wanted };
  return { url: context.streams.exec(container.sandboxId, { ...streams, process }) };
}

export function attach(context: Context, request: cri.AttachRequest): cri.AttachResponse {
  const wanted = requestedStreams(request);
  const container = requireRunning(context.containers.get(request.container_id ?? ""));
  requireAttachable(container, wanted);
  const { id, config } = container;
  const [hasStdin, stdinOnce] = [config.stdin === true, config.stdin_once === true];
  const stdio = stdioFolder(context, id);
  const exited = () => exitCommitted(context, id);
  const byShim = isByShim(container);
  const session = { containerId: id, stdio, byShim, hasStdin, stdinOnce, wanted, exited };
  return { url: context.streams.attach(container.sandboxId, session) };
}

/** The streams of a container close a moment before its exit is committed; a busy disk delays that. */
const commitMs = 10_000;

async function exitCommitted(context: Context, id: string): Promise<boolean> {
  if (context.containers.find(id)?.phase.phase !== "running") return true;
  return await context.exits.wait(id, commitMs);
}

/** @throws CriError NOT_FOUND, or FAILED_PRECONDITION if the sandbox is not ready. */
export function portForward(
  context: Context,
  request: cri.PortForwardRequest,
): cri.PortForwardResponse {
  const sandbox = requireReady(context.sandboxes.get(request.pod_sandbox_id ?? ""));
  const { id: pod, namespaces, networkMode, networkSettings } = sandbox;
  const ports = request.port ?? [];
  if (isInGuest(sandbox) && networkMode === "cni") {
    // localhost in the pod's network namespace does not reach the guest's network.
    const addresses = networkSettings.IPs;
    return { url: context.streams.portForward({ pod, netns: undefined, addresses, ports }) };
  }
  const netns = networkMode === "host" ? undefined : namespaces.net?.path;
  return { url: context.streams.portForward({ pod, netns, ports }) };
}
