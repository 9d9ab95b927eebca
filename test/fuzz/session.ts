// Runs one daemon in hostile surroundings: its registry, a CNI plugin and an OCI runtime misbehave while it
// gets requests. After each round they behave, and everything must be right again.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { messageOf } from "../../src/base/errors.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { busybox, type Daemon, ociRuntime, startDaemon } from "../harness.ts";
import { busyboxImage, ociArchive } from "../image_maker.ts";
import { pssKib, type Snapshot } from "../leaks.ts";
import { AddedText } from "../log_text.ts";
import { Caller } from "./caller.ts";
import type { GoDecoder, Named } from "./go_decoder.ts";
import { hostileImage, HostileRegistry, smallImage } from "./registry.ts";
import type { World } from "./requests.ts";
import { makeTurns } from "./turns.ts";
import { type Chance, hostileString } from "./values.ts";
import { type Rpc, rpcs } from "./wire.ts";

/** How long a question may take when nothing disturbs the daemon; the machine may be busy. */
const questionMsMax = 15_000;
const standing = { pods: 3, containers: 6 };
/** Made by requests; the oldest go. */
const strangePodsMax = 15;
const { PodSandboxState, ContainerState } = runtime.v1;
const archivesCount = 4;
/** Of sixteen turns; most pods shall run. */
const hostileTurns = { plugin: 5, runtime: 3 };

export class Session implements AsyncDisposable {
  readonly daemon: Daemon;
  readonly world: World;
  readonly caller: Caller;
  readonly #outside: Outside;
  readonly #log: AddedText;
  readonly #decode: GoDecoder;
  readonly #pids: number[];
  readonly #before: Snapshot;
  /** The pods that no request made, with their configurations. */
  readonly #own = new Map<string, PodSandboxConfig>();

  private constructor(
    daemon: Daemon,
    outside: Outside,
    { hangMs, decode = () => [] }: { hangMs: number; decode?: GoDecoder },
  ) {
    this.#decode = decode;
    this.daemon = daemon;
    this.#outside = outside;
    this.caller = new Caller(daemon.socket, { hangMs });
    const dir = join(daemon.dir, "ground/a/b");
    this.world = {
      dir,
      cgroupParent: daemon.cgroupParent,
      pods: [],
      containers: [],
      images: [busybox, ...outside.registry.references],
      handlers: ["", "", "hostile"],
      files: [],
    };
    // Layers and images, too, are gone when the last that needs them is.
    for (const name of ["images", "layers"])
      daemon.scope.kept.push(join(daemon.dir, "graph", name));
    this.#log = new AddedText(daemon.logFile);
    this.#pids = daemon.scope.pids();
    this.#before = daemon.snapshot();
  }

