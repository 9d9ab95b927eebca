// Sets up the node of test/stress.ts: a daemon with its own copy of the executable (which can be replaced), a
// registry, servers in a pod's network, and a runtime and a CNI plugin that sleep as long as a file says.
import { type ChildProcess, spawn } from "node:child_process";
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import process from "node:process";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { busybox, Daemon, executable, ociRuntime } from "./harness.ts";
import { freeSubnet, mountTmpfs, unmountUnder } from "./host.ts";
import { busyboxImage } from "./image_maker.ts";
import { type Registry, startRegistry } from "./registry.ts";

/** Steps that can be slowed down: a verb of the runtime, or the CNI plugin. */
export type Slow = "create" | "start" | "delete" | "exec" | "cni";
export type Pod = { id: string; config: PodSandboxConfig };

export const slowHandler = "slow";
/** Port of the pod's echo server (test/cri/pod_servers.ts). */
export const echoPort = 8001;
const images = 3;

export class StressNode implements AsyncDisposable {
  readonly daemon: Daemon;
  readonly folder: string;
  readonly registry: Registry;
  #servers: ChildProcess | undefined;
  #builds = 0;

  private constructor(folder: string, registry: Registry) {
    this.folder = folder;
    this.registry = registry;
    const runtimes = {
      [slowHandler]: { path: join(folder, "slow-runtime"), "cni-conf-dir": join(folder, "cni") },
    };
    this.daemon = new Daemon({
      executable: this.#program,
      config: {
        runtimes,
        "enable-pod-events": true,
        "log-level": "INFO",
        "insecure-registries": [registry.host],
        "cni-bin-dir": [join(folder, "plugins"), "/opt/cni/bin", "/usr/lib/cni"],
      },
    });
  }

  static async open(): Promise<StressNode> {
    const registry = await startRegistry();
    const node = new StressNode(mkdtempSync(join(tmpdir(), "isulad-stress-")), registry);
    try {
      await node.#start();
      return node;
    } catch (error) {
      await node[Symbol.asyncDispose]();
      throw error;
    }
  }

  async #start(): Promise<void> {
    const { daemon, registry } = this;
    for (const name of ["bin", "cni", "plugins"]) mkdirSync(join(this.folder, name));
    this.install();
    this.#writeSlowPrograms();
    mkdirSync(daemon.cniDir);
    mountTmpfs(join(daemon.dir, "state"));
    daemon.writeConfig();
    daemon.writeNetwork();
    await daemon.start();
    await daemon.loadImage(busyboxImage(), busybox);
    for (let index = 0; index < images; index++) {
      const extra = { name: `extra-${index}`, data: Buffer.alloc(1 << 20, index + 1) };
      await registry.push(`image-${index}`, "1", busyboxImage({}, [extra]));
    }
  }

  image(index: number): string {
    return `${this.registry.host}/image-${index % images}:1`;
  }

  get #program(): string {
    return join(this.folder, "bin", basename(executable));
  }

  /** Replaces the executable by another build: the same bytes with another mtime. */
  install(): void {
    const next = `${this.#program}.next`;
    copyFileSync(executable, next);
    const seconds = 1_800_000_000 + ++this.#builds;
    utimesSync(next, seconds, seconds);
    renameSync(next, this.#program);
  }

  /** True when a process runs the build that was installed last. */
  isCurrent(pid: number): boolean {
    return readlinkSync(`/proc/${pid}/exe`) === this.#program;
  }

  /** Sets the time that a step sleeps; "held": until it is set again. */
  sleep(what: Slow, seconds: number | "held"): void {
    writeFileSync(join(this.folder, `sleep-${what}.new`), `${seconds}\n`);
    renameSync(join(this.folder, `sleep-${what}.new`), join(this.folder, `sleep-${what}`));
  }

  #writeSlowPrograms(): void {
    for (const what of ["create", "start", "delete", "exec", "cni"] as const) this.sleep(what, 0);
    const wait = `wait() {
  while read how < ${join(this.folder, "sleep-")}$1 && [ $how = held ]; do sleep 0.1; done
  sleep $how
}`;
    const runtime = `#!/bin/sh
${wait}
for word; do case $word in create|start|delete|exec) wait $word; break;; esac; done
exec ${ociRuntime} "$@"
`;
    const plugin = `#!/bin/sh
${wait}
wait cni
for folder in /opt/cni/bin /usr/lib/cni; do
  [ -x $folder/ptp ] && exec $folder/ptp
done
`;
    const programs = { "slow-runtime": runtime, "plugins/slow-ptp": plugin };
    for (const [name, text] of Object.entries(programs)) {
      writeFileSync(join(this.folder, name), text);
      chmodSync(join(this.folder, name), 0o755);
    }
    const ipam = {
      type: "host-local",
      dataDir: this.daemon.scope.leases,
      ranges: [[{ subnet: `${freeSubnet()}.0/24` }]],
    };
    const name = `${this.daemon.token}-slow`;
    const list = { cniVersion: "1.0.0", name, plugins: [{ type: "slow-ptp", ipam }] };
    writeFileSync(join(this.folder, "cni/10-slow.conflist"), JSON.stringify(list));
  }

  /** Starts servers in a pod's network. */
  async serve({ id }: Pod): Promise<void> {
    this.#servers = await startPodServers(id);
  }

  stopServing(): void {
    this.#servers?.kill("SIGKILL");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.stopServing();
    await this.daemon[Symbol.asyncDispose]();
    await this.registry[Symbol.asyncDispose]();
    unmountUnder(this.folder);
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** Starts the servers of test/cri/pod_servers.ts in the network of a pod. */
export async function startPodServers(podId: string): Promise<ChildProcess> {
  const name = readdirSync("/run/netns").find((one) => one.endsWith(podId.slice(0, 32)))!;
  const script = join(import.meta.dirname, "cri/pod_servers.ts");
  const argv = [`--net=/run/netns/${name}`, "--", process.execPath, script];
  const servers = spawn("nsenter", argv, { stdio: ["pipe", "pipe", "inherit"] });
  await new Promise((resolve) => servers.stdout.once("data", resolve));
  return servers;
}

/** Processes in a container's cgroup, without the runtime's. */
export function programsOf(containerId: string): number[] {
  return processes().filter((pid) => {
    const command = textOf(pid, "cmdline");
    const isRuntime =
      /^(\S*\/)?(runc|crun)\b/.test(command) || textOf(pid, "comm").startsWith("runc:");
    return command !== "" && !isRuntime && textOf(pid, "cgroup").includes(containerId);
  });
}

/** Running calls of the OCI runtime for a container. */
export function runtimeCallsOf(containerId: string): number[] {
  return processes().filter((pid) => textOf(pid, "cmdline").includes(containerId));
}

function processes(): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number);
}

function textOf(pid: number, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, "utf8");
  } catch {
    return ""; // It ended meanwhile.
  }
}
