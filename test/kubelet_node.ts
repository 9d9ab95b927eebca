// Runs a real kubelet as a node of its own: in a network namespace, with static pods, without an apiserver.
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { closeSync, mkdirSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Manifest } from "./kubelet_pods.ts";

const routes = [
  "link set lo up",
  "link add node0 type veth peer name node1",
  "link set node1 up",
  "addr add 10.250.0.1/24 dev node0",
  "link set node0 up",
  "route add default via 10.250.0.1",
];

/** Version of the kubelet that is built, or that KUBELET names. */
export const version = process.env["KUBELET_VERSION"] ?? "1.36.3";
const minor = Number(version.split(".")[1]);
/** A kubelet restarts a crashed container within 2 s where it can be configured, else after up to 5 min. */
export const hasShortBackOff = minor >= 32;
const backOff = hasShortBackOff ? { crashLoopBackOff: { maxContainerRestartPeriod: "2s" } } : {};
const backOffGates = hasShortBackOff ? { KubeletCrashLoopBackOffMax: true } : {};

/** A network namespace with a default route, by which a kubelet finds its address. */
export class Netns implements Disposable {
  readonly name: string;

  constructor(name: string) {
    this.name = name;
    must("ip", ["netns", "add", name]);
    try {
      for (const words of routes) must("ip", ["-n", name, ...words.split(" ")]);
    } catch (error) {
      this[Symbol.dispose]();
      throw error;
    }
  }

  /** Wraps a program to run in the namespace under the same file name and pid. */
  wrap(program: string, folder: string): string {
    const file = join(folder, program.slice(program.lastIndexOf("/") + 1));
    const script = `#!/bin/sh\nexec nsenter --net=/run/netns/${this.name} ${program} "$@"\n`;
    writeFileSync(file, script, { mode: 0o755 });
    return file;
  }

  [Symbol.dispose](): void {
    spawnSync("ip", ["netns", "del", this.name]);
  }
}

function must(program: string, words: string[]): string {
  const { status, stdout, stderr } = spawnSync(program, words, { encoding: "utf8" });
  if (status !== 0) throw new Error(`${program} ${words.join(" ")}: ${stderr}`);
  return stdout;
}

/** Where a kubelet runs: dir is its scratch folder, cgroupParent its cgroup root. */
type Node = {
  dir: string;
  cgroupParent: string;
  /** The socket of CRI. */
  endpoint: string;
  netns: Netns;
  /** Additional fields of KubeletConfiguration. */
  config?: object;
  featureGates?: Record<string, boolean>;
  flags?: string[];
};

export class Kubelet implements AsyncDisposable {
  readonly #manifests: string;
  readonly #logFile: string;
  readonly #argv: string[];
  #child: ChildProcess;

  constructor(program: string, node: Node) {
    const at = (name: string) => join(node.dir, "kubelet", name);
    this.#manifests = at("manifests");
    this.#logFile = at("log");
    for (const folder of ["", "manifests", "root", "pki", "logs"]) mkdirSync(at(folder));
    const config = {
      apiVersion: "kubelet.config.k8s.io/v1beta1",
      kind: "KubeletConfiguration",
      containerRuntimeEndpoint: `unix://${node.endpoint}`,
      staticPodPath: this.#manifests,
      fileCheckFrequency: "1s",
      syncFrequency: "10s",
      authentication: { anonymous: { enabled: true }, webhook: { enabled: false } },
      authorization: { mode: "AlwaysAllow" },
      podLogsDir: at("logs"),
      volumePluginDir: at("plugins"),
      failCgroupV1: false,
      failSwapOn: false,
      cgroupDriver: "cgroupfs",
      cgroupRoot: node.cgroupParent,
      enforceNodeAllocatable: [],
      evictionHard: {
        "memory.available": "1Mi",
        "nodefs.available": "0%",
        "imagefs.available": "0%",
      },
      imageGCHighThresholdPercent: 100,
      oomScoreAdj: 0,
      ...backOff,
      ...node.config,
      featureGates: { ...backOffGates, ...node.featureGates },
    };
    writeFileSync(at("config.json"), JSON.stringify(config, null, 2));
    // Its fixed folders, /var/lib/kubelet and /var/log/containers, are private; PID 1 is never moved.
    const script = `
      mkdir -p /var/lib/kubelet && mount -t tmpfs kubelet /var/lib/kubelet && mount -t tmpfs kubelet /var/log &&
      exec "$@"`;
    const entered = `--net=/run/netns/${node.netns.name} unshare --mount --propagation slave`.split(
      " ",
    );
    const flags = [
      `--config=${at("config.json")}`,
      `--root-dir=${at("root")}`,
      `--cert-dir=${at("pki")}`,
      "--hostname-override=node1",
      "--node-ip=10.250.0.1",
      "--system-cgroups=",
      "--kubelet-cgroups=",
      "--runtime-cgroups=",
      "--v=2",
      ...(node.flags ?? []),
    ];
    this.#argv = [...entered, "sh", "-c", script, "sh", program, ...flags];
    this.#child = this.#start();
  }

  #start(): ChildProcess {
    const log = openSync(this.#logFile, "a");
    const child = spawn("nsenter", this.#argv, { stdio: ["ignore", log, log], cwd: "/" });
    closeSync(log);
    return child;
  }

  /** Kills the kubelet and starts it again with the same data. */
  async restart(): Promise<void> {
    await this.#kill();
    this.#child = this.#start();
  }

  get runs(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null;
  }

  get lines(): string[] {
    return readFileSync(this.#logFile, "utf8").split("\n");
  }

  add({ name, json }: Manifest): void {
    writeFileSync(join(this.#manifests, `${name}.json`), json);
  }

  remove({ name }: Manifest): void {
    rmSync(join(this.#manifests, `${name}.json`));
  }

  async #kill(): Promise<void> {
    if (!this.runs) return;
    const gone = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.kill("SIGKILL");
    await gone;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#kill();
  }
}

/** Returns the folder of Kubernetes' programs of KUBELET_VERSION, of which it builds those that are missing. */
export function buildKubernetes(cache: string, names: string[]): string {
  const folder = join(cache, `kubernetes-${version}`);
  const program = join(import.meta.dirname, "kubernetes_programs");
  const done = spawnSync(program, [folder, version, ...names], { stdio: "inherit" });
  if (done.status !== 0) throw new Error(`${names.join(", ")} could not be built`);
  return folder;
}

/** Returns the kubelet that KUBELET names, or builds one in a quarter of an hour. */
export function buildKubelet(cache: string): string {
  return process.env["KUBELET"] ?? join(buildKubernetes(cache, ["kubelet"]), "kubelet");
}
