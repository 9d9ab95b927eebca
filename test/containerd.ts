// Starts containerd for comparisons: with the folders, the CNI network and the calls of the tests' own daemon.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { Daemon } from "./harness.ts";
import { mountTmpfs, processesOf } from "./host.ts";
import { busyboxImage } from "./image_maker.ts";
import type { Scope } from "./leaks.ts";
import type { Registry } from "./registry.ts";

/** What `buildKubernetes` must have built for it. */
export const containerdPrograms = ["containerd", "containerd-shim-runc-v2", "runc"];

/** Where its CNI plugins are, and those of a daemon that is compared with it. */
export const cniBin = ["/opt/cni/bin", "/usr/lib/cni"];

/** Configures isulad-ts with the registry, runc and CNI plugins of Containerd.run(), to compare both. */
export function sameParts(bin: string, { host }: Registry): Record<string, unknown> {
  return {
    "insecure-registries": [host],
    "cni-bin-dir": cniBin,
    runtimes: { runc: { path: join(bin, "runc") } },
    "log-level": "INFO",
  };
}

type CriSettings = {
  /** The folder of containerdPrograms. */
  bin: string;
  cniBin: string[];
  cniDir: string;
  /** The folder of hosts.toml files. */
  certsDir: string;
  /** Reference of the image that keeps a pod's namespaces. */
  pause: string;
  netnsInState?: boolean;
};

/** Returns the part of its configuration that makes it the CRI runtime of the tests. */
export function criPlugins(settings: CriSettings): string {
  const { bin, cniBin, cniDir, certsDir, pause, netnsInState = false } = settings;
  return `[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = ${netnsInState}
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ${JSON.stringify(cniBin)}
    conf_dir = "${cniDir}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "${join(bin, "runc")}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "${certsDir}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "${pause}"
`;
}

export class Containerd extends Daemon {
  readonly #bin: string;
  readonly #registry: string;
  override readonly scope: Scope;

  private constructor(bin: string, registry: string) {
    const env = { PATH: `${bin}:${process.env["PATH"]}` };
    super({ executable: join(bin, "containerd"), env, detached: true });
    this.#bin = bin;
    this.#registry = registry;
    this.scope = {
      dir: this.dir,
      kept: [
        "graph/io.containerd.grpc.v1.cri",
        "graph/io.containerd.runtime.v2.task",
        "state/io.containerd.grpc.v1.cri",
        "state/io.containerd.runtime.v2.task",
        "graph/io.containerd.snapshotter.v1.overlayfs/snapshots",
        "graph/io.containerd.content.v1.content/blobs",
      ].map((name) => join(this.dir, name)),
      leases: join(this.dir, "ipam"),
      token: this.token,
      bridge: this.bridge,
      pids: () => [this.pid].filter((pid) => pid > 0),
      netnsInDir: true,
    };
  }

  /** bin: the folder of containerdPrograms. registry: gets the image that keeps a pod's namespaces. */
  static async run(bin: string, registry: Registry): Promise<Containerd> {
    await registry.push("pause", "1", busyboxImage({ Cmd: ["sleep", "1d"] }));
    const daemon = new Containerd(bin, registry.host);
    try {
      daemon.writeConfig();
      mountTmpfs(join(daemon.dir, "state"));
      daemon.writeNetwork();
      await daemon.start();
      return daemon;
    } catch (error) {
      await daemon[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Its shims, of which each pod has one. */
  override monitors(): number[] {
    return processesOf("containerd-shim-runc-v2", { dir: this.dir, except: -1 });
  }

  /** A parent for each pod would be the caller's, to be made and removed, as a kubelet does. */
  override podConfig(more: PodSandboxConfig = {}): PodSandboxConfig {
    const config = super.podConfig(more);
    return { ...config, linux: { cgroup_parent: `/${this.token}`, ...config.linux } };
  }

  override writeConfig(): void {
    const certsDir = join(this.dir, "certs.d");
    const hosts = join(certsDir, this.#registry);
    mkdirSync(hosts, { recursive: true });
    const cri = criPlugins({
      bin: this.#bin,
      cniBin,
      cniDir: this.cniDir,
      certsDir,
      pause: `${this.#registry}/pause:1`,
      netnsInState: true,
    });
    writeFileSync(join(hosts, "hosts.toml"), `server = "http://${this.#registry}"\n`);
    const text = `version = 3
oom_score = 0
root = "${join(this.dir, "graph")}"
state = "${join(this.dir, "state")}"
[grpc]
  address = "${this.socket}"
${cri}[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.ttrpc.v1.ttrpc"]
  address = "${this.socket}.ttrpc"
`;
    writeFileSync(this.configFile, text);
  }
}
