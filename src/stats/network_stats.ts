// Reads the counters of pods' network interfaces from inside their namespaces.
//
// Decision: /proc/PID/net/dev of any process in the namespace is read, which costs one file and no lock. For all pods
// without a process, one child enters their namespaces, because the daemon itself never enters one.
import { statSync } from "node:fs";
import { messageOf } from "../base/errors.ts";
import { readKernelFile } from "../sys/file.ts";
import { run } from "../sys/run.ts";

/** Counters since the interface was created. */
export type InterfaceUsage = {
  name: string;
  rxBytes: bigint;
  rxPackets: bigint;
  rxErrors: bigint;
  rxDropped: bigint;
  txBytes: bigint;
  txPackets: bigint;
  txErrors: bigint;
  txDropped: bigint;
};

/** A pod's network namespace: file, expected inode, and processes that should be in it. */
export type PodNetwork = { id: string; path: string; inode: bigint; pids: number[] };

/** Limit for the child, all namespaces together. */
const enterMs = 5_000;

/** Returns the counters by pod; omits pods whose namespace is missing or cannot be entered. */
export async function readNetworks(
  pods: PodNetwork[],
  onProblem: (problem: string) => void,
): Promise<Map<string, InterfaceUsage[]>> {
  const found = new Map<string, InterfaceUsage[]>();
  const rest: PodNetwork[] = [];
  for (const pod of pods) {
    const pid = pod.pids.find((one) => isIn(one, pod.inode));
    const text = pid === undefined ? undefined : readKernelFile(`/proc/${pid}/net/dev`);
    if (text === undefined) rest.push(pod);
    else found.set(pod.id, parseNetDev(text));
  }
  try {
    for (const [index, text] of (await enterAll(rest)).entries()) {
      if (text !== "") found.set(rest[index]!.id, parseNetDev(text));
    }
  } catch (error) {
    onProblem(messageOf(error));
  }
  return found;
}

/** Checks the namespace, because the pid may have been reused or the process may have left. */
function isIn(pid: number, inode: bigint): boolean {
  try {
    return statSync(`/proc/${pid}/ns/net`, { bigint: true }).ino === inode;
  } catch {
    return false; // the process has ended (ENOENT) or is ending (EACCES)
  }
}

const separator = "=====";
const script = `for path; do nsenter --net="$path" cat /proc/self/net/dev; echo ${separator}; done`;

/** Returns the text of each pod's /proc/net/dev; "" if its namespace cannot be entered. */
async function enterAll(pods: PodNetwork[]): Promise<string[]> {
  if (pods.length === 0) return [];
  const paths = pods.map(({ path }) => path);
  const signal = AbortSignal.timeout(enterMs);
  const { stdout } = await run(["sh", "-c", script, "sh", ...paths], { signal });
  return stdout.split(`${separator}\n`).slice(0, pods.length);
}

/** Parses /proc/PID/net/dev without lo (proc(5): two header lines, then a name and 16 counters per line). */
export function parseNetDev(text: string): InterfaceUsage[] {
  const found: InterfaceUsage[] = [];
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    const name = line.slice(0, colon).trim();
    const counters = line.slice(colon + 1).trim();
    if (colon === -1 || name === "lo" || !/^\d+(\s+\d+){15,}$/.test(counters)) continue;
    const count = counters.split(/\s+/).map(BigInt);
    found.push({
      name,
      rxBytes: count[0]!,
      rxPackets: count[1]!,
      rxErrors: count[2]!,
      rxDropped: count[3]!,
      txBytes: count[8]!,
      txPackets: count[9]!,
      txErrors: count[10]!,
      txDropped: count[11]!,
    });
  }
  return found;
}
