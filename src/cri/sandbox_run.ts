// RunPodSandbox: creates a pod in steps. Each step is recorded before it is taken, so that a failed call, or
// recovery after a crash, rolls back (sandbox_teardown.ts) exactly the steps that were begun.
import { existsSync, mkdirSync } from "node:fs";
import { hostname as nodeName } from "node:os";
import { join } from "node:path";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import { quoted } from "../base/text.ts";
import { cniPodOf, extensionArgs, unservedRequests } from "../node/cni_args.ts";
import {
  applySysctls,
  netnsFolders,
  netnsName,
  pinNamespaces,
  type NamespaceKind,
} from "../node/namespaces.ts";
import { attachedSettings } from "../node/network_settings.ts";
import { makePodFiles } from "../node/pod_files.ts";
import type * as cri from "../proto/types.ts";
import { checkPodNamespaces, namespaceOptions } from "../spec/namespace_options.ts";
import { unsupportedBy } from "../spec/refusals.ts";
import { guestTraits } from "../shim/guests.ts";
import { checkGuestPod } from "../spec/sandboxed.ts";
import { createdAfter } from "../state/order.ts";
import {
  foreignSlice,
  isInGuest,
  isSamePod,
  noNetworkYet,
  ready,
  sandboxName,
  type Sandbox,
} from "../state/sandbox.ts";
import { limitPod } from "./cgroups.ts";
import {
  newId,
  placeOfPod,
  podFolder,
  stepSignal,
  type Call,
  type Context,
  type Handler,
} from "./context.ts";
import { checkHostPorts } from "./host_ports.ts";
import { sandboxFields } from "./log_subject.ts";
import { startPause } from "./pause.ts";
import { rootfsOwner } from "./rootfs_owner.ts";
import { getHandler, requireInstalled, supportsUserNamespaces } from "./runtime_handlers.ts";
import { sysctlsOf } from "./spec_inputs.ts";
import { undoSandbox } from "./sandbox_teardown.ts";
import { holdLevel, newPodLabels } from "./selinux.ts";
import { podHandlerName } from "./untrusted.ts";

export async function runPodSandbox(
  context: Context,
  request: cri.RunPodSandboxRequest,
  call: Call,
): Promise<cri.RunPodSandboxResponse> {
  const config = request.config!;
  const runtimeHandler = podHandlerName(context, config, request.runtime_handler ?? "");
  const handler = getHandler(context, runtimeHandler);
  await handler.refresh();
  const handlerName = runtimeHandler || context.config.defaultRuntime;
  requireInstalled(handlerName, handler);
  await context.health.requireWritableGraph();
  checkNamespaces(context, config, handler);
  if (isInGuest(handler)) {
    checkGuestPod(config, { handler: handlerName, ...guestTraits(handler.command.shim!) });
  }
  const name = sandboxName(config);
  const id = await context.making.join(name, call.signal, async () => {
    const { runtimeKind } = handler;
    const sandbox = newSandbox(context, config, { runtimeHandler, runtimeKind });
    using _ = holdLevel(context, sandbox);
    context.sandboxes.reserve(name, sandbox.id);
    await makeSandbox(context, sandbox, call);
    return sandbox.id;
  });
  return { pod_sandbox_id: id };
}

/** @throws CriError FAILED_PRECONDITION for a user namespace that kernel or runtime do not support. */
function checkNamespaces(context: Context, config: cri.PodSandboxConfig, handler: Handler): void {
  const options = namespaceOptions(config);
  checkPodNamespaces(options);
  checkHostname(config, options.network);
  if (isInGuest(handler)) return;
  if (options.user === undefined || supportsUserNamespaces(context, handler)) return;
  throw unsupportedBy(
    handler.support,
    "userns_options: user namespaces need Linux 5.19 and a runtime with id-mapped mounts (runc 1.2 or newer; Status shows which handlers have them): set hostUsers to true in the pod's spec, or choose another handler",
  );
}

const warned = new WeakSet<Context>();

/** Tells once that the kubelet has another cgroup driver than this daemon; `why` tells it for each pod. */
function warnOfSlice(context: Context, parent: string): void {
  const problem = foreignSlice({ driver: context.cgroup.name, parent });
  if (problem === undefined || warned.has(context)) return;
  warned.add(context);
  context.log.warn("the kubelet has another cgroup driver", { problem });
}

/**
 * Refuses a hostname of its own for a pod in the node's network, which shares the node's UTS namespace.
 * @throws CriError INVALID_ARGUMENT.
 */
function checkHostname({ hostname }: cri.PodSandboxConfig, network: "pod" | "node"): void {
  const ofNode = nodeName();
  if (network === "pod" || !hostname || hostname === ofNode) return;
  const message = `hostname ${quoted(hostname)}: a pod in the node's network has the node's hostname, ${quoted(ofNode)}: leave hostname empty`;
  throw new CriError("INVALID_ARGUMENT", message);
}

