// Starts machines for the test cluster: each is a set of namespaces (processes, mounts, network, host name) whose
// first process is a shell, with folders of its own in place of /run, /etc and /var.
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  writeFileSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { removeCgroups } from "./leaks.ts";

/** The lab's network; each machine has an address in it, and each node a network for its pods. */
export const bridge = "lab0";
export const labAddress = "10.240.0.1";
export const podNetworkOf = (index: number) => `10.244.${index}.0/24`;
const addressOf = (index: number) => `10.240.0.${10 + index}`;

/**
 * Returns the hardware address for an address in the lab's network. The kernel would choose another at each boot, and
 * a bridge takes that of one of its ports; neighbours that know the one before send to it until they ask again.
 */
export function hardwareAddressOf(address: string): string {
  const bytes = address.split(".").map((byte) => Number(byte).toString(16).padStart(2, "0"));
  return `02:00:${bytes.join(":")}`; // 02: assigned by the network's administrator
}

/** Real folders: an overlay cannot be the upper layer of another, and a tmpfs would count as memory. */
const folders = [
  "var/lib/isulad",
  "var/lib/containerd",
  "var/lib/kubelet",
  "var/lib/cni",
  "var/log",
];
/** cgroup v1's controller of processor time. */
const processors = "/sys/fs/cgroup/cpu";
/** Returns the parent of the cgroups of a machine's services; dir: its folder. */
export const servicesOf = (dir: string) =>
  `${basename(dirname(dir))}${basename(dir)}services`.replaceAll("-", "").toLowerCase();
const bootId = "/proc/sys/kernel/random/boot_id";

/** Runs as the first process of a machine: $1 is its name, $2 its folder. */
const init = `
set -e
hostname "$1"
for name in etc var; do
  mkdir -p "$2/$name.upper" "$2/$name.work"
  mount -t overlay -o "lowerdir=/$name,upperdir=$2/$name.upper,workdir=$2/$name.work" overlay "/$name"
done
for name in ${folders.join(" ")}; do
  mkdir -p "$2/$name" "/$name"
  mount --bind "$2/$name" "/$name"
done
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lock /run/cgroups
mount --rbind /sys/fs/cgroup /run/cgroups
mount -t sysfs sysfs /sys
mount --rbind /run/cgroups /sys/fs/cgroup
umount -l /run/cgroups
cat /proc/sys/kernel/random/uuid >/run/boot_id
mount --bind /run/boot_id ${bootId}
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link set lo up
mount --make-rshared /
echo ready
sleep infinity &
wait
`;

export function must(program: string, words: string[], input = ""): string {
  const done = spawnSync(program, words, { encoding: "utf8", input });
  if (done.status !== 0) throw new Error(`${program} ${words.join(" ")}: ${done.stderr}`);
  return done.stdout;
}

const ip = (...words: string[]) => must("ip", words.join(" ").split(" "));

/** Makes the network to which machines are connected; it belongs to the network namespace of the caller. */
export function makeLab(): void {
  ip("link set lo up");
  ip("link add", bridge, "address", hardwareAddressOf(labAddress), "type bridge");
  ip("addr add", `${labAddress}/24`, "dev", bridge);
  ip("link set", bridge, "up");
}

/** Starts a process of its own process group in the background; its output goes to a file. */
function background(argv: string[], logFile: string): ChildProcess {
  const log = openSync(logFile, "a");
  const child = spawn(argv[0]!, argv.slice(1), { stdio: ["ignore", log, log], cwd: "/" });
  closeSync(log);
  return child;
}

function childrenOf(pid: number): number[] {
  try {
    const text = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8");
    return text.split(" ").filter(Boolean).map(Number);
  } catch {
    return []; // It ended meanwhile.
  }
}

/** Returns the pid of a program that nsenter or unshare has started. @throws Error when it ended at once. */
async function childOf(parent: ChildProcess, what: string): Promise<number> {
  const end = Date.now() + 20_000;
  while (parent.exitCode === null && Date.now() < end) {
    const [pid] = childrenOf(parent.pid!);
    if (pid !== undefined) return pid;
    await sleep(5);
  }
  throw new Error(`${what} did not start`);
}

/** A program that runs on a machine. */
export class Component {
  readonly name: string;
  readonly pid: number;
  readonly #nsenter: ChildProcess;

  constructor(name: string, pid: number, nsenter: ChildProcess) {
    this.name = name;
    this.pid = pid;
    this.#nsenter = nsenter;
  }

  get runs(): boolean {
    return this.#nsenter.exitCode === null && this.#nsenter.signalCode === null;
  }

