// What a pod's network interfaces have carried, asked from inside its namespace.
//
// Decision: /proc/PID/net/dev of any process there costs one file and no lock. A pod without a process
// needs a child that enters the namespace (the daemon never does): one child for all such pods.
import { statSync } from "node:fs";
import { messageOf } from "../base/errors.ts";
import { readKernelFile } from "../sys/file.ts";
import { run } from "../sys/run.ts";

/** Counters since the interface was made. */
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

/** A pod's network namespace: its file, what is mounted there, and processes that should be in it. */
export type PodNetwork = { id: string; path: string; inode: bigint; pids: number[] };

/** For the child that enters namespaces, all of them together. */
const enterMs = 5_000;

/** By pod; a pod whose namespace is gone, or cannot be entered, is not there. */
export async function readNetworks(
  pods: PodNetwork[],
  onProblem: (problem: string) => void,
): Promise<Map<string, InterfaceUsage[]>> {
  const found = new Map<string, InterfaceUsage[]>();
  const rest: PodNetwork[] = [];
  for (const pod of pods) {
    const pid = pod.pids.find((pid) => isIn(pid, pod.inode));
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

/** A pid may be another process's by now, and a process may have left its pod's namespace. */
function isIn(pid: number, inode: bigint): boolean {
  try {
    return statSync(`/proc/${pid}/ns/net`, { bigint: true }).ino === inode;
  } catch {
    return false; // it has ended; at that moment the kernel may say EACCES
  }
}

const separator = "=====";
const script = `for path; do nsenter --net="$path" cat /proc/self/net/dev; echo ${separator}; done`;

/** The text of each pod's /proc/net/dev; "" for a pod that cannot be entered. */
async function enterAll(pods: PodNetwork[]): Promise<string[]> {
  if (pods.length === 0) return [];
  const paths = pods.map(({ path }) => path);
  const signal = AbortSignal.timeout(enterMs);
  const { stdout } = await run(["sh", "-c", script, "sh", ...paths], { signal });
  return stdout.split(`${separator}\n`).slice(0, pods.length);
}

/** proc(5), /proc/PID/net/dev: two lines of headings, then a name and 16 counters a line; without lo. */
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
