// Attaches pods to CNI networks: runs the plugins of each list in order for ADD and in reverse for DEL.
//
// Decision: DEL stops at the first plugin that fails, as libcni does, although continuing would release
// more: if an address were freed while an earlier plugin's rules still point to it, the next pod would get
// another pod's traffic. The caller retries DEL for up to a day, or until an administrator gives the network up; then
// DEL is abandoned with an error in the log, because removing a network add-on also removes its plugins. A
// plugin that finds nothing to remove has not failed: DEL goes on with the next one.
//
// Decision: ADDs with the same list and capabilities run one at a time until the first succeeds. On a fresh
// node the plugins create what all pods share (bridge, iptables chains), and portmap fails if two race.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { afterGrace, throwIfAborted } from "../base/abort.ts";
import { CriError, isReadOnlyDisk, messageOf } from "../base/errors.ts";
import { Gate } from "../base/gate.ts";
import type { Log } from "../base/log.ts";
import { jsonText } from "../base/json.ts";
import { Semaphore } from "../base/semaphore.ts";
import { readTextIfExists, writeFileAtomic } from "../sys/file.ts";
import { pluginInput, runtimeConfOf, type CniPod } from "./cni_args.ts";
import { attachmentsOf, type CniAttachment, quarantineCache } from "./cni_cache.ts";
import { cachedPods, readCache, removeCache, writeCache } from "./cni_cache.ts";
import { ConfDir, delHasPrevResult, emptyMessage, executables, isSince11 } from "./cni_conf.ts";
import { parseConfList, readPlugins } from "./cni_conf.ts";
import type { ConfList, ConfState, PluginConf } from "./cni_conf.ts";
import { execPlugin, findPlugin, isAlreadyGone } from "./cni_exec.ts";
import { convertResult, parseResult, podIps } from "./cni_result.ts";
import { networksAnnotation, podNetworks, requireAddress } from "./cni_networks.ts";
import { readCniTemplate, renderCniTemplate } from "./cni_template.ts";
import { abandonAtNextFailure, hasFailedForLong, withWayOut } from "./cni_del_failures.ts";
import { collectGarbage, type RecordedPod, whenIdle } from "./cni_gc.ts";
import { StatusProbe } from "./cni_status.ts";
import { isNamespaceFile } from "./namespaces.ts";

export { attachmentName, usableAttachments } from "./cni_cache.ts";
export { podAddresses, podMac, type PodAddress } from "./cni_result.ts";
export type { CniAttachment, CniPod };

/** Read at each use: getters make them changeable. */
export type CniOptions = {
  confDir: string;
  binDirs: string[];
  /** Persistent, because the plugins' own leases are. */
  cacheDir: string;
  log: Log;
  /** Limit for one ADD or DEL of a network, all plugins together. */
  timeoutMs: number;
  /** How long a running plugin may continue after its caller has cancelled. */
  graceMs: number;
  /** Number of lists that every pod is attached to; 0: all. */
  maxConfNum: number;
  /** Patterns of the lists that pods may ask for. */
  podNetworks: readonly string[];
};

/** A handler's own lists; absent fields are those of all pods. */
export type CniLists = { confDir?: string | undefined; maxConfNum?: number | undefined };

/** The attachments of a pod, its default network first. */
export type CniAttachments = [CniAttachment, ...CniAttachment[]];

export type CniStatus = { ready: boolean; reason: string; message: string; name?: string };

/** The pod of a DEL, without its attachments. */
export type CniTarget = { id: string; netnsPath: string };

/** At shutdown, plugins still running after this are killed. */
const shutdownMs = 5_000;
/** The list that writeList() writes; a file that sorts before it takes precedence. */
const generatedList = "10-isulad-net.conflist";

export function openCni(options: CniOptions): CniNetwork {
  return new CniNetwork(options);
}

export class CniNetwork implements AsyncDisposable {
  readonly #options: CniOptions;
  readonly #ending = new AbortController();
  /** By folder, since a runtime handler may have its own; logged: the state that was logged last. */
  readonly #confs = new Map<string, { conf: ConfDir; logged: string; seen?: ConfState }>();
  /** Keys of list and capabilities for which an ADD has succeeded. */
  readonly #proven = new Set<string>();
  readonly #firstAdds = new Semaphore(1, "the pod network's first ADD");
  /** Keeps GC apart from an ADD whose pod is not recorded yet. */
  readonly #gate = new Gate("the pod network's GC");
  readonly #probe: StatusProbe;

  constructor(options: CniOptions) {
    this.#options = options;
    this.#probe = new StatusProbe(options);
  }

