// Starts nodes of the test cluster: a machine with a container runtime, a kubelet and kube-proxy, as they are
// configured on a real node.
import { copyFileSync, mkdirSync, renameSync, rmSync } from "node:fs";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, connect } from "../src/cli/client.ts";
import type { ControlPlane } from "./cluster_control.ts";
import { type Component, labAddress, Machine } from "./cluster_machine.ts";
import { criPlugins } from "./containerd.ts";
import { makeCgroups } from "./host.ts";
import { removeCgroups } from "./leaks.ts";

export type RuntimeName = "isulad-ts" | "containerd";
export const podNetworks = "10.244.0.0/16";

type Parts = {
  /** The folder of Kubernetes' programs, containerd, runc and the CNI plugins. */
  bin: string;
  /** The executable under test. */
  executable: string;
  control: ControlPlane;
  /** "ADDRESS:PORT" of the registry. */
  registry: string;
  podsMax: number;
};

export class ClusterNode {
  readonly name: string;
  readonly runtime: RuntimeName;
  readonly machine: Machine;
  /** Its cgroups, below those of the host. */
  readonly token: string;
  readonly #parts: Parts;
  daemon!: Component;
  kubelet!: Component;
  proxy!: Component;

  constructor(runtime: RuntimeName, index: number, dir: string, parts: Parts) {
    this.name = `node${index}`;
    this.runtime = runtime;
    this.machine = new Machine(this.name, index, join(dir, this.name));
    this.token = `${basename(dir)}${this.name}`.replaceAll("-", "").toLowerCase();
    this.#parts = parts;
    const { control } = parts;
    const subject = `/O=system:nodes/CN=system:node:${this.name}`;
    control.identity(this.name, subject, `IP:${this.machine.address},DNS:${this.name}`);
    mkdirSync(join(this.machine.dir, "bin"), { recursive: true });
    copyFileSync(parts.executable, this.executable);
  }

  /** Its own copy, which an upgrade replaces. */
  get executable(): string {
    return join(this.machine.dir, "bin/isulad-ts");
  }

  get socket(): string {
    return this.runtime === "containerd" ? "/run/containerd/containerd.sock" : "/run/isulad.sock";
  }

  /** A client of its runtime; the caller closes it. */
  client(): Client {
    return connect(`unix://${this.machine.path(this.socket)}`);
  }

  /** Boots the machine and starts everything. routes: the other nodes. */
  async boot(routes: Machine[]): Promise<void> {
    await this.machine.boot(routes);
    makeCgroups([this.token]);
    this.#configure();
    await this.startDaemon();
    await this.startKubelet();
    await this.startProxy();
  }

  /** Loses power: all processes end at once, and with them what a reboot removes: /run, mounts, cgroups. */
  async cut(): Promise<void> {
    await this.machine.cut();
    removeCgroups(this.token);
  }

