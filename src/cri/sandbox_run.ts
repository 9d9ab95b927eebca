// RunPodSandbox, step by step. Each step is on record before it is done, so that a failure, or a
// recovery after a crash, undoes with sandbox_teardown.ts just what was begun.
import { join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import { nowNs } from "../base/int64.ts";
import type { CniAttachment } from "../node/cni.ts";
import { cniPodOf } from "../node/cni_args.ts";
import { applySysctls, pinNamespaces, type NamespaceKind } from "../node/namespaces.ts";
import { makePodFiles, podFiles } from "../node/pod_files.ts";
import { runtime } from "../proto/messages.js";
import type {
  PodSandboxConfig,
  RunPodSandboxRequest,
  RunPodSandboxResponse,
} from "../proto/types.ts";
import { sharesPidNamespace } from "../spec/oci.ts";
import { ready, sandboxName, type Sandbox } from "../state/sandbox.ts";
import { throwIfAborted } from "../sys/process.ts";
import { handlerOf, newId, stepSignal, type Call, type Context } from "./context.ts";
import { startPause } from "./pause.ts";
import { undoSandbox } from "./sandbox_teardown.ts";

const { NamespaceMode } = runtime.v1;

const netnsFolder = "/var/run/netns";

export async function runPodSandbox(
  context: Context,
  request: RunPodSandboxRequest,
  call: Call,
): Promise<RunPodSandboxResponse> {
  const config = checkedConfig(request.config);
  const runtimeHandler = request.runtime_handler ?? "";
  handlerOf(context, runtimeHandler);
  const name = sandboxName(config);
  const id = await context.running.join(name, async () => {
    const sandbox = newSandbox(context, config, runtimeHandler);
    context.sandboxes.reserve(name, sandbox.id);
    await makeSandbox(context, sandbox, call);
    return sandbox.id;
  });
  return { pod_sandbox_id: id };
}

function checkedConfig(config: PodSandboxConfig | null | undefined): PodSandboxConfig {
  if (!config) throw new CriError("INVALID_ARGUMENT", "RunPodSandbox without a config");
  const { name, namespace, uid } = config.metadata ?? {};
  if (!name || !namespace || !uid) {
    throw new CriError("INVALID_ARGUMENT", "config.metadata needs name, namespace and uid");
  }
  const security = config.linux?.security_context;
  if (security?.run_as_group && !security.run_as_user) {
    throw new CriError("INVALID_ARGUMENT", "the sandbox has run_as_group without run_as_user");
  }
  if (security?.namespace_options?.userns_options?.mode === NamespaceMode.POD) {
    throw new CriError(
      "UNIMPLEMENTED",
      "user namespaces are not supported yet: set hostUsers to true in the pod's spec",
    );
  }
  return config;
}

function newSandbox(context: Context, config: PodSandboxConfig, runtimeHandler: string): Sandbox {
  const id = newId();
  const options = config.linux?.security_context?.namespace_options;
  const hostNetwork = options?.network === NamespaceMode.NODE;
  const parent = config.linux?.cgroup_parent ?? "";
  const netns = hostNetwork ? "" : join(netnsFolder, `isulad-${id.slice(0, 32)}`);
  return {
    version: 1,
    id,
    name: sandboxName(config),
    config,
    runtimeHandler,
    createdAtNs: String(nowNs()),
    bootId: context.bootId,
    networkMode: hostNetwork ? "host" : "cni",
    networkSettings: { SandboxID: id, SandboxKey: netns, IPAddress: "", AdditionalIPs: [] },
    namespaces: {},
    cgroup: { driver: context.cgroup.name, parent },
    torndown: false,
    phase: { phase: "creating" },
  };
}

/** The steps. A step that throws leaves `sandbox` as the step before recorded it, or its intent. */
async function makeSandbox(context: Context, first: Sandbox, call: Call): Promise<void> {
  let sandbox = first;
  const { sandboxes, log } = context;
  /** What has to be undone from here on. */
  const record = async (change: Partial<Sandbox>, options: { durable?: boolean } = {}) => {
    throwIfAborted(`RunPodSandbox ${sandbox.name}`, call.signal);
    sandbox = { ...sandbox, ...change };
    await sandboxes.write(sandbox, options);
  };
  try {
    await record({});
    const { made } = await context.cgroup.createPodCgroup(
      sandbox.cgroup.parent,
      sandbox.id,
      stepSignal(context, call),
    );
    const cgroup = { ...sandbox.cgroup, made };
    await record({ cgroup, namespaces: intendedNamespaces(context, sandbox) });
    const laterSysctls = await pin(sandbox, record, stepSignal(context, call));
    const files = podFiles(sandboxes.folderOf(sandbox.id), sandbox.namespaces.ipc === undefined);
    await makePodFiles(files, sandbox.config, sandbox.networkMode === "host");
    if (sandbox.networkMode === "cni") await attach(context, () => sandbox, record, call.signal);
    await applySysctls(sandbox.networkSettings.SandboxKey, laterSysctls, stepSignal(context, call));
    if (sharesPidNamespace(sandbox.config)) {
      await record({ pause: { pid: 0 } });
      await record({ pause: { pid: await startPause(context, sandbox, call.signal) } });
    }
    await sandboxes.put(ready(sandbox));
  } catch (error) {
    log.warn("RunPodSandbox failed", { sandbox: sandbox.id, error: messageOf(error) });
    await undoSandbox(context, sandbox);
    throw error;
  }
  const { IPAddress } = sandbox.networkSettings;
  log.info("sandbox ready", {
    sandbox: sandbox.id,
    name: sandbox.name,
    ip: IPAddress || undefined,
  });
}

/** The files that will hold the namespaces; the inode is known when they do. */
function intendedNamespaces(context: Context, sandbox: Sandbox): Sandbox["namespaces"] {
  const options = sandbox.config.linux?.security_context?.namespace_options;
  const folder = context.sandboxes.folderOf(sandbox.id);
  const namespaces: Sandbox["namespaces"] = {};
  if (sandbox.networkMode === "cni") {
    namespaces.net = { path: sandbox.networkSettings.SandboxKey, inode: "0" };
    namespaces.uts = { path: join(folder, "uts"), inode: "0" };
  }
  if (options?.ipc !== NamespaceMode.NODE)
    namespaces.ipc = { path: join(folder, "ipc"), inode: "0" };
  return namespaces;
}

type Recorder = (change: Partial<Sandbox>, options?: { durable?: boolean }) => Promise<void>;

/** Returns the sysctls that can only be set when the network interfaces are there. */
async function pin(
  sandbox: Sandbox,
  record: Recorder,
  signal: AbortSignal,
): Promise<Record<string, string>> {
  const { net, ipc, uts } = sandbox.namespaces;
  const { laterSysctls, ...pinned } = await pinNamespaces({
    net: net?.path,
    ipc: ipc?.path,
    uts: uts?.path,
    hostname: sandbox.config.hostname ?? "",
    sysctls: sandbox.config.linux?.sysctls ?? {},
    signal,
  });
  const namespaces: Sandbox["namespaces"] = {};
  for (const kind of Object.keys(pinned) as NamespaceKind[]) {
    const { path, inode } = pinned[kind]!;
    namespaces[kind] = { path, inode: String(inode) };
  }
  await record({ namespaces });
  return laterSysctls;
}

/** CNI ADD. The attempt must survive a power loss: addresses are leased on disk. */
async function attach(
  context: Context,
  sandbox: () => Sandbox,
  record: Recorder,
  signal: AbortSignal,
): Promise<void> {
  const { id, config, networkSettings, cgroup } = sandbox();
  const pod = cniPodOf(config, {
    id,
    netnsPath: networkSettings.SandboxKey,
    cgroupPath: context.cgroup.podCgroup(cgroup.parent, id).ociParent,
  });
  const plan = context.cni.plan(pod);
  await record({ cni: plan }, { durable: true });
  const attachment = await context.cni.add(pod, signal, plan);
  await record({ cni: attachment, networkSettings: withAddresses(networkSettings, attachment) });
}

/** CRI wants one address first: the first IPv4 one, as containerd chooses by default. */
function withAddresses(
  settings: Sandbox["networkSettings"],
  attachment: CniAttachment,
): Sandbox["networkSettings"] {
  const { ips } = attachment;
  const first = ips.find((ip) => !ip.includes(":")) ?? ips[0] ?? "";
  return { ...settings, IPAddress: first, AdditionalIPs: ips.filter((ip) => ip !== first) };
}
