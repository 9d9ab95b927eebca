// Lists what pods leave behind on a node of the test cluster: containers, processes, cgroups, mounts, namespaces,
// addresses, files and packet filter rules.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { ClusterNode } from "./cluster_node.ts";

/** Folders of which each entry belongs to a pod. */
const folders = [
  "/var/lib/isulad/sandboxes",
  "/var/lib/isulad/containers",
  "/var/lib/kubelet/pods",
  "/var/log/pods",
  "/run/netns",
  "/run/isulad/stdio",
  "/run/isulad/tty",
  "/run/isulad/runtime/runc",
  "/run/isulad/monitor/containers",
];

/** Returns a line for each object; the same node without pods has the same lines. */
export async function thingsOf(node: ClusterNode): Promise<Set<string>> {
  const { machine, token } = node;
  const things: string[] = [];
  using client = node.client();
  const { items } = await client.ListPodSandbox({});
  things.push(...items.map(({ id, metadata }) => `sandbox ${metadata?.name} ${id}`));
  const { containers } = await client.ListContainers({});
  things.push(...containers.map(({ id, metadata }) => `container ${metadata?.name} ${id}`));
  const leases = `/var/lib/cni/networks/${token}`;
  for (const folder of [...folders, leases]) {
    const names = entries(machine.path(folder)).filter((name) => !/^(lock|last_res)/.test(name));
    things.push(...names.map((name) => `${folder}/${name}`));
  }
  for (const line of machine.run("cat", "/proc/self/mountinfo").trim().split("\n"))
    things.push(`mount ${line.split(" ")[4]}`);
  const links = entries(machine.path("/sys/class/net"));
  // The bridge of the CNI plugin comes with the first pod, and stays.
  things.push(...links.filter((name) => name !== "cni0").map((name) => `link ${name}`));
  const rules = machine.run("iptables-save").split("\n");
  things.push(...rules.filter((line) => line.startsWith("-A CNI-")).map((line) => `rule ${line}`));
  things.push(...cgroupsOf(token));
  return new Set(things);
}

function entries(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

/** Lists the cgroups below the node's, with their processes. */
function cgroupsOf(token: string): string[] {
  const found: string[] = [];
  for (const hierarchy of entries("/sys/fs/cgroup")) {
    const open = [join("/sys/fs/cgroup", hierarchy, token)];
    for (let at = open.pop(); at !== undefined; at = open.pop()) {
      for (const entry of entries(at)) {
        const path = join(at, entry);
        if (entry === "cgroup.procs") {
          const pids = readFileSync(path, "utf8").split("\n").filter(Boolean);
          found.push(...pids.map((pid) => `process ${pid} in ${at}`));
        } else if (entries(path).includes("cgroup.procs")) {
          // The kubelet makes those of the classes with the first pod, and keeps them.
          if (!/^(kubepods|besteffort|burstable)$/.test(entry)) found.push(`cgroup ${path}`);
          open.push(path);
        }
      }
    }
  }
  return found;
}
