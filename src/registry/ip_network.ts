// IP addresses and networks, as lists of exceptions name them.
import { isIPv4, isIPv6 } from "node:net";
import { URL } from "node:url";

type Address = { value: bigint; length: 32 | 128 };

/** Whether a host is an address of a network such as 10.0.0.0/8 or fd00::/8. */
export function inNetwork(host: string, network: string): boolean {
  const [base = "", bits = "", rest] = network.split("/");
  const [address, first] = [addressOf(host), addressOf(base)];
  if (address === undefined || first?.length !== address.length) return false;
  if (!/^\d{1,3}$/.test(bits) || rest !== undefined || Number(bits) > first.length) return false;
  const shift = BigInt(first.length - Number(bits));
  return address.value >> shift === first.value >> shift;
}

/** Whether both are spellings of one address. */
export function isSameAddress(a: string, b: string): boolean {
  const [one, other] = [addressOf(a), addressOf(b)];
  return one !== undefined && one.value === other?.value && one.length === other.length;
}

/** localhost, and the addresses that only this host can reach. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || inNetwork(host, "127.0.0.0/8") || isSameAddress(host, "::1");
}

/** An IPv6 address may stand in brackets; one that maps an IPv4 address is that address. */
function addressOf(text: string): Address | undefined {
  if (isIPv4(text)) return { value: joined(text.split("."), 8n), length: 32 };
  const bare = text.replace(/^\[(.*)\]$/, "$1");
  // URL writes them in one way: no dotted end, no leading zeros. It knows no zones.
  if (!isIPv6(bare) || !URL.canParse(`http://[${bare}]/`)) return undefined;
  const [head = "", tail = ""] = new URL(`http://[${bare}]/`).hostname.slice(1, -1).split("::");
  const words = (part: string) => part.split(":").filter((word) => word !== "");
  const [left, right] = [words(head), words(tail)];
  const middle = Array.from({ length: 8 - left.length - right.length }, () => "0");
  const value = joined(
    [...left, ...middle, ...right].map((word) => `0x${word}`),
    16n,
  );
  if (value >> 32n === 0xffffn) return { value: value & 0xffffffffn, length: 32 };
  return { value, length: 128 };
}

function joined(parts: string[], bits: bigint): bigint {
  return parts.reduce((sum, part) => (sum << bits) | BigInt(part), 0n);
}