function newSandbox(
  context: Context,
  config: cri.PodSandboxConfig,
  handler: Pick<Sandbox, "runtimeHandler" | "runtimeKind">,
): Sandbox {
  const id = newId();
  const hostNetwork = namespaceOptions(config).network === "node";
  const netns = join(netnsFolders(context.config)[0]!, netnsName(context.instance, id));
  const parent = config.linux?.cgroup_parent ?? "";
  context.cgroup.podCgroup(parent, id); // throws for a parent that the driver cannot use
  warnOfSlice(context, parent);
  const earlier = context.sandboxes.list().filter((other) => isSamePod(other.config, config));
  return {
    version: 1,
    id,
    name: sandboxName(config),
    config,
    ...handler,
    createdAtNs: createdAfter(earlier),
    bootId: context.bootId,
    networkMode: hostNetwork ? "host" : "cni",
    networkSettings: noNetworkYet(id, hostNetwork ? "" : netns),
    namespaces: {},
    // The intent: a daemon that ends before it has recorded the new cgroup leaves it to the next one.
    cgroup: {
      driver: context.cgroup.name,
      parent,
      made: context.cgroup.missingPodCgroup(parent, id),
    },
    torndown: false,
    selinux: newPodLabels(context, config),
    phase: { phase: "creating" },
  };
}

/** One RunPodSandbox call; sandbox is the record that the last step wrote, exit that of its pause container. */
type Making = {
  context: Context;
  call: Call;
  sandbox: Sandbox;
  exit: { readonly hasExited: boolean };
};

async function makeSandbox(context: Context, first: Sandbox, call: Call): Promise<void> {
  using exit = context.exits.watch(first.id);
  const making: Making = { context, call, sandbox: first, exit };
  try {
    await step("sandbox-record", () => record(making, {}));
    await step("sandbox-cgroup", () => makeCgroup(making));
    await record(making, { namespaces: intendedNamespaces(making) });
    const { overhead, resources } = first.config.linux ?? {};
    if (overhead || resources) await limitPod(context, first);
    // Pods of the node's network do not wait: they are quick, and a network plugin may be waiting for one of them.
    if (first.networkMode === "host") await makeParts(making);
    else await context.crowds.pods.enter(call.signal, () => makeParts(making));
    await becomeReady(making);
  } catch (error) {
    // The caller's line (failure_log.ts) has the pod's name; this one has the id.
    context.log.debug("sandbox is rolled back", { sandbox: first.id, error: messageOf(error) });
    await undoSandbox(context, making.sandbox);
    throw error;
  }
  const ip = making.sandbox.networkSettings.IPs[0];
  context.log.info("sandbox ready", { ...sandboxFields(making.sandbox), ip });
}

/** Runs the programs that make a sandbox. */
async function makeParts(making: Making): Promise<void> {
  const laterSysctls = await step("sandbox-namespaces", () => pin(making));
  await step("sandbox-files", () => makeFiles(making));
  if (making.sandbox.networkMode === "cni") await attach(making);
  await step("sandbox-sysctls", () => setSysctls(making, laterSysctls));
  if (needsPause(making)) await pause(making);
}

/** True for a pod with a pause container. A guest's starts after CNI ADD, because it reads addresses and routes. */
function needsPause({ sandbox }: Making): boolean {
  return isInGuest(sandbox) || namespaceOptions(sandbox.config).pid === "pod";
}

/** Lists the sandbox once the NRI plugins have accepted it. */
async function becomeReady(making: Making): Promise<void> {
  const { sandbox, context, call } = making;
  using _ = await context.nri?.enter(call.signal);
  await context.nri?.runPodSandbox(sandbox);
  await step("sandbox-ready", () => context.sandboxes.put(ready(sandbox)));
  checkPause(making);
  checkCall(making);
}

/** Records what a rollback has to undo from here on. */
async function record(
  making: Making,
  change: Partial<Sandbox>,
  options: { durable?: boolean } = {},
): Promise<void> {
  making.sandbox = { ...making.sandbox, ...change };
  await making.context.sandboxes.write(making.sandbox, options);
  checkCall(making); // after the write: the change may already be made
}

/** @throws if the client has given up: it would never learn the id of the sandbox. */
function checkCall({ sandbox, call }: Making): void {
  throwIfAborted(`RunPodSandbox ${sandbox.name}`, call.signal);
}

