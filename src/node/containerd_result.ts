// Converts the results of CNI ADD to containerd's form (go-cni, Result), for the verbose status of a pod.
import type { CniAttachment } from "./cni.ts";
import { addressOf, toModern } from "./cni_result.ts";

type InterfaceConfig = {
  IPConfigs: { IP: string; Gateway: string }[];
  Mac: string;
  Sandbox: string;
};

type ContainerdResult = {
  Interfaces: Record<string, InterfaceConfig>;
  DNS: unknown[];
  Routes: unknown[];
};

/** Returns null without a result, as for a pod with the node's network. */
export function containerdResult(attachments: readonly CniAttachment[]): ContainerdResult | null {
  const interfaces = new Map<string, InterfaceConfig>();
  const DNS: unknown[] = [];
  const Routes: unknown[] = [];
  for (const { result, ifName } of attachments) {
    if (result === undefined) continue;
    const modern = toModern(result);
    const listed = modern.interfaces ?? [];
    for (const { name, mac = "", sandbox = "" } of listed) {
      interfaces.set(name, { IPConfigs: [], Mac: mac, Sandbox: sandbox });
    }
    for (const { address, gateway = "", interface: index } of modern.ips ?? []) {
      const name = listed[index ?? -1]?.name ?? ifName;
      const config = interfaces.get(name) ?? { IPConfigs: [], Mac: "", Sandbox: "" };
      config.IPConfigs.push({ IP: addressOf(address), Gateway: gateway });
      interfaces.set(name, config);
    }
    DNS.push(modern.dns ?? {});
    Routes.push(...(modern.routes ?? []));
  }
  if (DNS.length === 0) return null;
  return { Interfaces: Object.fromEntries(interfaces), DNS, Routes };
}
