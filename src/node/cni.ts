// The node's pod networks: for each CNI list the plugins run in order for ADD and in reverse for DEL.
//
// Decision: DEL stops at the first plugin that fails, as the reference library does, although going on
// would release more: once an address is free while an earlier plugin's rules still point to it, the
// next pod gets another pod's traffic. The caller repeats DEL until it passes; for a day, then it is told
// of as given up, because plugins go with the network add-on that they came with.
//
// Decision: until an ADD of one kind has passed, ADDs of that kind wait for each other. On a fresh node
// the plugins make what all pods share (bridge, iptables chains), and portmap fails when two do so.
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { afterGrace, throwIfAborted } from "../base/abort.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { Gate } from "../base/gate.ts";
import type { Log } from "../base/log.ts";
import { jsonText } from "../base/json.ts";
import { Semaphore } from "../base/semaphore.ts";
import { readTextBounded, writeFileAtomic } from "../sys/file.ts";
import { pluginInput, runtimeConfOf, type CniPod } from "./cni_args.ts";
import {
  attachmentsOf,
  cachedPods,
  giveUp,
  readCache,
  removeCache,
  writeCache,
  type CniAttachment,
} from "./cni_cache.ts";
import {
  ConfDir,
  isSince11,
  parseConfList,
  type ConfList,
  type ConfState,
  type PluginConf,
} from "./cni_conf.ts";
import { execPlugin, findPlugin } from "./cni_exec.ts";
import { convertResult, parseResult, podIps } from "./cni_result.ts";
import { podNetworks, networksAnnotation } from "./cni_networks.ts";
import { renderCniTemplate } from "./cni_template.ts";
import { failedForMs } from "./cni_failing.ts";
import { collectGarbage, type RecordedPod, whenIdle } from "./cni_gc.ts";
import { StatusProbe } from "./cni_status.ts";
import { isNamespaceFile } from "./namespaces.ts";

export { podAddresses, podMac, type PodAddress } from "./cni_result.ts";
export type { CniAttachment, CniPod };

export type CniOptions = {
  confDir: string;
  binDirs: string[];
  /** Must outlive a boot, as the plugins' own leases do. */
  cacheDir: string;
  log: Log;
  /** For one ADD or DEL, all plugins of a network together. */
  timeoutMs: number;
  /** How long a plugin that has begun still runs when its caller gives up. */
  graceMs: number;
  /** How many lists every pod is attached to; 0: all. */
  maxConfNum: number;
};

/** How a pod is attached: its default network first. */
export type CniAttachments = [CniAttachment, ...CniAttachment[]];

export type CniStatus = { ready: boolean; reason: string; message: string; name?: string };

/** What DEL needs to know of a pod beside its attachment. */
export type CniTarget = { id: string; netnsPath: string };

/** At the daemon's end, for plugins under way. */
const endMs = 5_000;
/** After failing for so long a DEL is given up. */
const giveUpMs = 24 * 60 * 60_000;
/** The list that writeList() makes; names before it win. */
const writtenList = "10-isulad-net.conflist";
const templateBytesMax = 1 << 20;

export function openCni(options: CniOptions): CniNetwork {
  return new CniNetwork(options);
}

export class CniNetwork implements AsyncDisposable {
  readonly #options: CniOptions;
  readonly #ending = new AbortController();
  /** By folder: a runtime handler may have one of its own. */
  readonly #confs = new Map<string, { conf: ConfDir; told: string }>();
  /** List and capabilities of the ADDs that have passed. */
  readonly #proven = new Set<string>();
  readonly #firstAdds = new Semaphore(1, "the pod network's first ADD");
  /** GC must not meet an ADD whose pod it does not know yet. */
  readonly #gate = new Gate("the pod network's GC");
  readonly #probe: StatusProbe;

  constructor(options: CniOptions) {
    this.#options = options;
    this.#probe = new StatusProbe(options.binDirs);
  }

