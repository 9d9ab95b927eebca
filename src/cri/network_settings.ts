// Converts the results of CNI ADD to iSulad's network settings, as in the record of a sandbox.
import { podAddresses, podMac } from "../node/cni.ts";
import type { CniAttachments, CniPod, PodAddress } from "../node/cni.ts";
import type { NetworkEndpoint, NetworkSettings } from "../state/sandbox.ts";

type IpPreference = "ipv4" | "ipv6" | "cni";

/** Completes the settings that were planned before CNI ADD; the top level repeats the first network. */
export function attachedSettings(
  settings: NetworkSettings,
  attachments: CniAttachments,
  { portMappings, preference }: Pick<CniPod, "portMappings"> & { preference: IpPreference },
): NetworkSettings {
  const [first] = attachments;
  const Networks: NetworkSettings["Networks"] = {};
  for (const attachment of attachments) {
    Networks[attachment.confList.name] = endpointOf(attachment);
  }
  const { InterfaceName: _, ...own } = endpointOf(first);
  return {
    ...settings,
    ...own,
    IPs: preferred(first.ips, preference),
    CNIPorts: portMappings,
    Activation: true,
    Networks,
  };
}

function endpointOf({ result, ifName }: CniAttachments[0]): NetworkEndpoint {
  const addresses = result === undefined ? [] : podAddresses(result, ifName);
  const none: PodAddress = { ip: "", prefixLength: 0, gateway: "" };
  const v4 = addresses.find(({ ip }) => !isV6(ip)) ?? none;
  const v6 = addresses.find(({ ip }) => isV6(ip)) ?? none;
  return {
    IPAddress: v4.ip,
    IPPrefixLen: v4.prefixLength,
    Gateway: v4.gateway,
    GlobalIPv6Address: v6.ip,
    GlobalIPv6PrefixLen: v6.prefixLength,
    IPv6Gateway: v6.gateway,
    MacAddress: result === undefined ? "" : podMac(result, ifName),
    InterfaceName: ifName,
  };
}

/** Moves the first address of the preferred family to the front; the others keep their order. */
export function preferred(ips: string[], preference: IpPreference): string[] {
  const wanted = (ip: string) => preference === "cni" || isV6(ip) === (preference === "ipv6");
  const first = ips.find(wanted);
  return first === undefined ? ips : [first, ...ips.filter((ip) => ip !== first)];
}

function isV6(ip: string): boolean {
  return ip.includes(":");
}