  /** @param options.decode what lists and states must pass besides the strict decoding here. */
  static async open(options: { hangMs: number; decode?: GoDecoder }): Promise<Session> {
    const outside = await makeOutside();
    try {
      const daemon = await startDaemon({ config: outside.config });
      outside.writeNetwork(daemon);
      await onePod(daemon); // What is made once and kept is made now.
      return new Session(daemon, outside, options);
    } catch (error) {
      await outside[Symbol.asyncDispose]();
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#outside.calm();
    this.caller[Symbol.dispose]();
    await this.daemon[Symbol.asyncDispose]();
    await this.#outside[Symbol.asyncDispose]();
  }

  /** Makes what requests are about; then the surroundings turn hostile. */
  async begin(chance: Chance): Promise<void> {
    makeGround(this.world, chance);
    this.#own.clear();
    await this.#makeMissing();
    this.#outside.shuffle(chance);
  }

  /** Makes again what requests removed, and removes what they made too much. */
  readonly replenish = async (): Promise<void> => {
    // A request may remove at any moment what is made here.
    await this.#makeMissing().catch(() => {});
  };

  async #makeMissing(): Promise<void> {
    const { daemon, world } = this;
    const { images } = await daemon.client.ListImages({}).catch(() => ({ images: [] }));
    const isThere = images.some(({ repo_tags }) => repo_tags?.includes(busybox));
    if (!isThere) await daemon.loadImage(busyboxImage(), busybox);
    const { items } = await daemon.client.ListPodSandbox({});
    const ready = items.filter(({ state }) => state === PodSandboxState.SANDBOX_READY);
    world.pods = ready.map(({ id }) => id!);
    const own = world.pods.filter((id) => this.#own.has(id));
    for (let left = standing.pods - own.length; left > 0; left--) {
      const config = { ...daemon.podConfig(), log_directory: join(world.dir, "logs") };
      const id = await daemon.runPod(config);
      this.#own.set(id, config);
      own.push(id);
      world.pods.push(id);
    }
    const { containers } = await daemon.client.ListContainers({});
    world.containers = containers.map(({ id }) => id!);
    const running = containers.filter(({ state }) => state === ContainerState.CONTAINER_RUNNING);
    for (let left = standing.containers - running.length; left > 0; left--) {
      const podId = own[left % own.length]!;
      const command = "trap 'exit 3' TERM; echo up; sleep 600 & wait";
      world.containers.push(await daemon.run(podId, this.#own.get(podId)!, command));
    }
    const strange = items.filter(({ id }) => !this.#own.has(id!)).slice(strangePodsMax);
    await Promise.all(strange.map(({ id }) => daemon.removePod(id!)));
  }

  /** Calms the surroundings and removes everything. Returns what is wrong then. */
  async end(): Promise<string[]> {
    this.#outside.calm();
    const problems = await this.#questions();
    await this.#removeAll().catch((error: unknown) => {
      problems.push(`what was made cannot be removed: ${messageOf(error)}`);
    });
    rmSync(join(this.daemon.dir, "ground"), { recursive: true, force: true });
    const leaks = await this.daemon.leaksSince(this.#before, 20_000);
    problems.push(...leaks.slice(0, 20).map((leak) => `leak: ${leak}`));
    if (this.daemon.scope.pids().join() !== this.#pids.join()) {
      problems.push(
        `processes ${this.#pids.join()} have become ${this.daemon.scope.pids().join()}`,
      );
    }
    return [...problems, ...logProblems(this.#log.text)];
  }

  /** Daemon, then monitor. */
  pssKib(): number[] {
    return this.#pids.map(pssKib);
  }

  /** Each RPC that needs no argument and lists or tells something, as a kubelet asks it. */
  async #questions(): Promise<string[]> {
    const problems: string[] = [];
    const answered: Named[] = [];
    for (const rpc of rpcs.filter(isQuestion)) {
      const plan = { deadlineMs: questionMsMax };
      const answer = await this.caller.call(rpc, Buffer.alloc(0), plan, () => 1);
      if (answer.code !== "OK") problems.push(`${rpc.name}: ${answer.code} ${answer.details}`);
      problems.push(...answer.faults.map((fault) => `${rpc.name}: ${fault}`));
      if (rpc.path.startsWith("/runtime.v1.")) {
        answered.push(...answer.messages.map((bytes) => ({ type: rpc.response.name, bytes })));
      }
    }
    return [...problems, ...this.#decode(answered).map((refusal) => `decoded by Go: ${refusal}`)];
  }

  async #removeAll(): Promise<void> {
    const { client } = this.daemon;
    // A removed pod's CNI DEL or undo may be under way; the daemon repeats what failed.
    for (let tries = 0; ; tries++) {
      const { items } = await client.ListPodSandbox({});
      const ended = await Promise.allSettled(items.map((pod) => this.daemon.removePod(pod.id!)));
      const failed = ended.find((one) => one.status === "rejected");
      if (failed === undefined) break;
      if (tries === 3) throw failed.reason;
    }
    const { images } = await client.ListImages({});
    for (const { id, repo_tags } of images) {
      if (repo_tags?.includes(busybox)) continue;
      await client.RemoveImage({ image: { image: id! } });
    }
    await this.daemon.client.PruneImages({});
  }
}

/** ListNriChanges needs a container. */
function isQuestion({ name }: Rpc): boolean {
  const names =
    /^(Version|Status|RuntimeConfig|ImageFsInfo|NriPlugins|List(?!NriChanges).*|Stream.*)$/;
  return names.test(name);
}

async function onePod(daemon: Daemon): Promise<void> {
  const config = daemon.podConfig();
  const podId = await daemon.runPod(config);
  await daemon.output(podId, config, "echo x");
  await daemon.removePod(podId);
}

/** Lines that no logger wrote are the engine's last words. */
function logProblems(log: string): string[] {
  const framed = /^\S+ (?:ERROR|WARN |INFO |DEBUG) /;
  const engine =
    /TypeError|RangeError|URIError|ReferenceError|is not a function|the monitor failed/;
  const lines = log.split("\n").filter((line) => line !== "");
  const strange = lines.filter((line) => !framed.test(line) || engine.test(line));
  return strange.slice(0, 10).map((line) => `in the daemon's log: ${line.slice(0, 500)}`);
}

// -- surroundings ---------------------------------------------------------------------------------

type Outside = AsyncDisposable & {
  registry: HostileRegistry;
  /** Keys of daemon.json that lead to it. */
  config: Record<string, unknown>;
  writeNetwork(daemon: Daemon): void;
  shuffle(chance: Chance): void;
  calm(): void;
};

const cniTemplates = [
  {
    cniVersion: "1.0.0",
    interfaces: [{ name: "eth0", mac: "00:11:22:33:44:55", sandbox: "/proc/1/ns/net" }],
    ips: [{ address: "10.1.2.3/24", gateway: "10.1.2.1", interface: 0 }],
    routes: [{ dst: "0.0.0.0/0", gw: "10.1.2.1" }],
    dns: { nameservers: ["10.1.2.2"], domain: "a", search: ["b"] },
  },
  { cniVersion: "1.0.0", code: 11, msg: "no", details: "the cable is out" },
];
const runtimeTemplates = [
  { level: "error", msg: "container_linux.go: no", time: "2024-01-01T00:00:00Z" },
  { ociVersion: "1.0.2", id: "x", status: "running", pid: 1, bundle: "/" },
];

async function makeOutside(): Promise<Outside> {
  const dir = mkdtempSync(join(tmpdir(), "isulad-fuzz-"));
  const registry = await HostileRegistry.start();
  const real = ociRuntime.startsWith("/") ? ociRuntime : `/usr/sbin/${ociRuntime}`;
  const plugin = makeTurns(dir, "hostile", "/usr/lib/cni/portmap", cniTemplates);
  const runtime = makeTurns(dir, "runtime", real, runtimeTemplates);
  const cniConf = join(dir, "net.d");
  mkdirSync(cniConf);
  // Whatever registry a mutated name means, no request leaves this machine.
  mkdirSync(join(dir, "certs.d/_default"), { recursive: true });
  writeFileSync(join(dir, "certs.d/_default/hosts.toml"), `server = "${registry.url}"\n`);
  return {
    registry,
    config: {
      "log-level": "INFO",
      "enable-pod-events": true,
      "registry-config-path": join(dir, "certs.d"),
      "cdi-spec-dirs": [join(dir, "cdi")],
      "cni-bin-dir": `${dir}:/opt/cni/bin:/usr/lib/cni`,
      "cni-timeout": 10,
      "runtime-timeout": 10,
      "start-timeout": 10,
      "pull-progress-timeout": 2,
      "nri-support": true,
      "nri-socket-path": join(dir, "nri.sock"),
      "plugin-path": join(dir, "plugins"),
      "plugin-config-path": join(dir, "conf.d"),
      runtimes: { hostile: { path: runtime.path, "cni-conf-dir": cniConf } },
    },
    writeNetwork: (daemon) => {
      const text = readFileSync(join(daemon.cniDir, "10-test.conflist"), "utf8");
      const list = JSON.parse(text) as { plugins: object[] };
      list.plugins[1] = { type: "hostile", capabilities: { portMappings: true } };
      writeFileSync(join(cniConf, "10-hostile.conflist"), JSON.stringify(list));
    },
    shuffle: (chance) => {
      plugin.shuffle(chance, hostileTurns.plugin);
      runtime.shuffle(chance, hostileTurns.runtime);
      registry.shuffle(chance);
      for (const turns of [plugin, runtime]) turns.calm(false);
    },
    calm: () => {
      for (const turns of [plugin, runtime]) turns.calm(true);
      registry.shuffle(undefined);
    },
    [Symbol.asyncDispose]: async () => {
      await registry[Symbol.asyncDispose]();
      rmSync(dir, { recursive: true, force: true });
    },
  };
}

/** The folder of all paths in requests: archives, and what is none. */
function makeGround(world: World, chance: Chance): void {
  const { dir } = world;
  for (const name of ["logs", "volume", "folder"]) mkdirSync(join(dir, name), { recursive: true });
  const from = smallImage();
  const archives = Array.from({ length: archivesCount }, (_, i) => {
    const path = join(dir, `archive-${i}.tar`);
    const name = i === 0 ? "docker.io/fuzz/archive:1" : hostileString(chance);
    writeFileSync(path, ociArchive([{ image: hostileImage(chance, from), name }]));
    return path;
  });
  writeFileSync(join(dir, "noise"), Buffer.from(Array.from({ length: 3_000 }, () => chance(256))));
  writeFileSync(join(dir, "empty"), "");
  symlinkSync("loop", join(dir, "loop"));
  execFileSync("mkfifo", [join(dir, "fifo")]);
  execFileSync("mknod", [join(dir, "zero"), "c", "1", "5"]);
  const others = ["noise", "empty", "loop", "fifo", "zero", "folder", "none"];
  world.files = [...archives, ...others.map((name) => join(dir, name))];
}
