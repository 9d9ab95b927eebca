// Starts a daemon for a test file: the built executable in a scratch folder with its own graph, state,
// socket, CNI network and images. Provides the calls that tests make on it.
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../src/base/int64.ts";
import { procMasks } from "../src/base/proc_masks.ts";
import { runtime } from "../src/proto/messages.js";
import type { ContainerConfig, ContainerStatus, PodSandboxConfig } from "../src/proto/types.ts";
import { type Client, connect } from "../src/cli/client.ts";
import { type DaemonOptions, refuseShortLimits } from "./daemon_options.ts";
import { isGuest, until } from "./expect.ts";
import { end, freeSubnet, mountTmpfs, processesOf, tellLastWords, unmountUnder } from "./host.ts";
import { busyboxImage, ociArchive, type TestImage } from "./image_maker.ts";
import { leaksSince, removeCgroups, type Scope, type Snapshot, takeSnapshot } from "./leaks.ts";
import { logText } from "./log_text.ts";

export const executable =
  process.env["ISULAD_BIN"] ?? join(import.meta.dirname, "../dist/isulad-ts");
/** The daemon's cgroup driver; a guest has one of the two. */
export const cgroupDriver = process.env["ISULAD_CGROUP_DRIVER"] ?? "cgroupfs";
export const ociRuntime = process.env["ISULAD_RUNTIME"] ?? "runc";
export const busybox = "docker.io/library/busybox:latest";

const { NamespaceMode, ContainerState } = runtime.v1;
/** Two guests at once, with writers, have taken 44 s. */
const startMsMax = isGuest ? 120_000 : 90_000;

export type Exit = { exitCode: number; reason: string; status: ContainerStatus };

/** A daemon and everything that belongs to it. Disposing of it removes all of it, by force if necessary. */
export class Daemon implements AsyncDisposable {
  readonly dir: string;
  /** Part of the names of its cgroups and its CNI network. */
  readonly token: string;
  readonly socket: string;
  readonly configFile: string;
  readonly cniDir: string;
  readonly bridge: string;
  /** The first three bytes of the pods' addresses. */
  readonly subnet: string;
  /** Replaced at each start: a channel waits a second before it reconnects. */
  client: Client;
  readonly scope: Scope;
  #options: DaemonOptions;
  #process: ChildProcess | undefined;
  #serial = 0;

  constructor(options: DaemonOptions) {
    this.#options = options;
    this.dir = mkdtempSync(join(tmpdir(), "isulad-test-"));
    this.token = basename(this.dir).replaceAll("-", "").toLowerCase();
    this.socket = join(this.dir, "isulad.sock");
    this.configFile = join(this.dir, "daemon.json");
    this.cniDir = join(this.dir, "cni");
    this.bridge = `br${this.token.slice(-8)}`;
    this.subnet = freeSubnet();
    this.client = connect(`unix://${this.socket}`);
    this.scope = {
      dir: this.dir,
      kept: ["graph/sandboxes", "graph/containers", "state"].map((name) => join(this.dir, name)),
      once: ["stdio", "tty", "runtime", `runtime/${ociRuntime}`, "monitor/shims"].map((name) =>
        join(this.dir, "state", name),
      ),
      leases: join(this.dir, "ipam"),
      token: this.token,
      bridge: this.bridge,
      pids: () => [this.pid, ...this.monitors()].filter((pid) => pid > 0),
    };
  }

  /** Valid while the daemon runs; afterwards the pid may be reused. */
  get pid(): number {
    return this.#isRunning ? this.#process!.pid! : -1;
  }

