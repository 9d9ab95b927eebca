// Runs CNI 1.1's GC: plugins free resources that belong to no valid attachment. Valid attachments come from
// the pods' records and from the cache; if the two disagree GC is postponed, because a lost cache file must
// not release the address of a running pod.
import { setTimeout as sleep } from "node:timers/promises";
import type { Gate } from "../base/gate.ts";
import { jsonText } from "../base/json.ts";
import type { Log } from "../base/log.ts";
import { messageOf } from "../base/errors.ts";
import { pluginInput } from "./cni_args.ts";
import { cachedPods, usableAttachments, writeCache } from "./cni_cache.ts";
import type { CachedPod, CniAttachment } from "./cni_cache.ts";
import type { ConfList, PluginConf } from "./cni_conf.ts";
import { execPlugin, isUnknownCommand } from "./cni_exec.ts";

/** Limit for waiting until no ADD or DEL runs. */
const idleMs = 30_000;
/** Limit for all plugins of one network. */
const gcMs = 15_000;

/** A listed pod with the attachments in its record. */
export type RecordedPod = { id: string; netnsPath: string; recorded: readonly unknown[] };

type GcOptions = { lists: ConfList[]; cacheDir: string; binDirs: string[]; log: Log; gate: Gate };
/** As plugins get it. */
type ValidAttachment = { containerID: string; ifname: string };

/**
 * Runs GC of the lists. knows: tells whether a pod exists, listed or being created. Returns false to ask
 * for a retry soon: ADDs and DELs never paused, or the cache had to be repaired from the records.
 */
export async function collectGarbage(
  options: GcOptions,
  pods: () => RecordedPod[],
  knows: (id: string) => boolean,
): Promise<boolean> {
  const { lists, binDirs, log } = options;
  for (const list of lists) {
    using alone = await whenIdle(options.gate, idleMs);
    if (alone === undefined) return false;
    const cached = (await cachedPods(options.cacheDir)).filter(({ id }) => knows(id));
    const { missing, unreadable } = missingAttachments(pods(), cached);
    for (const { id, netnsPath, attachment } of missing) {
      const fields = { sandbox: id, network: attachment.confList.name };
      log.warn("CNI GC postponed: restoring a lost cache file from the pod's record", fields);
      await writeCache(options.cacheDir, { id, netnsPath }, attachment);
    }
    for (const sandbox of unreadable) {
      log.warn("CNI GC postponed: the pod's record has unreadable attachments", { sandbox });
    }
    if (unreadable.length > 0) return true; // no retry soon: it would find the same record
    if (missing.length > 0) return false;
    const inNetwork = cached.filter(({ network }) => network === list.name);
    const valid = inNetwork.map(({ id, ifName }) => ({ containerID: id, ifname: ifName }));
    const signal = AbortSignal.timeout(gcMs);
    for (const problem of await runGc(list, valid, { binDirs, signal })) log.warn(problem);
    log.info("CNI GC done", { network: list.name, attachments: valid.length });
  }
  return true;
}

type Missing = { id: string; netnsPath: string; attachment: CniAttachment };

/** Finds recorded attachments without a cache file, and pods whose attachments neither source can name. */
export function missingAttachments(
  pods: RecordedPod[],
  cached: CachedPod[],
): { missing: Missing[]; unreadable: string[] } {
  const known = new Set(cached.map((one) => key(one.network, one.id, one.ifName)));
  const missing: Missing[] = [];
  const unreadable: string[] = [];
  for (const { id, netnsPath, recorded } of pods) {
    const usable = usableAttachments(recorded);
    const isCached = cached.some((one) => one.id === id);
    if (usable.length < recorded.length && !isCached) unreadable.push(id);
    for (const attachment of usable) {
      if (known.has(key(attachment.confList.name, id, attachment.ifName))) continue;
      missing.push({ id, netnsPath, attachment });
    }
  }
  return { missing, unreadable };
}

function key(...parts: string[]): string {
  return jsonText(parts);
}

/** Closes the gate once no call is inside it; undefined: calls were inside it for `ms`. */
export async function whenIdle(gate: Gate, ms: number): Promise<Disposable | undefined> {
  for (const end = performance.now() + ms; performance.now() < end; await sleep(20)) {
    const alone = gate.tryClose();
    if (alone !== undefined) return alone;
  }
  return undefined;
}

/** Runs GC of each plugin, continues after failures, and returns their messages. */
async function runGc(
  list: ConfList,
  valid: ValidAttachment[],
  { binDirs, signal }: { binDirs: string[]; signal: AbortSignal },
): Promise<string[]> {
  const problems: string[] = [];
  for (const plugin of list.plugins) {
    try {
      const input = gcInput(list, plugin, valid);
      await execPlugin({ command: "GC", plugin: plugin.type, binDirs, input }, signal);
    } catch (error) {
      if (!isUnknownCommand(error)) problems.push(messageOf(error));
    }
  }
  return problems;
}

function gcInput(list: ConfList, plugin: PluginConf, valid: ValidAttachment[]) {
  return {
    ...pluginInput(list, plugin, { capabilityArgs: {} }),
    "cni.dev/valid-attachments": valid,
    "cni.dev/attachments": valid, // the key in the first draft of CNI 1.1; libcni sends both
  };
}
