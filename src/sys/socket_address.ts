// Encodes IP addresses and ports for the kernel (ip(7), ipv6(7)).
import { isIPv4 } from "node:net";
import { URL } from "node:url";

export type Family = "IPv4" | "IPv6";

const AF_INET = 2;
const AF_INET6 = 10;

export function familyOf(address: string): Family {
  return isIPv4(address) ? "IPv4" : "IPv6";
}

export function domainOf(family: Family): number {
  return family === "IPv4" ? AF_INET : AF_INET6;
}

/** Returns a struct sockaddr_in or sockaddr_in6. @throws TypeError for an invalid address. */
export function socketAddress(address: string, port: number): Uint8Array {
  const family = familyOf(address);
  const bytes = new Uint8Array(family === "IPv4" ? 16 : 28);
  const view = new DataView(bytes.buffer);
  view.setUint16(0, domainOf(family), true);
  view.setUint16(2, port);
  if (family === "IPv4") bytes.set(address.split(".").map(Number), 4);
  else
    for (const [index, group] of groupsOf(address).entries()) view.setUint16(8 + 2 * index, group);
  return bytes;
}

/** Returns the eight groups of an IPv6 address. */
function groupsOf(address: string): number[] {
  // URL normalizes: no dotted quad, one "::" at most.
  const [head = "", tail] = new URL(`http://[${address}]/`).hostname.slice(1, -1).split("::");
  const parse = (part: string) =>
    part
      .split(":")
      .filter(Boolean)
      .map((group) => parseInt(group, 16));
  const [left, right] = [parse(head), parse(tail ?? "")];
  return [...left, ...Array<number>(8 - left.length - right.length).fill(0), ...right];
}

/** Formats an address and port as in a URL. */
export function hostPort(address: string, port: number): string {
  return familyOf(address) === "IPv4" ? `${address}:${port}` : `[${address}]:${port}`;
}
