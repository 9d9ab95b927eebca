// What each pod was wired with, as files in libcni's form: DEL finds it even when the caller's own
// record is lost, and so do other tools that read <cache>/results.
import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { readTextIfExists, writeFileAtomic } from "../sys/file.ts";
import { errnoOf } from "../base/errors.ts";
import { parseConfList, type ConfList } from "./cni_conf.ts";
import { parseResult, podIps, type CniResult } from "./cni_result.ts";

/** How a pod is wired, or, without a result, how it was tried: DEL needs it as it was at ADD. */
export type CniAttachment = {
  confList: ConfList;
  ifName: string;
  args: [string, string][];
  capabilityArgs: Record<string, unknown>;
  result?: CniResult;
  /** The pod's addresses, without prefix length. */
  ips: string[];
};

const kind = "cniCacheV1";
const CacheFile = v.looseObject({
  kind: v.literal(kind),
  config: v.string(),
  ifName: v.string(),
  cniArgs: v.optional(v.array(v.tuple([v.string(), v.string()])), []),
  capabilityArgs: v.optional(v.record(v.string(), v.unknown()), {}),
  result: v.optional(v.unknown()),
});

function fileName(id: string, attachment: CniAttachment): string {
  return `${attachment.confList.name}-${id}-${attachment.ifName}`;
}

export async function writeCache(
  dir: string,
  pod: { id: string; netnsPath: string },
  attachment: CniAttachment,
): Promise<void> {
  const { confList, ifName, args, capabilityArgs, result } = attachment;
  const text = JSON.stringify({
    kind,
    containerId: pod.id,
    config: Buffer.from(JSON.stringify(confList)).toString("base64"),
    ifName,
    networkName: confList.name,
    netns: pod.netnsPath,
    cniArgs: args,
    capabilityArgs,
    result,
  });
  const path = join(dir, "results", fileName(pod.id, attachment));
  // ext4 makes a rename over a file wait for the disk; what is lost in between, the caller has.
  await rm(path, { force: true });
  try {
    await writeFileAtomic(path, text);
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") throw error;
    await mkdir(join(dir, "results"), { recursive: true, mode: 0o700 });
    await writeFileAtomic(path, text);
  }
}

/** What the pod was last wired with, of each network; none where no plugin ever ran for it. */
export async function readCache(dir: string, id: string): Promise<CniAttachment[]> {
  const attachments: CniAttachment[] = [];
  for (const name of await cacheFiles(dir, id)) {
    const attachment = parseCache((await readTextIfExists(join(dir, "results", name))) ?? "");
    if (attachment !== undefined) attachments.push(attachment);
  }
  return attachments.toSorted((a, b) => (a.ifName < b.ifName ? -1 : 1));
}

export async function removeCache(dir: string, id: string): Promise<void> {
  for (const name of await cacheFiles(dir, id)) {
    await rm(join(dir, "results", name), { force: true });
  }
  await rm(join(dir, "failing", id), { force: true });
}

/** Since when DEL of a pod fails, in milliseconds since the epoch; it fails for the first time now. */
export async function failingSince(dir: string, id: string): Promise<number> {
  const path = join(dir, "failing", id);
  const since = Number((await readTextIfExists(path)) ?? Number.NaN);
  if (since > 0) return since;
  await mkdir(join(dir, "failing"), { recursive: true, mode: 0o700 });
  const now = Date.now();
  await writeFileAtomic(path, String(now));
  return now;
}

/** Puts what is known of the pod away, for a person; returns where it is. */
export async function giveUp(dir: string, id: string): Promise<string> {
  const folder = join(dir, "given-up");
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of await cacheFiles(dir, id)) {
    await rename(join(dir, "results", name), join(folder, name));
  }
  await rm(join(dir, "failing", id), { force: true });
  return folder;
}

/** The pods that the cache knows of, by network. */
export type CachedPod = { id: string; network: string; ifName: string };

export async function cachedPods(dir: string): Promise<CachedPod[]> {
  const pods: CachedPod[] = [];
  for (const name of await cacheFiles(dir, "")) {
    const text = (await readTextIfExists(join(dir, "results", name))) ?? "";
    const id = /"containerId":"([^"]+)"/.exec(text)?.[1];
    if (id === undefined) continue;
    const [network = "", ifName = ""] = name.split(`-${id}-`);
    pods.push({ id, network, ifName });
  }
  return pods;
}

/** Of one pod; id "": of all. */
async function cacheFiles(dir: string, id: string): Promise<string[]> {
  try {
    const names = await readdir(join(dir, "results"));
    const middle = id === "" ? "-" : `-${id}-`;
    return names.filter((name) => name.includes(middle) && !name.endsWith(".tmp"));
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return [];
    throw error;
  }
}

function parseCache(text: string): CniAttachment | undefined {
  try {
    const file = v.parse(CacheFile, JSON.parse(text));
    const config = Buffer.from(file.config, "base64").toString("utf8");
    const confList = parseConfList(config, "cache.conflist");
    const result =
      file.result === undefined
        ? undefined
        : parseResult(JSON.stringify(file.result), "cache", confList.cniVersion);
    return {
      confList,
      ifName: file.ifName,
      args: file.cniArgs,
      capabilityArgs: file.capabilityArgs,
      result,
      ips: result === undefined ? [] : podIps(result, file.ifName),
    };
  } catch {
    return undefined;
  }
}