  /** Tells whether a list is loaded, its plugins are installed, and their STATUS succeeds. */
  async status(own: CniLists = {}): Promise<CniStatus> {
    const { confDir = this.#options.confDir, maxConfNum } = own;
    const { list, lists, file, problem } = this.#confState(confDir);
    const reason = "NetworkPluginNotReady";
    const notReady = (message: string) => ({ ready: false, reason, message });
    if (list === undefined) return notReady(problem ?? emptyMessage(confDir));
    const defaults = this.#defaultLists(lists, maxConfNum);
    const missing = this.#missingPlugin(defaults);
    if (missing !== undefined) {
      const dirs = this.#options.binDirs.join(", ");
      return notReady(`CNI plugin ${missing}, required by ${file}, was not found in ${dirs}`);
    }
    const problems = await Promise.all(defaults.map((one) => this.#probe.problemOf(one)));
    const failed = problems.find((one) => one !== undefined);
    if (failed !== undefined) return notReady(failed);
    const message = problem === undefined ? "" : `still using ${list.name}: ${problem}`;
    return { ready: true, reason: "", message, name: list.name };
  }

  /**
   * Renders the template with the node's pod CIDRs and writes the list, unless the node has another one.
   * @throws CriError FAILED_PRECONDITION when the template does not render to a valid list.
   */
  async writeList(template: string, cidrs: string[]): Promise<void> {
    const path = join(this.#options.confDir, generatedList);
    const { list, file } = this.#confState();
    if (list !== undefined && file !== path) return;
    const text = renderCniTemplate(readCniTemplate(template), cidrs);
    try {
      parseConfList(text, path, (name) => readPlugins(join(this.#options.confDir, name)));
    } catch (cause) {
      const message = `CNI template ${template} does not render to a valid list: ${messageOf(cause)}`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
    if ((await readTextIfExists(path)) === text) return;
    await mkdir(this.#options.confDir, { recursive: true, mode: 0o755 });
    await writeFileAtomic(path, text, { mode: 0o644, fsync: true });
    this.#options.log.info("CNI list written", { path, cidrs: cidrs.join(" ") });
  }

  /**
   * Returns the attachments that add() would make. A caller that must be able to run DEL after a power loss
   * records the plan before add().
   * @throws CriError UNAVAILABLE while no list is loaded, FAILED_PRECONDITION without a plugin, INVALID_ARGUMENT for
   * values that CNI cannot carry.
   */
  plan(pod: CniPod, own: CniLists = {}): CniAttachments {
    const { confDir = this.#options.confDir, maxConfNum = this.#options.maxConfNum } = own;
    const { lists, problem } = this.#confState(confDir);
    const [list, ...others] = lists;
    if (list === undefined) {
      const reason = problem ?? emptyMessage(confDir);
      throw new CriError("UNAVAILABLE", `the pod network is not ready: ${reason}`);
    }
    const annotation = pod.annotations[networksAnnotation];
    const requests = { annotation, allowed: this.#options.podNetworks };
    const networks = podNetworks([list, ...others], maxConfNum, requests);
    const { args, capabilityArgs: all } = runtimeConfOf(pod);
    // A host port can forward to one address only, so only the default network gets the mappings.
    const { portMappings: _, ...withoutPorts } = all;
    const [first, ...further] = networks.map(({ list: confList, ifName }, index) => {
      const capabilityArgs = index === 0 ? all : withoutPorts;
      return { confList, ifName, args, capabilityArgs, ips: [] };
    });
    for (const { confList } of [first!, ...further]) this.#requirePlugins(confList);
    return [first!, ...further];
  }

  /** Called before anything is attached: a plugin that is missing for ADD is missing for the roll-back's DEL, too. */
  #requirePlugins(list: ConfList): void {
    const missing = this.#missingPlugin([list]);
    if (missing === undefined) return;
    const why = `CNI plugin ${missing} of network ${list.name} was not found`;
    const message = `${why} in ${this.#options.binDirs.join(", ")}: install it or set cni-bin-dir`;
    throw new CriError("FAILED_PRECONDITION", message);
  }

  #missingPlugin(lists: ConfList[]): string | undefined {
    return executables(lists.flatMap(({ plugins }) => plugins)).find(
      (type) => findPlugin(type, this.#options.binDirs) === undefined,
    );
  }

  /** Returns the lists that every pod is attached to. */
  #defaultLists(lists: ConfList[], maxConfNum = this.#options.maxConfNum): ConfList[] {
    return maxConfNum === 0 ? lists : lists.slice(0, maxConfNum);
  }

  /**
   * Runs ADD of each plugin of each network. After a failure the caller must run del(): plugins may hold
   * addresses. @throws CriError as plan() and execPlugin() do, INTERNAL for an invalid result, and
   * FAILED_PRECONDITION if the default network gives no address.
   */
  async add(
    pod: CniPod,
    signal: AbortSignal,
    plan: CniAttachments = this.plan(pod),
  ): Promise<CniAttachments> {
    using _ = await this.#gate.enter(signal);
    const [first, ...further] = plan;
    const attachments: CniAttachments = [await this.#addOne(pod, first, signal)];
    requireAddress(pod.id, attachments[0]);
    for (const one of further) {
      const attachment = await this.#addOne(pod, one, signal);
      attachments.push(attachment);
      const fields = { sandbox: pod.id, network: one.confList.name };
      if (attachment.ips.length > 0) continue;
      this.#options.log.warn("CNI ADD returned no address for the sandbox", fields);
    }
    return attachments;
  }

  async #addOne(pod: CniPod, plan: CniAttachment, signal: AbortSignal): Promise<CniAttachment> {
    // Record the attempt first, so that DEL can free what a plugin takes before a crash.
    await writeCache(this.#options.cacheDir, pod, plan);
    const key = jsonText([plan.confList, Object.keys(plan.capabilityArgs)]);
    const attachment = await this.#firstAlone(key, signal, () => this.#addAll(pod, plan, signal));
    await writeCache(this.#options.cacheDir, pod, attachment);
    return attachment;
  }

  async #addAll(pod: CniPod, plan: CniAttachment, signal: AbortSignal): Promise<CniAttachment> {
    const within = this.#within(signal);
    let result: CniAttachment["result"];
    for (const plugin of plan.confList.plugins) {
      throwIfAborted(`CNI ADD of sandbox ${pod.id}`, signal);
      const attachment = { ...plan, result };
      const printed = await this.#exec("ADD", plugin, { pod, attachment }, within);
      result = parseResult(printed, plugin.type, plan.confList.cniVersion);
    }
    if (result === undefined) throw new CriError("INTERNAL", "the CNI list has no plugins");
    result = convertResult(result, plan.confList.cniVersion);
    return { ...plan, result, ips: podIps(result, plan.ifName) };
  }

  async #firstAlone<T>(key: string, signal: AbortSignal, add: () => Promise<T>): Promise<T> {
    if (this.#proven.has(key)) return add();
    {
      using _ = await this.#firstAdds.acquire(signal);
      if (!this.#proven.has(key)) {
        const result = await add();
        this.#proven.add(key);
        return result;
      }
    }
    return await add();
  }

  /**
   * Runs DEL of each plugin in reverse, with the lists and results of the pod's ADD. Idempotent.
   * recorded: the attachments in the caller's record, undefined without a record; missing or unreadable ones are
   * replaced by the cached ones. With neither, no ADD was ever attempted. A DEL that has failed for a day, or that
   * fails after abandon(), is abandoned and counts as done. @throws CriError as execPlugin() does: to be retried.
   */
  async del(
    target: CniTarget,
    recorded: readonly unknown[] | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    const { cacheDir, log } = this.#options;
    const cached = await readCache(cacheDir, target.id);
    const attachments = attachmentsOf(recorded ?? [], cached);
    const sandbox = target.id;
    if (attachments.length === 0) {
      if (recorded === undefined) log.debug("no CNI attachment to delete", { sandbox });
      else log.warn("CNI DEL skipped: neither record nor cache has an attachment", { sandbox });
    }
    using _ = await this.#gate.enter(signal);
    try {
      for (const one of attachments.toReversed()) await this.#delAny(target, one, signal);
    } catch (error) {
      if (signal.aborted) throw error;
      if (!(await hasFailedForLong(this.#options, sandbox))) {
        throw recorded === undefined ? error : withWayOut(error, sandbox);
      }
      const kept = await quarantineCache(cacheDir, target.id);
      const fields = { sandbox, error: messageOf(error), kept };
      log.error("CNI DEL abandoned: free the sandbox's addresses manually", fields);
    }
    try {
      await removeCache(cacheDir, target.id);
    } catch (error) {
      if (!isReadOnlyDisk(error)) throw error;
      // The network is released. A later sweep runs DEL once more and removes the cache.
      log.warn("CNI DEL is done, but its cache stays", { sandbox, error: messageOf(error) });
    }
  }

  /** Has del() abandon the pod's DEL when it fails next. @throws CriError FAILED_PRECONDITION unless it has failed. */
  abandon(id: string): Promise<void> {
    return abandonAtNextFailure(this.#options.cacheDir, id);
  }

  // Runs DEL with the list of the ADD. If that fails after an ADD that failed, the list itself may be wrong: then DEL
  // runs again with the list that has this name now, if somebody has changed it.
  async #delAny(target: CniTarget, added: CniAttachment, signal: AbortSignal): Promise<void> {
    try {
      await this.#delOne(target, added, signal);
    } catch (error) {
      const { name } = added.confList;
      const folders = new Set([this.#options.confDir, ...this.#confs.keys()]);
      const lists = [...folders].flatMap((folder) => this.#confState(folder).lists);
      const confList = lists.find((list) => list.name === name);
      const isMended = confList !== undefined && jsonText(confList) !== jsonText(added.confList);
      if (signal.aborted || added.result !== undefined || !isMended) throw error;
      await this.#delOne(target, { ...added, confList }, signal);
    }
  }

  async #delOne(target: CniTarget, added: CniAttachment, signal: AbortSignal): Promise<void> {
    // An unmounted file is not a namespace: with "" plugins release addresses without entering it.
    const netnsPath = isNamespaceFile(target.netnsPath) ? target.netnsPath : "";
    const { plugins, cniVersion } = added.confList;
    const attachment = delHasPrevResult(cniVersion) ? added : { ...added, result: undefined };
    const pod = { id: target.id, netnsPath };
    const within = this.#within(signal);
    for (const plugin of plugins.toReversed()) {
      throwIfAborted(`CNI DEL of sandbox ${target.id}`, signal);
      try {
        await this.#exec("DEL", plugin, { pod, attachment }, within);
      } catch (error) {
        if (!isAlreadyGone(error, netnsPath)) throw error;
        const fields = { sandbox: pod.id, error: messageOf(error) };
        this.#options.log.warn("CNI DEL found nothing to remove", fields);
      }
    }
  }

  /** Returns the pods with an ADD that no successful DEL has followed. */
  async attached(): Promise<string[]> {
    const pods = await cachedPods(this.#options.cacheDir);
    return [...new Set(pods.map(({ id }) => id))];
  }

  /** Runs CNI 1.1's GC of every network that supports it; false: retry soon (see cni_gc.ts). */
  collectGarbage(pods: () => RecordedPod[], knows: (id: string) => boolean): Promise<boolean> {
    const { cacheDir, binDirs, log } = this.#options;
    const folders = new Set([this.#options.confDir, ...this.#confs.keys()]);
    const lists = [...folders]
      .flatMap((folder) => this.#confState(folder).lists)
      .filter((list) => isSince11(list) && !list.disableGC);
    return collectGarbage({ lists, cacheDir, binDirs, log, gate: this.#gate }, pods, knows);
  }

  /**
   * Returns the signal for the plugins of one ADD or DEL. A plugin may be about to record the address that it
   * has taken; killing it in between leaks that address (host-local leaves an empty lease), hence the grace.
   */
  #within(signal: AbortSignal): AbortSignal {
    const { graceMs, timeoutMs } = this.#options;
    const ends = [afterGrace(signal, graceMs), AbortSignal.timeout(timeoutMs)];
    return AbortSignal.any([...ends, this.#ending.signal]);
  }

  /** Waits for running plugins, which must not overlap with those of the next daemon; kills hanging ones. */
  async [Symbol.asyncDispose](): Promise<void> {
    using _ = await whenIdle(this.#gate, shutdownMs);
    this.#ending.abort(new CriError("CANCELLED", "the daemon is shutting down"));
  }

  async #exec(
    command: "ADD" | "DEL",
    plugin: PluginConf,
    on: { pod: CniTarget; attachment: CniAttachment },
    signal: AbortSignal,
  ): Promise<string> {
    const { attachment, pod } = on;
    const { binDirs, log } = this.#options;
    const start = performance.now();
    const { stdout, stderr } = await execPlugin(
      {
        command,
        plugin: plugin.type,
        binDirs,
        pod: {
          containerId: pod.id,
          netnsPath: pod.netnsPath,
          ifName: attachment.ifName,
          args: attachment.args,
        },
        input: pluginInput(attachment.confList, plugin, {
          capabilityArgs: attachment.capabilityArgs,
          prevResult: attachment.result,
        }),
      },
      signal,
    );
    log.debug(`CNI ${command}`, {
      plugin: plugin.type,
      sandbox: pod.id,
      ms: Math.round(performance.now() - start),
      stderr: stderr.trim() || undefined,
    });
    return stdout;
  }

  /** Reads a conf dir and logs changes once. */
  #confState(confDir = this.#options.confDir): ConfState {
    let known = this.#confs.get(confDir);
    if (known === undefined) {
      known = { conf: new ConfDir(confDir), logged: "" };
      this.#confs.set(confDir, known);
    }
    const state = known.conf.current();
    if (state === known.seen) return state;
    known.seen = state;
    const key = jsonText([state.list, state.file, state.problem]);
    if (key === known.logged) return state;
    known.logged = key;
    const { log } = this.#options;
    if (state.problem !== undefined) log.warn(state.problem, { "still using": state.list?.name });
    else if (state.list === undefined) log.warn(emptyMessage(confDir));
    else log.info("CNI network loaded", { file: state.file, network: state.list.name });
    return state;
  }
}
