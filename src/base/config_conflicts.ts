// Refuses keys that name the same socket, file, folder or port: only one of their users would get it.
import { resolve } from "node:path";
import { clipped, type Resolution } from "./config_resolution.ts";
import { pathOfSocket, splitAddress } from "./config_values.ts";

type Conflicting = {
  hosts: string[];
  containerdSocket: string;
  pidfile: string;
  graph: string;
  state: string;
  serveBlobs: string;
  metricsAddress: string;
  metricsPort: number;
};

export function checkConflicts(config: Conflicting, s: Resolution): void {
  const { hosts, containerdSocket, pidfile, graph, state } = config;
  const paths: [key: string, path: string][] = [
    ["graph", graph],
    ["state", state],
    ["pidfile", pidfile],
    ...hosts.map((host): [string, string] => ["hosts", pathOfSocket(host)]),
    ["containerd-socket", containerdSocket],
  ];
  const users = new Map<string, string>();
  for (const [key, path] of paths.filter(([, path]) => path !== "")) {
    const plain = plainPath(path);
    const other = users.get(plain);
    users.set(plain, key);
    if (other !== undefined) refuse(s, { key, value: path, other });
  }
  if (config.serveBlobs === "" || config.metricsPort === 0) return;
  const { address, port } = splitAddress(config.serveBlobs);
  // metrics-address names one address; an unspecified one stands for all, also of the other family.
  const isSame = [config.metricsAddress, "0.0.0.0", "::"].includes(address);
  if (port === config.metricsPort && isSame) {
    refuse(s, { key: "metrics-port", value: port, other: "serve-blobs" });
  }
}

function refuse(
  s: Resolution,
  { key, value, other }: Record<"key" | "other", string> & { value: unknown },
) {
  const whom = other === key ? "twice" : `as "${other}" has`;
  s.problems.push(`${s.place(key)}: "${key}" must not have ${clipped(value)} ${whom}`);
}

/** /var/run is a link to /run. */
export function plainPath(path: string): string {
  return resolve(path).replace(/^\/var\/run\//, "/run/");
}
