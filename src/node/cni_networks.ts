// Which networks a pod is attached to, and by which interfaces: the first of the conf dir, or as many as
// max-conf-num says (containerd's), and those that its annotation names (iSulad's).
//
// Decision: the default network comes first, where iSulad takes it last: of two default routes the first
// one stays, and that is to be the one of the pod's own addresses.
import * as v from "valibot";
import { CriError, messageOf } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import { quoted } from "../base/text.ts";
import type { ConfList } from "./cni_conf.ts";

/** iSulad's: [{"name": "a list's name", "interface": "eth1"}, …]. */
export const networksAnnotation = "network.alpha.kubernetes.io/network";

const defaultInterface = "eth0";
const networksMax = 16;

const Asked = v.pipe(
  v.array(
    v.object({
      name: v.string(),
      /** As the kernel takes it: 1 to 15 bytes. */
      interface: v.pipe(v.string(), v.regex(/^(?!\.{1,2}$|lo$|all$|default$)[^\s/:\0]{1,15}$/)),
    }),
  ),
  v.maxLength(networksMax),
);

export type PodNetwork = { list: ConfList; ifName: string };

/**
 * The pod's networks, the default one first. lists: what the conf dir has, its first one first; attached:
 * how many of them every pod gets, 0: all.
 * @throws CriError INVALID_ARGUMENT for an annotation that makes no sense or names no network.
 */
export function podNetworks(
  lists: [ConfList, ...ConfList[]],
  attached: number,
  annotation: string | undefined,
): [PodNetwork, ...PodNetwork[]] {
  const everywhere = attached === 0 ? lists : lists.slice(0, attached);
  const networks = everywhere.map((list, index) => ({ list, ifName: `eth${index}` }));
  for (const { name, interface: ifName } of annotation ? parse(annotation) : []) {
    const list = lists.find((one) => one.name === name);
    if (list === undefined) {
      const known = lists.map((one) => one.name).join(", ");
      throw invalid(`there is no network ${quoted(name)}; the CNI lists are ${known}`);
    }
    const same = networks.findIndex((network) => network.ifName === ifName);
    // As in iSulad: who asks for the default interface chooses the default network.
    const replaces = ifName === defaultInterface && networks[same]?.list === lists[0];
    if (networks.some((network, index) => network.list === list && !(replaces && index === same))) {
      throw invalid(`network ${name} is attached already`);
    }
    if (same >= 0 && !replaces) throw invalid(`interface ${ifName} is taken already`);
    if (replaces) networks[same] = { list, ifName };
    else networks.push({ list, ifName });
  }
  const [first, ...others] = networks;
  return [first!, ...others];
}

function parse(annotation: string): v.InferOutput<typeof Asked> {
  try {
    return v.parse(Asked, jsonValue(annotation));
  } catch (error) {
    const needs = 'a list such as [{"name": "storage", "interface": "eth1"}] is needed';
    throw invalid(`${needs} (${messageOf(error)})`);
  }
}

function invalid(problem: string): CriError {
  return new CriError("INVALID_ARGUMENT", `annotation ${networksAnnotation}: ${problem}`);
}
