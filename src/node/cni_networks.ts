// Chooses a pod's networks and interface names: the first max-conf-num lists of the conf dir (as containerd),
// and those that the pod's annotation names (as iSulad).
//
// Decision: the default network comes first, unlike in iSulad, where it is last: of two default routes the
// first one stays, and it should be the route of the pod's default address.
import * as v from "valibot";
import { CriError, messageOf } from "../base/errors.ts";
import { matchesGlob } from "../base/glob.ts";
import { jsonValue } from "../base/json.ts";
import { quoted } from "../base/text.ts";
import { checked } from "../base/schema.ts";
import type { CniAttachment } from "./cni_cache.ts";
import type { ConfList } from "./cni_conf.ts";

/** iSulad's annotation: [{"name": "a list's name", "interface": "eth1"}, …]. */
export const networksAnnotation = "network.alpha.kubernetes.io/network";

const defaultInterface = "eth0";
const networksMax = 16;

const annotationBounds = { bytesMax: 64 << 10, itemsMax: 1_024 };

const Requests = v.pipe(
  v.array(
    v.object({
      name: v.string(),
      /** The kernel allows 1 to 15 bytes. */
      interface: v.pipe(v.string(), v.regex(/^(?!\.{1,2}$|lo$|all$|default$)[^\s/:\0]{1,15}$/)),
    }),
  ),
  v.maxLength(networksMax),
);

export type PodNetwork = { list: ConfList; ifName: string };

/**
 * Returns the pod's networks, the default one first. lists: those of the conf dir, in order; defaults: how
 * many of them every pod gets, 0: all. allowed: patterns of those that a pod may ask for.
 * @throws CriError INVALID_ARGUMENT for a malformed annotation, or one that names a network that is unknown or not
 * allowed. The error is the same, and names no other network: the pod's author learns nothing of those of others.
 */
export function podNetworks(
  lists: [ConfList, ...ConfList[]],
  defaults: number,
  { annotation, allowed }: { annotation: string | undefined; allowed: readonly string[] },
): [PodNetwork, ...PodNetwork[]] {
  const attached = defaults === 0 ? lists : lists.slice(0, defaults);
  const networks = attached.map((list, index) => ({ list, ifName: `eth${index}` }));
  for (const { name, interface: ifName } of annotation ? parse(annotation) : []) {
    const list = lists.find((one) => one.name === name);
    const isAllowed = attached.some((one) => one.name === name) || matchesAny(allowed, name);
    if (list === undefined || !isAllowed) {
      throw invalid(`there is no network ${quoted(name)} that pods may ask for (pod-networks)`);
    }
    const same = networks.findIndex((network) => network.ifName === ifName);
    // As in iSulad: a request for the default interface replaces the default network.
    const replaces = ifName === defaultInterface && networks[same]?.list === lists[0];
    if (networks.some((network, index) => network.list === list && !(replaces && index === same))) {
      throw invalid(`network ${name} is already attached`);
    }
    if (same >= 0 && !replaces) throw invalid(`interface ${ifName} is already in use`);
    if (replaces) networks[same] = { list, ifName };
    else networks.push({ list, ifName });
  }
  const [first, ...others] = networks;
  return [first!, ...others];
}

function matchesAny(patterns: readonly string[], name: string): boolean {
  return patterns.some((pattern) => matchesGlob(pattern, name));
}

function parse(annotation: string): v.InferOutput<typeof Requests> {
  try {
    return checked(Requests, jsonValue(annotation, undefined, annotationBounds));
  } catch (error) {
    const example = '[{"name": "storage", "interface": "eth1"}]';
    throw invalid(`must be a list such as ${example}: ${messageOf(error)}`);
  }
}

function invalid(problem: string): CriError {
  return new CriError("INVALID_ARGUMENT", `annotation ${networksAnnotation}: ${problem}`);
}

/**
 * Refuses a default network that gave no address: a kubelet replaces a pod that is ready without one, again and again,
 * and does not say why. @throws CriError FAILED_PRECONDITION.
 */
export function requireAddress(sandbox: string, { ips, confList, ifName }: CniAttachment): void {
  if (ips.length > 0) return;
  const why = `CNI network ${confList.name} gave sandbox ${sandbox} no address on ${ifName}`;
  const message = `${why}: correct its ipam, or make another network the first one`;
  throw new CriError("FAILED_PRECONDITION", message);
}
