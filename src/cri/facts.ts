// From records and configuration to what the spec's pure functions want to be told.
import type { ContainerDefaults, PodNamespaces, SandboxFacts } from "../spec/facts.ts";
import { podFiles } from "../node/pod_files.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { podFolder, type Context } from "./context.ts";

function podNamespaces(sandbox: Sandbox): PodNamespaces {
  const { net, ipc, uts } = sandbox.namespaces;
  const pid = sandbox.pause?.pid;
  return {
    net: net?.path,
    ipc: ipc?.path,
    uts: uts?.path,
    pid: pid ? `/proc/${pid}/ns/pid` : undefined,
  };
}

export function sandboxFacts(context: Context, sandbox: Sandbox): SandboxFacts {
  const hostIpc = sandbox.namespaces.ipc === undefined;
  return {
    id: sandbox.id,
    config: sandbox.config,
    namespaces: podNamespaces(sandbox),
    files: podFiles(podFolder(context, sandbox.id), hostIpc),
  };
}

export function containerDefaults(context: Context): ContainerDefaults {
  const { defaultUlimits, restrictOomScoreAdj, nativeUmask } = context.config;
  return { rlimits: defaultUlimits, restrictOomScoreAdj, umask: nativeUmask };
}
