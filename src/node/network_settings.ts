// Converts the results of CNI ADD to iSulad's network settings, as in the record of a sandbox.
import { attachmentName, podAddresses, podMac } from "./cni.ts";
import type { CniAttachments, CniPod, PodAddress } from "./cni.ts";
import type { NetworkEndpoint, NetworkSettings } from "../state/sandbox.ts";

/** The default of the bridge plugin (containernetworking/plugins, main/bridge). */
const defaultBridge = "cni0";

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
    Networks[attachment.confList.name] = endpointOf(settings.SandboxID, attachment);
  }
  const { InterfaceName: _, ...own } = endpointOf(settings.SandboxID, first);
  return {
    ...settings,
    ...own,
    IPs: preferred(first.ips, preference),
    CNIPorts: portMappings,
    Ports: bindings(portMappings),
    Activation: true,
    Networks,
  };
}

function bindings(mappings: CniPod["portMappings"]): NetworkSettings["Ports"] {
  const ports: NetworkSettings["Ports"] = {};
  for (const { containerPort, protocol, hostIP: HostIp, hostPort } of mappings) {
    (ports[`${containerPort}/${protocol}`] ??= []).push({ HostIp, HostPort: String(hostPort) });
  }
  return ports;
}

function endpointOf(id: string, attachment: CniAttachments[0]): NetworkEndpoint {
  const { result, ifName } = attachment;
  const addresses = result === undefined ? [] : podAddresses(result, ifName);
  const none: PodAddress = { ip: "", prefixLength: 0, gateway: "" };
  const v4 = addresses.find(({ ip }) => !isV6(ip)) ?? none;
  const v6 = addresses.find(({ ip }) => isV6(ip) && !isLinkLocal(ip)) ?? none;
  const linkLocal = addresses.find(({ ip }) => isLinkLocal(ip)) ?? none;
  return {
    IPAddress: v4.ip,
    IPPrefixLen: v4.prefixLength,
    Gateway: v4.gateway,
    GlobalIPv6Address: v6.ip,
    GlobalIPv6PrefixLen: v6.prefixLength,
    IPv6Gateway: v6.gateway,
    MacAddress: result === undefined ? "" : podMac(result, ifName),
    LinkLocalIPv6Address: linkLocal.ip,
    LinkLocalIPv6PrefixLen: linkLocal.prefixLength,
    Bridge: bridgeOf(attachment),
    EndpointID: attachmentName(id, attachment),
    InterfaceName: ifName,
  };
}

/** Returns the bridge that the list's bridge plugin attaches pods to; "" without that plugin. */
function bridgeOf({ confList }: CniAttachments[0]): string {
  const plugin = confList.plugins.find(({ type }) => type === "bridge");
  if (plugin === undefined) return "";
  const { bridge } = plugin;
  return typeof bridge === "string" && bridge !== "" ? bridge : defaultBridge;
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

function isLinkLocal(ip: string): boolean {
  return /^fe[89ab][0-9a-f]:/i.test(ip);
}