  /** Ends it and waits for its end, by SIGKILL after ten seconds. */
  async stop(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    if (!this.runs) return;
    const gone = new Promise((resolve) => this.#nsenter.once("exit", resolve));
    process.kill(this.pid, signal);
    const late = setTimeout(() => process.kill(this.pid, "SIGKILL"), 10_000);
    await gone;
    clearTimeout(late);
  }
}

export class Machine {
  readonly name: string;
  readonly address: string;
  readonly podNetwork: string;
  /** The parent of its services' cgroups. */
  readonly services: string;
  /** Its folder, which outlives its boots. */
  readonly dir: string;
  #unshare: ChildProcess | undefined;
  #pid = 0;

  constructor(name: string, index: number, dir: string) {
    this.name = name;
    this.address = addressOf(index);
    this.podNetwork = podNetworkOf(index);
    this.services = servicesOf(dir);
    this.dir = dir;
    for (const folder of ["", "logs", ...folders])
      mkdirSync(join(dir, folder), { recursive: true });
  }

  /** Starts its namespaces and connects it. routes: the machines whose pods it reaches. */
  async boot(routes: Machine[]): Promise<void> {
    const flags = "--net --mount --uts --ipc --pid --fork --kill-child --mount-proc".split(" ");
    const argv = [
      ...flags,
      "--propagation",
      "private",
      "sh",
      "-c",
      init,
      "sh",
      this.name,
      this.dir,
    ];
    const child = spawn("unshare", argv, { stdio: ["ignore", "pipe", "pipe"] });
    let output = "";
    for (const stream of [child.stdout, child.stderr])
      stream.on("data", (chunk: Buffer) => (output += chunk.toString()));
    const end = Date.now() + 30_000;
    while (!output.includes("ready")) {
      if (child.exitCode !== null || Date.now() > end)
        throw new Error(`machine ${this.name} did not boot: ${output}`);
      await sleep(10);
    }
    this.#unshare = child;
    this.#pid = await childOf(child, this.name);
    const outside = `v${this.name}`;
    const hardware = hardwareAddressOf(this.address);
    ip("link add", outside, "type veth peer name eth0 address", hardware, "netns", `${this.#pid}`);
    ip("link set", outside, "master", bridge, "up");
    this.run("ip", "addr", "add", `${this.address}/24`, "dev", "eth0");
    this.run("ip", "link", "set", "eth0", "up");
    this.run("ip", "route", "add", "default", "via", labAddress);
    ip("route replace", this.podNetwork, "via", this.address);
    for (const other of routes.filter((one) => one !== this))
      this.run("ip", "route", "add", other.podNetwork, "via", other.address);
  }

  /** Words that let a program run on the machine. */
  get #enter(): string[] {
    const namespaces = "--net --mount --uts --ipc --pid --wdns=/".split(" ");
    return ["nsenter", "--target", String(this.#pid), ...namespaces];
  }

  /** Runs a program to its end. @throws Error when it fails. */
  run(...argv: string[]): string {
    return must("nsenter", [...this.#enter.slice(1), ...argv]);
  }

  async start(name: string, argv: string[]): Promise<Component> {
    const nsenter = background(
      [...this.#enter, ...this.#asService(name), ...argv],
      join(this.dir, "logs", name),
    );
    return new Component(name, await childOf(nsenter, `${name} on ${this.name}`), nsenter);
  }

  /** Words that give a program a session and a share of the processors of its own, as systemd gives each service. */
  #asService(name: string): string[] {
    if (!existsSync(processors)) return ["setsid"];
    const cgroup = join(processors, this.services, name);
    mkdirSync(cgroup, { recursive: true });
    return ["setsid", "sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, cgroup];
  }

  /** A path of the machine as this process reaches it. */
  path(inside: string): string {
    return `/proc/${this.#pid}/root${inside}`;
  }

  write(inside: string, text: string): void {
    const path = this.path(inside);
    mkdirSync(path.slice(0, path.lastIndexOf("/")), { recursive: true });
    writeFileSync(path, text);
  }

  log(name: string): string {
    return readFileSync(join(this.dir, "logs", name), "utf8");
  }

  /** The machine's processes other than its first and that one's child, as this process numbers them. */
  processes(): number[] {
    const namespace = (pid: number | string) => linkOf(`/proc/${pid}/ns/pid`);
    const own = namespace(this.#pid);
    const all = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
    const ids = all.filter((pid) => namespace(pid) === own).map(Number);
    return ids.filter((pid) => pid !== this.#pid && !childrenOf(this.#pid).includes(pid));
  }

  get runs(): boolean {
    return this.#unshare !== undefined && this.#unshare.exitCode === null;
  }

  /** Ends all of its processes at once, as a power loss does; /run, its network and its mounts are lost. */
  async cut(): Promise<void> {
    if (!this.runs) return;
    const gone = new Promise((resolve) => this.#unshare!.once("exit", resolve));
    process.kill(this.#pid, "SIGKILL");
    await gone;
    this.#unshare = undefined;
    removeCgroups(this.services);
    spawnSync("ip", ["link", "del", `v${this.name}`]);
  }
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return ""; // It ended meanwhile.
  }
}