  get #isRunning(): boolean {
    const child = this.#process;
    return child !== undefined && child.exitCode === null && child.signalCode === null;
  }

  get logFile(): string {
    return join(this.dir, "daemon.log");
  }

  get log(): string {
    return existsSync(this.logFile) ? readFileSync(this.logFile, "utf8") : "";
  }

  /** The cgroup parent as a kubelet passes it, in the form of the driver. */
  get cgroupParent(): string {
    return cgroupDriver === "systemd" ? `${this.token}.slice` : `/${this.token}`;
  }

  writeConfig(more: Record<string, unknown> = {}): void {
    const config = {
      hosts: [`unix://${this.socket}`],
      graph: join(this.dir, "graph"),
      state: join(this.dir, "state"),
      pidfile: join(this.dir, "isulad.pid"),
      "log-level": "DEBUG",
      "cni-conf-dir": this.cniDir,
      "cgroup-parent": this.cgroupParent,
      "systemd-cgroup": cgroupDriver === "systemd",
      "default-runtime": ociRuntime,
      ...this.#options.config,
      ...more,
    };
    writeFileSync(this.configFile, JSON.stringify(config, null, 2));
  }

  /** Has these keys, which a reload applies, in force during a call: a limit that the call runs into, for one. */
  async configured<T>(keys: Record<string, unknown>, use: () => Promise<T>): Promise<T> {
    this.writeConfig(keys);
    await this.client.Reload({});
    try {
      return await use();
    } finally {
      this.writeConfig();
      await this.client.Reload({});
    }
  }

  writeNetwork(file = "10-test.conflist", name = this.token): void {
    mkdirSync(this.cniDir, { recursive: true });
    const ipam = {
      type: "host-local",
      dataDir: join(this.dir, "ipam"),
      ranges: [[{ subnet: `${this.subnet}.0/24` }]],
      routes: [{ dst: "0.0.0.0/0" }],
    };
    const bridge = { type: "bridge", bridge: this.bridge, isGateway: true, ipMasq: true, ipam };
    const plugins = [bridge, { type: "portmap", capabilities: { portMappings: true } }];
    writeFileSync(join(this.cniDir, file), JSON.stringify({ cniVersion: "1.0.0", name, plugins }));
  }

  /** Starts the daemon with these failpoints and waits until it answers. @throws Error with its log. */
  async start(failpoints = ""): Promise<void> {
    const log = openSync(this.logFile, "a");
    const { executable: program = executable, flags = [], env: more, detached } = this.#options;
    const armed = failpoints === "" ? {} : { ISULAD_FAILPOINTS: failpoints };
    const argv = ["--config", this.configFile, ...flags];
    const env = { ...process.env, ...more, ...armed };
    const child = spawn(program, argv, { stdio: ["ignore", log, log], cwd: "/", env, detached });
    closeSync(log);
    this.#process = child;
    const ended = new Promise<never>((_, reject) => {
      child.once("error", reject);
      child.once("exit", (code, signal) =>
        reject(new Error(`the daemon ended (${code ?? signal}):\n${this.log.slice(-4000)}`)),
      );
    });
    ended.catch(() => {});
    await Promise.race([this.#answers(child), ended]);
  }

  async #answers(child: ChildProcess): Promise<void> {
    const end = Date.now() + startMsMax;
    while (this.#process === child && this.#isRunning) {
      this.client.close();
      this.client = connect(`unix://${this.socket}`);
      try {
        await this.client.Version({}, { timeoutMs: 5000 });
        return;
      } catch (cause) {
        if (Date.now() > end) {
          const log = this.log.slice(-4000);
          throw new Error(`the daemon does not answer:\n${log}`, { cause });
        }
      }
      await sleep(20);
    }
  }

  /** Ends the daemon; containers and monitor stay. Returns the duration. */
  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<number> {
    const child = this.#process;
    if (child === undefined || !this.#isRunning) return 0;
    const start = performance.now();
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    const late = setTimeout(() => child.kill("SIGKILL"), 30_000); // twice its own deadline
    await gone;
    clearTimeout(late);
    return performance.now() - start;
  }

  async restart(signal: NodeJS.Signals = "SIGTERM", failpoints = ""): Promise<void> {
    await this.stop(signal);
    await this.start(failpoints);
  }

  /** Returns the monitors of this folder; helpers of the daemon, such as those that unpack layers, are none. */
  monitors(): number[] {
    return processesOf(executable, { dir: this.dir, except: this.pid, argument: "monitor" });
  }

  snapshot(): Snapshot {
    return takeSnapshot(this.scope);
  }

  leaksSince(before: Snapshot, withinMs?: number): Promise<string[]> {
    return leaksSince(before, this.scope, withinMs);
  }

  async loadImage(image: TestImage, name: string): Promise<string> {
    const file = join(this.dir, `image-${++this.#serial}.tar`);
    writeFileSync(file, ociArchive([{ image, name }]));
    const steps = await Array.fromAsync(this.client.Load({ path: file, name: "" }));
    rmSync(file);
    return steps.at(-1)!.images[0]!;
  }

  podConfig(more: PodSandboxConfig = {}): PodSandboxConfig {
    const name = more.metadata?.name ?? `pod-${++this.#serial}`;
    return {
      hostname: name,
      log_directory: join(this.dir, "logs", name),
      ...more,
      metadata: { name, uid: `uid-${name}`, namespace: "test", attempt: 0, ...more.metadata },
      linux: {
        ...more.linux,
        security_context: {
          namespace_options: { network: NamespaceMode.POD, pid: NamespaceMode.CONTAINER },
          ...more.linux?.security_context,
        },
      },
    };
  }

  /** Runs a pod in the host's network, which is the quickest: it needs no CNI. */
  hostPodConfig(more: PodSandboxConfig = {}): PodSandboxConfig {
    const namespace_options = { network: NamespaceMode.NODE, pid: NamespaceMode.CONTAINER };
    const config = this.podConfig({ ...more, linux: { security_context: { namespace_options } } });
    return { ...config, hostname: "" };
  }

  async runPod(config: PodSandboxConfig, runtimeHandler = ""): Promise<string> {
    const request = { config, runtime_handler: runtimeHandler };
    return (await this.client.RunPodSandbox(request)).pod_sandbox_id;
  }

  /** Creates a container; `command` runs in a shell when it is one string. */
  async create(
    podId: string,
    pod: PodSandboxConfig,
    command: string | string[],
    more: ContainerConfig = {},
  ): Promise<string> {
    const name = more.metadata?.name ?? `c-${++this.#serial}`;
    const config: ContainerConfig = {
      image: { image: busybox, user_specified_image: busybox },
      command: typeof command === "string" ? ["sh", "-c", command] : command,
      log_path: `${name}.log`,
      ...more,
      metadata: { name, attempt: 0, ...more.metadata },
      linux: {
        ...more.linux,
        security_context: {
          namespace_options: pod.linux?.security_context?.namespace_options,
          ...procMasks(),
          ...more.linux?.security_context,
        },
      },
    };
    const request = { pod_sandbox_id: podId, config, sandbox_config: pod };
    return (await this.client.CreateContainer(request)).container_id;
  }

  async run(
    podId: string,
    pod: PodSandboxConfig,
    command: string | string[],
    more: ContainerConfig = {},
  ): Promise<string> {
    const id = await this.create(podId, pod, command, more);
    await this.client.StartContainer({ container_id: id });
    return id;
  }

  async status(containerId: string): Promise<runtime.v1.ContainerStatus> {
    const { status } = await this.client.ContainerStatus({ container_id: containerId });
    return status as runtime.v1.ContainerStatus;
  }

  /** Returns the pid of a running container's first process. */
  async pidOf(containerId: string): Promise<number> {
    const request = { container_id: containerId, verbose: true };
    const { info } = await this.client.ContainerStatus(request);
    const { pid } = JSON.parse(info["info"]!) as { pid: number };
    if (!(pid > 0)) throw new Error(`container ${containerId} does not run: ${info["info"]}`);
    return pid;
  }

  async exited(containerId: string, withinMs = isGuest ? 100_000 : 60_000): Promise<Exit> {
    const end = Date.now() + withinMs;
    for (;;) {
      const status = await this.status(containerId);
      if (status.state === ContainerState.CONTAINER_EXITED) {
        return { exitCode: status.exit_code, reason: status.reason, status };
      }
      if (Date.now() > end) throw new Error(`container ${containerId} is still ${status.state}`);
      await sleep(20);
    }
  }

  /** Runs ExecSync; returns the exit code and both streams as text. */
  async exec(containerId: string, command: string | string[], timeoutS = 60) {
    const cmd = typeof command === "string" ? ["sh", "-c", command] : command;
    const timeout = toLong(timeoutS);
    const response = await this.client.ExecSync({ container_id: containerId, cmd, timeout });
    return {
      exitCode: response.exit_code,
      stdout: Buffer.from(response.stdout).toString(),
      stderr: Buffer.from(response.stderr).toString(),
    };
  }

  /** Waits until the container's log has a text, for example one that follows a shell's traps. */
  async logged(containerId: string, text: string): Promise<void> {
    const { log_path } = await this.status(containerId);
    const holds = () => existsSync(log_path) && readFileSync(log_path, "utf8").includes(text);
    await until(`${log_path} has "${text}"`, holds);
  }

  /** Runs a command in a new container and returns its output without the log format. */
  async output(podId: string, pod: PodSandboxConfig, command: string, more: ContainerConfig = {}) {
    const id = await this.run(podId, pod, command, more);
    const exit = await this.exited(id);
    const { log_path } = exit.status;
    return { ...exit, id, text: logText(readFileSync(log_path!, "utf8")) };
  }

  async removePod(podId: string): Promise<void> {
    await this.client.StopPodSandbox({ pod_sandbox_id: podId });
    await this.client.RemovePodSandbox({ pod_sandbox_id: podId });
  }

  async removeAllPods(): Promise<void> {
    const { items } = await this.client.ListPodSandbox({});
    await Promise.all(items.map((pod) => this.removePod(pod.id!)));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isRunning) await this.removeAllPods().catch(() => {});
    this.client.close();
    const monitors = this.monitors();
    await this.stop();
    for (const pid of monitors) end(pid);
    tellLastWords([this.logFile, join(this.dir, "state/monitor.log")]);
    for (const thing of this.snapshot().things.process) end(Number.parseInt(thing));
    if (process.env["ISULAD_KEEP"] === "1") {
      console.error(`kept: ${this.dir}`);
      return;
    }
    unmountUnder(this.dir);
    spawnSync("ip", ["link", "del", this.bridge]);
    removeCgroups(this.token);
    rmSync(this.dir, { recursive: true, force: true });
  }
}

/** Starts a daemon with a network and busybox, unless the options say otherwise. */
export async function startDaemon(options: DaemonOptions = {}): Promise<Daemon> {
  if (process.getuid!() !== 0) throw new Error("this test starts containers: run it as root");
  if (!existsSync(executable)) throw new Error(`${executable} does not exist: bun run build`);
  refuseShortLimits(options.config);
  const daemon = new Daemon(options);
  try {
    daemon.writeConfig();
    mkdirSync(daemon.cniDir);
    mountTmpfs(join(daemon.dir, "state"));
    if (options.network !== false) daemon.writeNetwork();
    await daemon.start();
    if (options.image !== false) await daemon.loadImage(busyboxImage(), busybox);
    return daemon;
  } catch (error) {
    await daemon[Symbol.asyncDispose]();
    throw error;
  }
}
