// What each pod was wired with, as files in libcni's form: DEL finds it even when the caller's own
// record is lost, and so do other tools that read <cache>/results.
import { mkdir, readdir, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { readTextIfExists, writeFileAtomic } from "../sys/file.ts";
import { errnoOf } from "../base/errors.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { failingFile } from "./cni_failing.ts";
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
/** The rest is as in an attachment. */
const CacheFile = v.looseObject({
  kind: v.literal(kind),
  config: v.string(),
  cniArgs: v.optional(v.unknown()),
});

const Attachment = v.object({
  confList: v.looseObject({}),
  ifName: v.pipe(v.string(), v.nonEmpty()),
  args: v.optional(v.array(v.tuple([v.string(), v.string()])), []),
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
  await rm(failingFile(dir, id), { force: true });
}

/** Puts what is known of the pod away, for a person; returns where it is. */
export async function giveUp(dir: string, id: string): Promise<string> {
  const folder = join(dir, "given-up");
  await mkdir(folder, { recursive: true, mode: 0o700 });
  for (const name of await cacheFiles(dir, id)) {
    await rename(join(dir, "results", name), join(folder, name));
  }
  await rm(failingFile(dir, id), { force: true });
  return folder;
}

/** The pods that the cache knows of, by network. */
export type CachedPod = { id: string; network: string; ifName: string };

export async function cachedPods(dir: string): Promise<CachedPod[]> {
  const pods: CachedPod[] = [];
  for (const name of await cacheFiles(dir, "")) {
    // The name says it: a file whose content is lost is still one of the pod.
    const id = /-([\da-f]{64})-/.exec(name)?.[1] ?? (await idWithin(join(dir, "results", name)));
    if (id === undefined) continue;
    const [network = "", ifName = ""] = name.split(`-${id}-`);
    pods.push({ id, network, ifName });
  }
  return pods;
}

/** Of a file that another program has named. */
async function idWithin(path: string): Promise<string | undefined> {
  const text = (await readTextIfExists(path)) ?? "";
  return /"containerId":"([^"]+)"/.exec(text)?.[1];
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
    const { config, cniArgs: args, ...rest } = v.parse(CacheFile, jsonValue(text));
    const confList: unknown = jsonValue(Buffer.from(config, "base64").toString("utf8"));
    return parseAttachment({ ...rest, confList, args });
  } catch {
    return undefined;
  }
}

/** Those on record that can be used, with the cached results where they have none, and the other cached ones. */
export function attachmentsOf(
  recorded: readonly unknown[],
  cached: CniAttachment[],
): CniAttachment[] {
  const keyOf = ({ confList, ifName }: CniAttachment) => `${confList.name} ${ifName}`;
  const usable = usableAttachments(recorded);
  const found = new Map(usable.map((one) => [keyOf(one), one]));
  for (const one of cached) {
    const known = found.get(keyOf(one));
    if (known?.result === undefined) found.set(keyOf(one), one);
  }
  return [...found.values()];
}

/** Those on record that a plugin could be run with. */
export function usableAttachments(recorded: readonly unknown[]): CniAttachment[] {
  return recorded.map(parseAttachment).filter((one) => one !== undefined);
}

/** What has become JSON and is one again; undefined where it is none that a plugin could be run with. */
function parseAttachment(json: unknown): CniAttachment | undefined {
  try {
    const { confList: list, result: printed, ...rest } = v.parse(Attachment, json);
    const confList = parseConfList(jsonText(list), "attachment.conflist");
    const result = parsePrinted(printed, confList.cniVersion);
    const ips = result === undefined ? [] : podIps(result, rest.ifName);
    return { ...rest, confList, result, ips };
  } catch {
    return undefined;
  }
}

/** One that cannot be read is as if ADD had failed: DEL runs without it. */
function parsePrinted(printed: unknown, version: string): CniResult | undefined {
  try {
    return printed === undefined
      ? undefined
      : parseResult(jsonText(printed), "attachment", version);
  } catch {
    return undefined;
  }
}
