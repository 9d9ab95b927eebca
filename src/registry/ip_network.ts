// Matches IP addresses against networks, for insecure-registries and NO_PROXY.
import { isIPv4, isIPv6 } from "node:net";
import { URL } from "node:url";

type Address = { value: bigint; length: 32 | 128 };

/** Tests whether a host is an address in a network such as 10.0.0.0/8 or fd00::/8. */
export function inNetwork(host: string, network: string): boolean {
  const [base = "", bits = "", rest] = network.split("/");
  const [address, first] = [addressOf(host), addressOf(base)];
  if (address === undefined || first?.length !== address.length) return false;
  if (!/^\d{1,3}$/.test(bits) || rest !== undefined || Number(bits) > first.length) return false;
  const shift = BigInt(first.length - Number(bits));
  return address.value >> shift === first.value >> shift;
}

/** Tests whether both are spellings of one address. */
export function isSameAddress(a: string, b: string): boolean {
  const [one, other] = [addressOf(a), addressOf(b)];
  return one !== undefined && one.value === other?.value && one.length === other.length;
}

/** Tests for localhost and loopback addresses. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || inNetwork(host, "127.0.0.0/8") || isSameAddress(host, "::1");
}

/** Parses an address, IPv6 optionally in brackets; an IPv4-mapped IPv6 address equals its IPv4 address. */
function addressOf(text: string): Address | undefined {
  if (isIPv4(text)) return { value: fromParts(text.split("."), 8n), length: 32 };
  const bare = text.replace(/^\[(.*)\]$/, "$1");
  // URL normalizes: no dotted quad, no leading zeros. It rejects zones.
  if (!isIPv6(bare) || !URL.canParse(`http://[${bare}]/`)) return undefined;
  const [head = "", tail = ""] = new URL(`http://[${bare}]/`).hostname.slice(1, -1).split("::");
  const groupsOf = (part: string) => part.split(":").filter((group) => group !== "");
  const [left, right] = [groupsOf(head), groupsOf(tail)];
  const middle = Array.from({ length: 8 - left.length - right.length }, () => "0");
  const groups = [...left, ...middle, ...right].map((group) => `0x${group}`);
  const value = fromParts(groups, 16n);
  if (value >> 32n === 0xffffn) return { value: value & 0xffffffffn, length: 32 };
  return { value, length: 128 };
}

function fromParts(parts: string[], bits: bigint): bigint {
  return parts.reduce((sum, part) => (sum << bits) | BigInt(part), 0n);
}