  /** CRI's NetworkReady: a list is loaded, its plugins are installed, and say that they would work. */
  async status(): Promise<CniStatus> {
    const { list, lists, file, problem } = this.#look();
    const not = (message: string) => ({ ready: false, reason: "NetworkPluginNotReady", message });
    if (list === undefined) return not(problem ?? emptyMessage(this.#options.confDir));
    const everywhere = this.#everywhere(lists);
    const missing = executables(everywhere.flatMap(({ plugins }) => plugins)).find(
      (type) => findPlugin(type, this.#options.binDirs) === undefined,
    );
    if (missing !== undefined) {
      const dirs = this.#options.binDirs.join(", ");
      return not(`CNI plugin ${missing}, which ${file} asks for, is in none of ${dirs}`);
    }
    const unfit = await Promise.all(everywhere.map((one) => this.#probe.problemOf(one)));
    const why = unfit.find((one) => one !== undefined);
    if (why !== undefined) return not(why);
    const message = problem === undefined ? "" : `still using ${list.name}: ${problem}`;
    return { ready: true, reason: "", message, name: list.name };
  }

  /**
   * Writes the list of a node that has no other: the template's, with the node's pod CIDRs. It replaces
   * the one that was written so before. @throws CriError FAILED_PRECONDITION for a template that gives
   * no list.
   */
  async writeList(template: string, cidrs: string[]): Promise<void> {
    const path = join(this.#options.confDir, writtenList);
    const { list, file } = this.#look();
    if (list !== undefined && file !== path) return;
    const text = renderCniTemplate(readTemplate(template), cidrs);
    try {
      parseConfList(text, path);
    } catch (cause) {
      const message = `the CNI template ${template} gives no list: ${messageOf(cause)}`;
      throw new CriError("FAILED_PRECONDITION", message, { cause });
    }
    await mkdir(this.#options.confDir, { recursive: true, mode: 0o755 });
    await writeFileAtomic(path, text, { mode: 0o644, fsync: true });
    this.#options.log.info("CNI list written", { path, cidrs: cidrs.join(" ") });
  }

  /**
   * How add() would wire the pod now; a caller that must know of the attempt after a power loss
   * checkpoints it before add(). confDir: where the list lies, if not in the default folder.
   * @throws CriError UNAVAILABLE while no list is loaded, INVALID_ARGUMENT for what CNI cannot carry.
   */
  plan(pod: CniPod, confDir = this.#options.confDir): CniAttachments {
    const { lists, problem } = this.#look(confDir);
    const [list, ...others] = lists;
    if (list === undefined) {
      throw new CriError(
        "UNAVAILABLE",
        `the pod network is not ready: ${problem ?? emptyMessage(confDir)}`,
      );
    }
    const asked = pod.annotations[networksAnnotation];
    const networks = podNetworks([list, ...others], this.#options.maxConfNum, asked);
    const { args, capabilityArgs } = runtimeConfOf(pod);
    // A host's port leads to one address of the pod.
    const { portMappings: _, ...furtherArgs } = capabilityArgs;
    const [first, ...further] = networks.map(({ list: confList, ifName }, index) => {
      const own = index === 0 ? capabilityArgs : furtherArgs;
      return { confList, ifName, args, capabilityArgs: own, ips: [] };
    });
    return [first!, ...further];
  }

  /** The lists that every pod is attached to. */
  #everywhere(lists: ConfList[]): ConfList[] {
    const { maxConfNum } = this.#options;
    return maxConfNum === 0 ? lists : lists.slice(0, maxConfNum);
  }

  /**
   * Runs ADD of each plugin of each network. After a failure the caller owes a del(): plugins may hold
   * addresses. @throws CriError as plan() and execPlugin() do, and INTERNAL for a result that makes no
   * sense.
   */
  async add(
    pod: CniPod,
    signal: AbortSignal,
    plan: CniAttachments = this.plan(pod),
  ): Promise<CniAttachments> {
    using _ = await this.#gate.enter(signal);
    const [first, ...further] = plan;
    const attachments: CniAttachments = [await this.#addOne(pod, first, signal)];
    for (const one of further) attachments.push(await this.#addOne(pod, one, signal));
    return attachments;
  }

  async #addOne(pod: CniPod, plan: CniAttachment, signal: AbortSignal): Promise<CniAttachment> {
    // The attempt is on record before the first plugin can take an address.
    await writeCache(this.#options.cacheDir, pod, plan);
    const kind = jsonText([plan.confList, Object.keys(plan.capabilityArgs)]);
    const attachment = await this.#inTurn(kind, signal, () => this.#addAll(pod, plan, signal));
    if (attachment.ips.length === 0) {
      this.#options.log.warn("CNI gave the pod no address", {
        sandbox: pod.id,
        network: plan.confList.name,
      });
    }
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
    if (result === undefined) throw new CriError("INTERNAL", "a CNI list without plugins");
    result = convertResult(result, plan.confList.cniVersion);
    return { ...plan, result, ips: podIps(result, plan.ifName) };
  }

  async #inTurn<T>(kind: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
    if (this.#proven.has(kind)) return work();
    {
      using _ = await this.#firstAdds.acquire(signal);
      if (!this.#proven.has(kind)) {
        const result = await work();
        this.#proven.add(kind);
        return result;
      }
    }
    return await work();
  }

  /**
   * Runs DEL of each plugin in reverse, with the lists and results of the pod's ADD; again and again
   * if need be. recorded: the attachments that the caller has on record, undefined without a record; of
   * what is not there, or of no use, the cached ones are taken. Where there are none either, nothing
   * was ever added. What has failed for a day is told of, and taken as done.
   * @throws CriError as execPlugin() does; the caller tries again later.
   */
  async del(
    target: CniTarget,
    recorded: readonly unknown[] | undefined,
    signal: AbortSignal,
  ): Promise<void> {
    const { cacheDir, log } = this.#options;
    const cached = await readCache(cacheDir, target.id);
    const used = attachmentsOf(recorded ?? [], cached);
    const sandbox = target.id;
    if (used.length === 0) {
      if (recorded === undefined) log.debug("no CNI attachment to delete", { sandbox });
      else log.warn("neither record nor cache tells what CNI plugins gave the pod", { sandbox });
    }
    using _ = await this.#gate.enter(signal);
    try {
      for (const one of used.toReversed()) await this.#delOne(target, one, signal);
    } catch (error) {
      if (signal.aborted) throw error;
      if (!(await this.#hasFailedForLong(target.id))) throw error;
      const kept = await giveUp(cacheDir, target.id);
      const fields = { sandbox, error: messageOf(error), kept };
      log.error("CNI DEL has failed for a day and is given up: free what it held by hand", fields);
    }
    await removeCache(cacheDir, target.id);
  }

  /** A full disk keeps no count: then nothing is given up, and DEL's own error is what the caller gets. */
  async #hasFailedForLong(id: string): Promise<boolean> {
    const { cacheDir, log } = this.#options;
    try {
      return (await failedForMs(cacheDir, id)) >= giveUpMs;
    } catch (error) {
      log.warn("a failed CNI DEL was not counted", { sandbox: id, error: messageOf(error) });
      return false;
    }
  }

  async #delOne(target: CniTarget, used: CniAttachment, signal: AbortSignal): Promise<void> {
    // An unmounted file is no namespace: plugins then release what they hold without entering it.
    const netnsPath = isNamespaceFile(target.netnsPath) ? target.netnsPath : "";
    const hasPrevResult = !/^0\.[123]\./.test(used.confList.cniVersion);
    const pod = { id: target.id, netnsPath };
    const within = this.#within(signal);
    for (const plugin of used.confList.plugins.toReversed()) {
      throwIfAborted(`CNI DEL of sandbox ${target.id}`, signal);
      const seen = hasPrevResult ? used : { ...used, result: undefined };
      await this.#exec("DEL", plugin, { pod, attachment: seen }, within);
    }
  }

  /** Pods of which an ADD was begun and no DEL has passed. */
  async attached(): Promise<string[]> {
    const pods = await cachedPods(this.#options.cacheDir);
    return [...new Set(pods.map(({ id }) => id))];
  }

  /** CNI 1.1's GC of every network whose plugins can (cni_gc.ts); false: to be tried again soon. */
  collectGarbage(pods: () => RecordedPod[], knows: (id: string) => boolean): Promise<boolean> {
    const { cacheDir, binDirs, log } = this.#options;
    const folders = new Set([this.#options.confDir, ...this.#confs.keys()]);
    const lists = [...folders]
      .flatMap((folder) => this.#look(folder).lists)
      .filter((list) => isSince11(list) && !list.disableGC);
    return collectGarbage({ lists, cacheDir, binDirs, log, gate: this.#gate }, pods, knows);
  }

  /**
   * For the plugins of one ADD or DEL. A plugin whose caller gives up may be about to write down what it has
   * taken: killed in between, it never gives that back (host-local then leaks an empty lease).
   */
  #within(signal: AbortSignal): AbortSignal {
    const { graceMs, timeoutMs } = this.#options;
    const ends = [afterGrace(signal, graceMs), AbortSignal.timeout(timeoutMs)];
    return AbortSignal.any([...ends, this.#ending.signal]);
  }

  /** Waits for the plugins under way, which the next daemon must not meet; those that hang are killed. */
  async [Symbol.asyncDispose](): Promise<void> {
    using _ = await whenIdle(this.#gate, endMs);
    this.#ending.abort(new CriError("CANCELLED", "the daemon ends"));
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

  /** Looks into a conf dir and logs what changed there, once. */
  #look(confDir = this.#options.confDir): ConfState {
    const seen = this.#confs.get(confDir) ?? { conf: new ConfDir(confDir), told: "" };
    this.#confs.set(confDir, seen);
    const state = seen.conf.current();
    const told = jsonText([state.list, state.file, state.problem]);
    if (told === seen.told) return state;
    seen.told = told;
    const { log } = this.#options;
    const fields = { file: state.file, network: state.list?.name };
    if (state.problem !== undefined) log.warn(state.problem, { "still using": state.list?.name });
    else if (state.list === undefined) log.warn(emptyMessage(confDir));
    else log.info("CNI network loaded", fields);
    return state;
  }
}

function emptyMessage(confDir: string): string {
  return `no CNI network list in ${confDir} (*.conflist, *.conf or *.json)`;
}

/** The executables a list needs: its plugins and the address managers they name. */
function executables(plugins: PluginConf[]): string[] {
  const ipam = (plugin: PluginConf) => (plugin["ipam"] as { type?: unknown } | undefined)?.type;
  return plugins
    .flatMap((plugin) => [plugin.type, ipam(plugin)])
    .filter((type): type is string => typeof type === "string" && type !== "");
}

function readTemplate(path: string): string {
  try {
    return readTextBounded(path, templateBytesMax);
  } catch (cause) {
    const message = `cannot read the CNI template ${path} (key cni-conf-template): ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}
