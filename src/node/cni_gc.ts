// CNI 1.1's GC: plugins free what belongs to none of the attachments that are valid. These come from the
// pods' records and from the cache, and where the two differ nothing is collected: a lost file must not
// release the address of a running pod.
import { setTimeout as sleep } from "node:timers/promises";
import type { Gate } from "../base/gate.ts";
import { jsonText } from "../base/json.ts";
import type { Log } from "../base/log.ts";
import { messageOf } from "../base/errors.ts";
import { pluginInput } from "./cni_args.ts";
import { cachedPods, usableAttachments, writeCache } from "./cni_cache.ts";
import type { ConfList, PluginConf } from "./cni_conf.ts";
import { execPlugin } from "./cni_exec.ts";
import { knowsNoSuchCommand } from "./cni_status.ts";

/** GC waits so long for a moment without ADD and DEL, and may take so long for a network. */
const idleMs = 30_000;
const gcMs = 15_000;

/** A pod that is listed, with what its record has of its attachments. */
export type RecordedPod = { id: string; netnsPath: string; recorded: readonly unknown[] };

export type GcOptions = {
  lists: ConfList[];
  cacheDir: string;
  binDirs: string[];
  log: Log;
  gate: Gate;
};

type Valid = { network: string; containerID: string; ifname: string };

/**
 * Runs GC of the lists. knows: whether a pod exists, listed or being made. false: it is to be tried again
 * soon, for ADDs and DELs never paused, or the cache had to be mended from the records.
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
    const cached = await validOfCache(options.cacheDir, knows);
    const { lost, problems } = await compare(options.cacheDir, pods(), cached);
    for (const problem of [...lost, ...problems]) {
      log.warn(`CNI GC is put off, for it would release what a pod uses: ${problem}`);
    }
    if (problems.length > 0) return true; // in an hour: somebody has to look first
    if (lost.length > 0) return false;
    const valid = cached.filter(({ network }) => network === list.name);
    const attachments = valid.map(({ containerID, ifname }) => ({ containerID, ifname }));
    const signal = AbortSignal.timeout(gcMs);
    for (const problem of await runGc(list, attachments, { binDirs, signal })) log.warn(problem);
    log.info("CNI GC", { network: list.name, attachments: attachments.length });
  }
  return true;
}

async function validOfCache(dir: string, knows: (id: string) => boolean): Promise<Valid[]> {
  const pods = (await cachedPods(dir)).filter(({ id }) => knows(id));
  return pods.map(({ id, network, ifName }) => ({ network, containerID: id, ifname: ifName }));
}

/** lost: cache files that were not there, and are again; problems: records that tell nothing. */
async function compare(
  dir: string,
  pods: RecordedPod[],
  cached: Valid[],
): Promise<{ lost: string[]; problems: string[] }> {
  const known = new Set(cached.map((one) => key(one.network, one.containerID, one.ifname)));
  const lost: string[] = [];
  const problems: string[] = [];
  for (const { id, netnsPath, recorded } of pods) {
    const usable = usableAttachments(recorded);
    const isCached = cached.some(({ containerID }) => containerID === id);
    if (usable.length < recorded.length && !isCached) {
      problems.push(`the record of sandbox ${id} has attachments that cannot be read`);
    }
    for (const attachment of usable) {
      const network = attachment.confList.name;
      if (known.has(key(network, id, attachment.ifName))) continue;
      lost.push(`${dir} has no file of sandbox ${id} in network ${network}; it is written again`);
      await writeCache(dir, { id, netnsPath }, attachment);
    }
  }
  return { lost, problems };
}

function key(...parts: string[]): string {
  return jsonText(parts);
}

/** Alone in the gate, once nobody is in it; undefined: somebody was, for so long. */
export async function whenIdle(gate: Gate, ms: number): Promise<Disposable | undefined> {
  for (const end = performance.now() + ms; performance.now() < end; await sleep(20)) {
    const alone = gate.tryClose();
    if (alone !== undefined) return alone;
  }
  return undefined;
}

type Attachment = Omit<Valid, "network">;

/** GC of each plugin of a list; goes on behind a failure. Returns what failed, in words. */
async function runGc(
  list: ConfList,
  valid: Attachment[],
  { binDirs, signal }: { binDirs: string[]; signal: AbortSignal },
): Promise<string[]> {
  const problems: string[] = [];
  for (const plugin of list.plugins) {
    try {
      const input = gcInput(list, plugin, valid);
      await execPlugin({ command: "GC", plugin: plugin.type, binDirs, input }, signal);
    } catch (error) {
      if (!knowsNoSuchCommand(error)) problems.push(messageOf(error));
    }
  }
  return problems;
}

function gcInput(list: ConfList, plugin: PluginConf, valid: Attachment[]) {
  return {
    ...pluginInput(list, plugin, { capabilityArgs: {} }),
    "cni.dev/valid-attachments": valid,
    "cni.dev/attachments": valid, // its name in the first text of CNI 1.1, which libcni sends too
  };
}
