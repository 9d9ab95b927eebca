// Caches each pod's CNI attachments as files in libcni's format, so that DEL works even when the pod's record
// is lost. Other tools read <cache>/results too.
import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { readTextIfExists, writeFileAtomic } from "../sys/file.ts";
import { errnoOf } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { checked, mapOf } from "../base/schema.ts";
import { delFailureFile } from "./cni_del_failures.ts";
import { parseConfList, type ConfList } from "./cni_conf.ts";
import { parseResult, podIps, type CniResult } from "./cni_result.ts";

/** One attachment of a pod, with the arguments of its ADD, which DEL needs; no result: ADD did not finish. */
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
/** A cache file; its other fields are those of Attachment. */
const CacheFile = v.looseObject({
  kind: v.literal(kind),
  config: v.string(),
  cniArgs: v.optional(v.unknown()),
});

const Attachment = v.object({
  confList: v.looseObject({}),
  ifName: v.pipe(v.string(), v.nonEmpty()),
  args: v.optional(v.array(v.tuple([v.string(), v.string()])), []),
  capabilityArgs: v.optional(mapOf(v.string(), v.unknown()), {}),
  result: v.optional(v.unknown()),
});

/** Names the attachment of a pod, as libcni does. */
export function attachmentName(id: string, attachment: CniAttachment): string {
  return `${attachment.confList.name}-${id}-${attachment.ifName}`;
}

export async function writeCache(
  dir: string,
  pod: { id: string; netnsPath: string },
  attachment: CniAttachment,
): Promise<void> {
  const { confList, ifName, args, capabilityArgs, result } = attachment;
  const text = jsonText({
    kind,
    containerId: pod.id,
    config: Buffer.from(jsonText(confList)).toString("base64"),
    ifName,
    networkName: confList.name,
    netns: pod.netnsPath,
    cniArgs: args,
    capabilityArgs,
    result,
  });
  const path = join(dir, "results", attachmentName(pod.id, attachment));
  // On ext4 a rename over an existing file waits for the disk. If this is lost, the caller has a record.
  await rm(path, { force: true });
  try {
    await writeFileAtomic(path, text);
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") throw error;
    await mkdir(join(dir, "results"), { recursive: true, mode: 0o700 });
    await writeFileAtomic(path, text);
  }
}

/** Returns the pod's last attachment to each network; empty when no plugin ever ran for it. */
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
  await rm(delFailureFile(dir, id), { force: true });
}

/** Moves the pod's cache files to "given-up" for an administrator to inspect; returns that folder. */
export async function quarantineCache(dir: string, id: string): Promise<string> {
  const folder = join(dir, "given-up");
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of await cacheFiles(dir, id)) {
    await rename(join(dir, "results", name), join(folder, name));
  }
  await rm(delFailureFile(dir, id), { force: true });
  return folder;
}

/** One pod in one network, as named by a cache file. */
export type CachedPod = { id: string; network: string; ifName: string };

export async function cachedPods(dir: string): Promise<CachedPod[]> {
  const pods: CachedPod[] = [];
  for (const name of await cacheFiles(dir, "")) {
    // Prefer the name: it identifies the pod even when the content is lost.
    const id = /-([\da-f]{64})-/.exec(name)?.[1] ?? (await idInFile(join(dir, "results", name)));
    if (id === undefined) continue;
    const [network = "", ifName = ""] = name.split(`-${id}-`);
    pods.push({ id, network, ifName });
  }
  return pods;
}

/** Returns the pod's id from a file that another program has named. */
async function idInFile(path: string): Promise<string | undefined> {
  const text = (await readTextIfExists(path)) ?? "";
  return /"containerId":"([^"]+)"/.exec(text)?.[1];
}

/** Lists the file names of one pod, or with id "" of all pods. */
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
    const { config, cniArgs: args, ...rest } = checked(CacheFile, trustedJsonValue(text));
    const confList: unknown = trustedJsonValue(Buffer.from(config, "base64").toString("utf8"));
    return parseAttachment({ ...rest, confList, args });
  } catch {
    return undefined;
  }
}

/** Merges recorded and cached attachments; a recorded one wins if it has a result. */
export function attachmentsOf(
  recorded: readonly unknown[],
  cached: CniAttachment[],
): CniAttachment[] {
  const keyOf = ({ confList, ifName }: CniAttachment) => `${confList.name} ${ifName}`;
  const found = new Map(usableAttachments(recorded).map((one) => [keyOf(one), one]));
  for (const one of cached) {
    if (found.get(keyOf(one))?.result === undefined) found.set(keyOf(one), one);
  }
  return [...found.values()];
}

/** Returns the recorded attachments that are well-formed enough to run a plugin with. */
export function usableAttachments(recorded: readonly unknown[]): CniAttachment[] {
  return recorded.map(parseAttachment).filter((one) => one !== undefined);
}

/** Returns undefined when no plugin could be run with the attachment. */
function parseAttachment(json: unknown): CniAttachment | undefined {
  try {
    const { confList: list, result: printed, ...rest } = checked(Attachment, json);
    const confList = parseConfList(jsonText(list), "attachment.conflist");
    const result = resultOrNone(printed, confList.cniVersion);
    const ips = result === undefined ? [] : podIps(result, rest.ifName);
    return { ...rest, confList, result, ips };
  } catch {
    return undefined;
  }
}

/** Treats an unreadable result as a failed ADD: DEL runs without it. */
function resultOrNone(printed: unknown, version: string): CniResult | undefined {
  if (printed === undefined) return undefined;
  try {
    return parseResult(jsonText(printed), "attachment", version);
  } catch {
    return undefined;
  }
}
