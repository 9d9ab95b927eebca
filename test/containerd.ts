// Starts containerd for comparisons: with the folders, the CNI network and the calls of the tests' own daemon.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { Daemon } from "./harness.ts";
import { mountTmpfs, processesOf } from "./host.ts";
import type { Scope } from "./leaks.ts";

/** What `buildKubernetes` must have built for it. */
export const containerdPrograms = ["containerd", "containerd-shim-runc-v2", "runc"];

type Options = {
  /** The folder of containerdPrograms. */
  bin: string;
  cniBin: string[];
  /** Reference of the image that keeps a pod's namespaces. */
  pause: string;
  /** "ADDRESS:PORT" of a registry without TLS. */
  registry: string;
};

export class Containerd extends Daemon {
  readonly #peer: Options;
  override readonly scope: Scope;

  private constructor(peer: Options) {
    const env = { PATH: `${peer.bin}:${process.env["PATH"]}` };
    super({ executable: join(peer.bin, "containerd"), env, detached: true });
    this.#peer = peer;
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
    };
  }

  static async run(peer: Options): Promise<Containerd> {
    const daemon = new Containerd(peer);
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
    const { bin, cniBin, pause, registry } = this.#peer;
    const hosts = join(this.dir, "certs.d", registry);
    mkdirSync(hosts, { recursive: true });
    writeFileSync(join(hosts, "hosts.toml"), `server = "http://${registry}"\n`);
    const text = `version = 3
oom_score = 0
root = "${join(this.dir, "graph")}"
state = "${join(this.dir, "state")}"
[grpc]
  address = "${this.socket}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ${JSON.stringify(cniBin)}
    conf_dir = "${this.cniDir}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "${join(bin, "runc")}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "${join(this.dir, "certs.d")}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "${pause}"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.ttrpc.v1.ttrpc"]
  address = "${this.socket}.ttrpc"
`;
    writeFileSync(this.configFile, text);
  }
}
