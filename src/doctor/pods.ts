// Checks what pods are made with: runtimes, networks, and the disk of graph.
import { accessSync, constants, readdirSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import type { Config } from "../base/config.ts";
import { splitAddress } from "../base/config_values.ts";
import { codeOf, errnoOf, messageOf } from "../base/errors.ts";
import type { RuntimeEntry } from "../base/runtime_values.ts";
import { ConfDir, executables } from "../node/cni_conf.ts";
import { findPlugin } from "../node/cni_exec.ts";
import { missingPrograms } from "../node/programs.ts";
import { existsAt, type Finding, type Node, type State } from "./node.ts";

export function checkPrograms(node: Node, config: Config): Finding[] {
  const check = "programs";
  const missing = missingPrograms(config, (name) => node.isInstalled(name));
  if (missing.length === 0) return [{ check, state: "ok", detail: "all are installed" }];
  return missing.map(({ isRequired, problem: detail, mend }) => {
    return { check, state: isRequired ? "fail" : "warn", detail, mend };
  });
}

/** The default runtime must work; another one fails only its own pods. */
export async function checkRuntimes(node: Node, config: Config): Promise<Finding[]> {
  return await Promise.all(
    Object.entries(config.runtimes).map(([name, entry]) => {
      const state = name === config.defaultRuntime ? "fail" : "warn";
      return checkRuntime(node, { name, entry, state });
    }),
  );
}

type Named = { name: string; entry: RuntimeEntry; state: State };

/** Debian's packages that are named like the program. */
const runtimePackages = ["runc", "crun"];

async function checkRuntime(node: Node, { name, entry, state }: Named): Promise<Finding> {
  const check = `runtime ${name}`;
  const { path } = entry;
  try {
    accessSync(join(node.root, path), constants.X_OK);
  } catch (error) {
    const isMissing = errnoOf(error) === "ENOENT";
    const detail = isMissing
      ? `${path} is not installed`
      : `${path} cannot be executed: ${errnoOf(error) ?? messageOf(error)}`;
    const known = runtimePackages.includes(basename(path));
    const hint = known ? ` (apt-get install ${basename(path)})` : "";
    const mend = `install it${hint}, or correct "runtimes" in daemon.json`;
    return { check, state, detail, mend };
  }
  if (entry.shim !== undefined) return { check, state: "ok", detail: path };
  try {
    const text = await node.output([join(node.root, path), ...entry.runtimeArgs, "--version"]);
    return { check, ...judged(text, state) };
  } catch (error) {
    const detail = `${path} --version fails: ${messageOf(error)}`;
    // A machine that has just installed packages, or is short of CPU, is late without anything being wrong.
    const mend =
      codeOf(error) === "DEADLINE_EXCEEDED"
        ? "repeat isulad-ts doctor when the machine is less busy"
        : "install it again, for this machine's architecture";
    return { check, state, detail, mend };
  }
}

/** Judges the first line of a runtime's --version. */
function judged(text: string, state: State): Omit<Finding, "check"> {
  const [line = ""] = text.split("\n");
  const version = /^runc version (\d+)\.(\d+)\.(\d+)/.exec(line)?.slice(1).map(Number);
  if (version === undefined) return { state: "ok", detail: line };
  const mend = "install a newer runc; running containers need no restart";
  if (isBefore(version, [1, 1, 0])) {
    return { state, detail: `${line} is older than 1.1`, mend };
  }
  const cves = knownCves.filter(({ fixed }) => !isFixed(version, fixed)).map(({ id }) => id);
  if (cves.length === 0) return { state: "ok", detail: line };
  const detail = `${line} has ${cves.join(", ")}, unless its distributor has patched it`;
  return { state: "warn", detail, mend };
}

/** fixed: the first patched release of each line, in ascending order. */
const knownCves = [
  { id: "CVE-2024-21626", fixed: [[1, 1, 12]] },
  {
    id: "CVE-2025-31133",
    fixed: [
      [1, 2, 8],
      [1, 3, 3],
    ],
  },
];

function isFixed(version: number[], fixed: number[][]): boolean {
  const ofLine = fixed.find(([major, minor]) => major === version[0] && minor === version[1]);
  return !isBefore(version, ofLine ?? fixed.at(-1)!);
}

function isBefore(version: number[], other: number[]): boolean {
  const index = other.findIndex((number, at) => number !== version[at]);
  return index >= 0 && version[index]! < other[index]!;
}

/** The plugins of github.com/containernetworking/plugins, which distributions package. */
const standardPlugins = new Set(
  `bandwidth bridge dhcp dummy firewall host-device host-local ipvlan loopback macvlan portmap ptp sbr static
  tap tuning vlan vrf`.split(/\s+/),
);

export function checkNetwork({ root, isRoot }: Node, { cniConfDir, cniBinDirs }: Config): Finding {
  const check = "pod network";
  const { list, file = "", problem } = new ConfDir(join(root, cniConfDir)).current();
  if (problem !== undefined && !isRoot) checkReadable(join(root, cniConfDir));
  if (list === undefined) {
    const absent = `no CNI network list in ${cniConfDir}`;
    const install =
      "install the cluster's network add-on; without one, isulad-ts install writes a list";
    const mend = problem === undefined ? install : damaged;
    return { check, state: "fail", detail: problem ?? absent, mend };
  }
  const folders = cniBinDirs.map((folder) => join(root, folder));
  const missing = executables(list.plugins).filter((one) => !findPlugin(one, folders));
  if (missing.length > 0) {
    const detail = `${file} needs ${missing.join(", ")}, not found in ${cniBinDirs.join(", ")}`;
    const isStandard = missing.every((name) => standardPlugins.has(name));
    const mend = isStandard
      ? "apt-get install containernetworking-plugins, or install the network's add-on again"
      : "install the network's add-on again, which brings its plugins, or remove its list";
    return { check, state: "fail", detail, mend };
  }
  if (problem === undefined) return { check, state: "ok", detail: `${list.name} of ${file}` };
  return { check, state: "warn", detail: problem, mend: damaged };
}

/** @throws the system's error for a folder that this user may not read, or a file in it. */
function checkReadable(folder: string): void {
  for (const name of readdirSync(folder)) accessSync(join(folder, name), constants.R_OK);
}

const damaged = "correct or remove the file";

/** Shares of a disk that are free. A kubelet begins to evict pods at a tenth, and removes images at 15 %. */
const [warnShare, failShare] = [0.1, 0.01];

/** Checks the addresses on which the daemon serves; it waits for missing ones, except for that of plain streams. */
export function checkAddresses(node: Node, config: Config): Finding[] {
  const { metricsPort, metricsAddress, serveBlobs, streamServerAddress, streamTlsCert } = config;
  const served: [key: string, address: string][] = [
    ["metrics-address", metricsPort === 0 ? "" : metricsAddress],
    ["serve-blobs", serveBlobs === "" ? "" : splitAddress(serveBlobs).address],
    ["stream-server-address", streamServerAddress],
  ];
  const own = node.addresses();
  return served.flatMap(([key, address]): Finding[] => {
    const isThere = /^(0\.0\.0\.0|::|127\..*|::1|)$/.test(address) || own.includes(address);
    if (isThere) return [];
    const absent = `${key}: this node does not have ${address} now`;
    const mend = `if the node is not to get it, correct ${key} in daemon.json`;
    if (key === "stream-server-address" && streamTlsCert === "") {
      const detail = `${absent}; without stream-tls-cert the daemon does not start before it has`;
      return [{ check: "addresses", state: "fail", detail, mend }];
    }
    const detail = `${absent}; the daemon serves there once it has`;
    return [{ check: "addresses", state: "warn", detail, mend }];
  });
}

export async function checkDisk(node: Node, { graph }: Config): Promise<Finding> {
  let folder = graph;
  while (!existsAt(node, folder) && folder !== "/") folder = dirname(folder);
  const mend = "isulad-ts images prune, or a larger disk";
  return { check: "disk of graph", ...(await freeSpace(node, { folder, of: graph, mend })) };
}

/** Kubelets have the logs of all containers there. */
const logFolder = "/var/log/pods";

export async function checkLogDisk(node: Node): Promise<Finding[]> {
  const check = "disk of logs";
  if (!existsAt(node, logFolder)) return [];
  if (isReadOnly(join(node.root, logFolder))) {
    const detail = `${logFolder} is read-only: what containers write is dropped`;
    const mend = `mend its disk (journalctl -k), then mount -o remount,rw it`;
    return [{ check, state: "fail", detail, mend }];
  }
  const mend =
    "see what fills it (du -x), or a larger disk; while it is full, containers' output is dropped";
  return [{ check, ...(await freeSpace(node, { folder: logFolder, of: logFolder, mend })) }];
}

function isReadOnly(folder: string): boolean {
  try {
    accessSync(folder, constants.W_OK);
    return false;
  } catch (error) {
    return errnoOf(error) === "EROFS";
  }
}

async function freeSpace(
  node: Node,
  { folder, of, mend }: { folder: string; of: string; mend: string },
): Promise<Omit<Finding, "check">> {
  const { bytes, bytesFree, inodes, inodesFree } = await node.disk(join(node.root, folder));
  const shareOf = (free: number, all: number) => (all === 0 ? 1 : free / all);
  const byBytes = shareOf(bytesFree, bytes);
  const byInodes = shareOf(inodesFree, inodes);
  const percent = (share: number) => `${(100 * share).toFixed(1)} %`;
  const detail = `${percent(byBytes)} of the bytes and ${percent(byInodes)} of the inodes of ${of} are free`;
  const share = Math.min(byBytes, byInodes);
  if (share >= warnShare) return { state: "ok", detail };
  return { state: share < failShare ? "fail" : "warn", detail, mend };
}