/** Notes the cgroup in `making` at once, so that a rollback removes it even if it cannot be recorded. */
async function makeCgroup(making: Making): Promise<void> {
  const { context, call, sandbox } = making;
  const signal = stepSignal(context, call);
  const { parent } = sandbox.cgroup;
  // Before the cgroup: if the record is lost, the folder shows whose cgroup it is (recovery/sweep.ts).
  mkdirSync(podFolder(context, sandbox.id), { recursive: true, mode: 0o700 });
  const { made } = await context.cgroup.createPodCgroup(parent, sandbox.id, signal);
  making.sandbox = { ...sandbox, cgroup: { ...sandbox.cgroup, made } };
}

async function makeFiles({ context, sandbox }: Making): Promise<void> {
  const owner = rootfsOwner(sandbox);
  if (owner !== undefined) context.usernsAccess.grant(sandbox.id, owner.gid);
  await makePodFiles(placeOfPod(context, sandbox), sandbox.config, owner);
}

async function setSysctls(
  { context, call, sandbox }: Making,
  sysctls: Record<string, string>,
): Promise<void> {
  await applySysctls(sandbox.networkSettings.SandboxKey, sysctls, stepSignal(context, call));
}

async function pause(making: Making): Promise<void> {
  const { context, call } = making;
  await record(making, { pause: { pid: 0 } });
  const pid = await startPause(context, making.sandbox, call.signal);
  await record(making, { pause: { pid } });
}

/** An exit of the pause container before the sandbox was listed was reported to nobody. */
function checkPause({ sandbox, exit }: Making): void {
  const { id, pause } = sandbox;
  if (pause === undefined) return;
  const isHere = isInGuest(sandbox) || existsSync(`/proc/${pause.pid}`);
  if (isHere && !exit.hasExited) return;
  const message = `the pause container of sandbox ${id} ended at once: pod-sandbox-image must run until it is stopped`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** Returns the files to which namespaces will be pinned; the inodes are not known yet. */
function intendedNamespaces({ context, sandbox }: Making): Sandbox["namespaces"] {
  const { ipc, user } = namespaceOptions(sandbox.config);
  const isGuest = isInGuest(sandbox);
  const folder = podFolder(context, sandbox.id);
  const pinnedAt = (path: string) => ({ path, inode: "0" });
  const namespaces: Sandbox["namespaces"] = {};
  if (sandbox.networkMode === "cni") {
    namespaces.net = pinnedAt(sandbox.networkSettings.SandboxKey);
    if (!isGuest) namespaces.uts = pinnedAt(join(folder, "uts"));
  }
  if (isGuest) return namespaces; // it has its own
  if (ipc === "pod") namespaces.ipc = pinnedAt(join(folder, "ipc"));
  if (user !== undefined) namespaces.user = pinnedAt(join(folder, "user"));
  return namespaces;
}

/** Returns the sysctls that can only be set once the network interfaces exist. */
async function pin(making: Making): Promise<Record<string, string>> {
  const { context, call, sandbox } = making;
  const { net, ipc, uts, user } = sandbox.namespaces;
  const { laterSysctls, ...pinned } = await pinNamespaces({
    net: net?.path,
    ipc: ipc?.path,
    uts: uts?.path,
    user: user?.path,
    mappings: namespaceOptions(sandbox.config).user,
    hostname: sandbox.config.hostname ?? "",
    sysctls: isInGuest(sandbox) ? {} : sysctlsOf(context, sandbox),
    signal: stepSignal(context, call),
  });
  const namespaces: Sandbox["namespaces"] = {};
  for (const kind of Object.keys(pinned) as NamespaceKind[]) {
    const { path, inode } = pinned[kind]!;
    namespaces[kind] = { path, inode: String(inode) };
  }
  await record(making, { namespaces });
  return laterSysctls;
}

/** Runs CNI ADD. Its record must survive a power loss, as plugins keep address leases on disk. */
async function attach(making: Making): Promise<void> {
  const { context, call } = making;
  const { id, config, networkSettings, cgroup } = making.sandbox;
  const pod = cniPodOf(config, {
    id,
    netnsPath: networkSettings.SandboxKey,
    cgroupPath: context.cgroup.podCgroup(cgroup.parent, id).path,
  });
  checkHostPorts(context, making.sandbox);
  const { cniLists } = getHandler(context, making.sandbox.runtimeHandler);
  const plan = context.cni.plan(pod, cniLists);
  for (const problem of extensionArgs(pod.annotations).problems) {
    context.log.warn("an annotation for the pod's network", {
      sandbox: id,
      pod: pod.name,
      problem,
    });
  }
  for (const warning of unservedRequests(plan)) {
    context.log.warn("the pod's network lacks a plugin", { sandbox: id, pod: pod.name, warning });
  }
  await record(making, { cni: plan }, { durable: true });
  const attachments = await step("cni-add", () => context.cni.add(pod, call.signal, plan));
  const options = { portMappings: pod.portMappings, preference: context.config.ipPreference };
  const settings = attachedSettings(networkSettings, attachments, options);
  await record(making, { cni: attachments, networkSettings: settings });
}
