// Runs a real kubelet as a node of its own: in a network namespace, with static pods, without an apiserver.
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { existsSync, mkdirSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
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
  flags?: string[];
};

export class Kubelet implements AsyncDisposable {
  readonly #manifests: string;
  readonly #logFile: string;
  readonly #child: ChildProcess;

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
      crashLoopBackOff: { maxContainerRestartPeriod: "2s" },
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
      ...node.config,
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
    const words = [...entered, "sh", "-c", script, "sh", program, ...flags];
    const log = openSync(this.#logFile, "a");
    this.#child = spawn("nsenter", words, { stdio: ["ignore", log, log], cwd: "/" });
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

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.runs) return;
    const gone = new Promise((resolve) => this.#child.once("exit", resolve));
    this.#child.kill("SIGKILL");
    await gone;
  }
}

/**
 * Returns the kubelet that KUBELET names, or builds one in a quarter of an hour from the Go module proxy: a module
 * that requires Kubernetes and its staging modules.
 */
export function buildKubelet(cache: string): string {
  const given = process.env["KUBELET"];
  if (given !== undefined) return given;
  const program = join(cache, "kubelet");
  if (existsSync(program)) return program;
  console.log("building a kubelet");
  const script = `
    set -euo pipefail
    version=v1.36.3; mkdir -p kubelet-module; cd kubelet-module
    mod=$(go mod download -json k8s.io/kubernetes@$version | sed -n 's/.*"GoMod": "\\(.*\\)".*/\\1/p')
    { printf 'module kubelet\\n\\ngo 1.26.0\\n\\nrequire k8s.io/kubernetes %s\\nreplace (\\n' $version
      sed -n 's|^\\s*\\(k8s.io/[a-z0-9-]*\\) v0[.]0[.]0\\( //.*\\)*$|  \\1 => \\1 '"\${version/v1/v0}|p" "$mod" | sort -u
      echo ')'; } >go.mod
    CGO_ENABLED=0 GOFLAGS='-mod=mod -buildvcs=false' nice go build -ldflags='-s -w' -o ../kubelet.new k8s.io/kubernetes/cmd/kubelet
    mv ../kubelet.new ../kubelet`;
  const done = spawnSync("bash", ["-c", script], { cwd: cache, stdio: "inherit" });
  if (done.status !== 0) throw new Error("the kubelet could not be built");
  return program;
}