  #configure(): void {
    const { registry, control } = this.#parts;
    const network = {
      cniVersion: "1.0.0",
      name: this.token,
      plugins: [
        {
          type: "bridge",
          bridge: "cni0",
          isGateway: true,
          hairpinMode: true,
          ipam: {
            type: "host-local",
            ranges: [[{ subnet: this.machine.podNetwork }]],
            routes: [{ dst: "0.0.0.0/0" }],
          },
        },
        { type: "portmap", capabilities: { portMappings: true } },
      ],
    };
    const { machine } = this;
    machine.write("/etc/cni/net.d/10-lab.conflist", JSON.stringify(network));
    machine.write("/etc/lab-resolv.conf", `nameserver ${labAddress}\n`);
    machine.write("/etc/isulad/daemon.json", JSON.stringify(this.#daemonConfig(registry), null, 2));
    machine.write("/etc/containerd/config.toml", this.#containerdConfig(registry));
    const hosts = `server = "http://${registry}"\n`;
    machine.write(`/etc/containerd/certs.d/${registry}/hosts.toml`, hosts);
    machine.write("/etc/kubelet.json", JSON.stringify(this.#kubeletConfig(), null, 2));
    const proxy = {
      apiVersion: "kubeproxy.config.k8s.io/v1alpha1",
      kind: "KubeProxyConfiguration",
      mode: "iptables",
      clusterCIDR: podNetworks,
      detectLocalMode: "ClusterCIDR",
      hostnameOverride: this.name,
      // Without CAP_SYS_RESOURCE, and in a network namespace whose limit belongs to the host.
      oomScoreAdj: 0,
      conntrack: { maxPerCore: 0, min: 0 },
      clientConnection: { kubeconfig: control.kubeconfig("kube-proxy") },
    };
    machine.write("/etc/kube-proxy.json", JSON.stringify(proxy));
  }

  #daemonConfig(registry: string): object {
    return {
      hosts: [`unix://${this.socket}`],
      graph: "/var/lib/isulad",
      state: "/run/isulad",
      pidfile: "/run/isulad.pid",
      "default-runtime": "runc",
      runtimes: { runc: { path: join(this.#parts.bin, "runc") } },
      "insecure-registries": [registry],
      "cni-bin-dir": this.#parts.bin,
      "enable-pod-events": true,
      "nri-support": true,
      "restrict-oom-score-adj": true,
      // The path that cAdvisor tries by itself; without it, metrics lack the names of containers.
      "containerd-socket": "/run/containerd/containerd.sock",
    };
  }

  #containerdConfig(registry: string): string {
    const { bin } = this.#parts;
    const cri = criPlugins({
      bin,
      cniBin: [bin],
      cniDir: "/etc/cni/net.d",
      certsDir: "/etc/containerd/certs.d",
      pause: `${registry}/pause:1`,
    });
    return `version = 3\noom_score = 0\n${cri}`;
  }

  #kubeletConfig(): object {
    const { control, podsMax } = this.#parts;
    const free = { "memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%" };
    return {
      apiVersion: "kubelet.config.k8s.io/v1beta1",
      kind: "KubeletConfiguration",
      containerRuntimeEndpoint: `unix://${this.socket}`,
      authentication: {
        anonymous: { enabled: false },
        webhook: { enabled: true },
        x509: { clientCAFile: control.authorityFile },
      },
      authorization: { mode: "Webhook" },
      tlsCertFile: join(control.pki, `${this.name}.pem`),
      tlsPrivateKeyFile: join(control.pki, `${this.name}.key`),
      resolvConf: "/etc/lab-resolv.conf",
      failCgroupV1: false,
      failSwapOn: false,
      cgroupDriver: "cgroupfs",
      cgroupRoot: `/${this.token}`,
      enforceNodeAllocatable: [],
      evictionHard: free,
      imageGCHighThresholdPercent: 100,
      oomScoreAdj: 0,
      maxPods: podsMax,
      // The node's network knows no name server, and no pod of the cluster asks one.
      clusterDNS: [labAddress],
      clusterDomain: "cluster.local",
      crashLoopBackOff: { maxContainerRestartPeriod: "10s" },
      featureGates: { KubeletCrashLoopBackOffMax: true },
    };
  }

  async startDaemon(): Promise<void> {
    const { bin } = this.#parts;
    // containerd finds its shim by PATH.
    const argv =
      this.runtime === "containerd"
        ? ["env", `PATH=${bin}:/usr/sbin:/usr/bin:/sbin:/bin`, join(bin, "containerd")]
        : [this.executable, "--config", "/etc/isulad/daemon.json"];
    this.daemon = await this.machine.start(this.runtime, argv);
    const end = Date.now() + 60_000;
    for (;;) {
      using client = this.client();
      const error = await client.Version({}, { timeoutMs: 2000 }).then(
        () => undefined,
        (error: unknown) => error as Error,
      );
      if (error === undefined) return;
      if (!this.daemon.runs || Date.now() > end) {
        const log = this.machine.log(this.runtime).slice(-3000);
        throw new Error(`${this.runtime} of ${this.name} does not answer:\n${log}`, {
          cause: error,
        });
      }
      await sleep(100);
    }
  }

  async startKubelet(): Promise<void> {
    const { bin, control } = this.#parts;
    this.kubelet = await this.machine.start("kubelet", [
      join(bin, "kubelet"),
      "--config=/etc/kubelet.json",
      `--kubeconfig=${control.kubeconfig(this.name)}`,
      `--node-ip=${this.machine.address}`,
      `--node-labels=runtime=${this.runtime}`,
      "--v=2",
    ]);
  }

  async startProxy(): Promise<void> {
    const { bin } = this.#parts;
    const argv = [join(bin, "kube-proxy"), "--config=/etc/kube-proxy.json"];
    this.proxy = await this.machine.start("kube-proxy", argv);
  }

  /** Puts another build in place of its executable, as an installation does. */
  replaceExecutable(file: string): void {
    copyFileSync(file, `${this.executable}.new`);
    renameSync(`${this.executable}.new`, this.executable);
  }

  removeData(): void {
    rmSync(this.machine.dir, { recursive: true, force: true });
  }
}
