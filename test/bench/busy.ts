// Measures a node that is never idle: pods that are probed, a kubelet's lists each second, pods that come and
// go before. Prints memory by process, the CPU of a probe with everything that works for it, and the same
// probe by hand: `bun run bench:busy [--pods 15] [--churn 50] [--minutes 3] [--containerd FOLDER]`. Needs root
// and the built executable; ISULAD_BIN names another one. FOLDER has containerd, its shim and runc: these are
// measured first, with the same runc for both.
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { asKubelet, probeMs } from "../as_kubelet.ts";
import type { Times } from "../call_times.ts";
import { cniBin, Containerd } from "../containerd.ts";
import { busybox, type Daemon, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";
import { busyboxImage } from "../image_maker.ts";
import { memoryKib } from "../leaks.ts";
import { median } from "../median.ts";
import { startRegistry } from "../registry.ts";

const churnAtOnce = 5;
const byHand = 100;
const accounting = isV2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpuacct";

const { values } = parseArgs({
  options: {
    pods: { type: "string", default: "15" },
    churn: { type: "string", default: "50" },
    minutes: { type: "string", default: "3" },
    containerd: { type: "string" },
  },
});

/** A cgroup that counts the CPU time of all processes in it, ended ones too. */
class Account implements Disposable {
  readonly folder: string;

  constructor(folder: string) {
    this.folder = folder;
    mkdirSync(folder, { recursive: true });
  }

  add(pid: number): void {
    writeFileSync(join(this.folder, "cgroup.procs"), String(pid));
  }

  ms(): number {
    if (!isV2) return Number(readFileSync(join(this.folder, "cpuacct.usage"), "utf8")) / 1e6;
    const stat = readFileSync(join(this.folder, "cpu.stat"), "utf8");
    return Number(/^usage_usec (\d+)/m.exec(stat)![1]) / 1e3;
  }

  /** Its processes must have ended. */
  [Symbol.dispose](): void {
    rmdirSync(this.folder);
  }
}

type Memory = { pss: number; privateDirty: number };

/** In MiB. */
function memoryOf(pid: number): Memory {
  return {
    pss: memoryKib(pid, "Pss") / 1024,
    privateDirty: memoryKib(pid, "Private_Dirty") / 1024,
  };
}

type Busy = { daemon: Daemon; image: string };

async function onePod({ daemon, image }: Busy): Promise<[podId: string, containerId: string]> {
  const config = daemon.podConfig();
  const podId = await daemon.runPod(config);
  const more = { image: { image } };
  return [podId, await daemon.run(podId, config, ["sleep", "36000"], more)];
}

async function churn(busy: Busy, count: number): Promise<void> {
  let left = count;
  const worker = async () => {
    while (left-- > 0) await busy.daemon.removePod((await onePod(busy))[0]);
  };
  await Promise.all(Array.from({ length: churnAtOnce }, worker));
}

/** Returns the CPU time of one `runc exec` at the pace of the probes, in ms. */
function execByHand(daemon: Daemon, id: string, account: Account): number {
  const program = values.containerd ? join(values.containerd, "runc") : "runc";
  const runc = `${program} --root ${join(daemon.dir, "state/runtime/runc")} exec ${id} true`;
  // The shell pauses without another process: nobody writes to the pipe.
  const pause = `read -r -t ${probeMs / 1000 / Number(values.pods)} -u 3`;
  const script = `echo $$ > ${account.folder}/cgroup.procs
    exec 3<> <(:)
    for i in $(seq ${byHand}); do ${runc} || exit; ${pause}; done; true`;
  const before = account.ms();
  const done = spawnSync("bash", ["-c", script], { encoding: "utf8" });
  if (done.status !== 0) throw new Error(`runc exec failed: ${done.stderr}`);
  return (account.ms() - before) / byHand;
}

/** In MiB and ms. */
type Figures = Memory & { parts: string; probeCpu: number };

/** By the process, and the shims of containerd together. */
function memoryBy(daemon: Daemon): Memory[] {
  const own = memoryOf(daemon.pid);
  const others = daemon.monitors().map(memoryOf);
  const sum = (of: keyof Memory) => others.reduce((all, one) => all + one[of], 0);
  return [own, { pss: sum("pss"), privateDirty: sum("privateDirty") }];
}

async function measure(busy: Busy, account: Account): Promise<Figures & { id: string }> {
  const { daemon } = busy;
  const pods = new Account(join(accounting, daemon.cgroupParent));
  for (const pid of [daemon.pid, ...daemon.monitors()]) account.add(pid);
  const held: [string, string][] = [];
  for (let count = 0; count < Number(values.pods); count++) held.push(await onePod(busy));
  const ids = held.map(([, id]) => id);

  const ending = new AbortController();
  const times: Times = new Map();
  const probed = () => times.get("ExecSync")?.length ?? 0;
  const calls = asKubelet(daemon, { ids, signal: ending.signal, times });
  await churn(busy, Number(values.churn));
  const total = () => account.ms() + pods.ms();
  const [beginMs, probedBefore] = [total(), probed()];
  const samples: Memory[][] = [];
  const endMs = performance.now() + Number(values.minutes) * 60_000;
  while (performance.now() < endMs) {
    await sleep(5_000);
    samples.push(memoryBy(daemon));
  }
  const probeCpu = (total() - beginMs) / (probed() - probedBefore);
  ending.abort();
  await calls;

  const last = samples.slice(-Math.ceil(samples.length / 3));
  const inLast = (of: (sample: Memory[]) => number) => median(last.map(of));
  const sum = (of: keyof Memory) => inLast((sample) => sample[0]![of] + sample[1]![of]);
  const part = (at: number, of: keyof Memory) => inLast((sample) => sample[at]![of]).toFixed(1);
  const parts = [0, 1].map((at) => `${part(at, "pss")} (${part(at, "privateDirty")})`).join(" + ");
  return { pss: sum("pss"), privateDirty: sum("privateDirty"), parts, probeCpu, id: ids[0]! };
}

async function measureContainerd(bin: string): Promise<Figures> {
  await using registry = await startRegistry();
  await registry.push("busybox", "1", busyboxImage());
  const image = `${registry.host}/busybox:1`;
  await using daemon = await Containerd.run(bin, registry);
  await daemon.client.PullImage({ image: { image } });
  using account = new Account(join(accounting, `isulad-bench-peer-${process.pid}`));
  const figures = await measure({ daemon, image }, account);
  await daemon.removeAllPods();
  await daemon.stop();
  return figures;
}

function print(name: string, { pss, privateDirty, parts, probeCpu }: Figures): void {
  const memory = `memory, MiB PSS (private dirty): ${pss.toFixed(1)} (${privateDirty.toFixed(1)}): ${parts}`;
  console.log(`${name}: ${memory}; CPU of a probe with all lists: ${probeCpu.toFixed(1)} ms`);
}

async function main(): Promise<void> {
  const peer = values.containerd && (await measureContainerd(values.containerd));
  if (peer) print("containerd and shims", peer);
  const runc = values.containerd && { runc: { path: join(values.containerd, "runc") } };
  const config = { "log-level": "INFO", "cni-bin-dir": cniBin, ...(runc && { runtimes: runc }) };
  await using daemon = await startDaemon({ config });
  using account = new Account(join(accounting, `isulad-bench-${process.pid}`));
  const { id, ...own } = await measure({ daemon, image: busybox }, account);
  print("daemon and monitor", own);
  await sleep(500);
  const hand = execByHand(daemon, id, account);
  const ratio = (to: number, from: number) => (from / to).toFixed(2);
  console.log(`runc exec by hand: ${hand.toFixed(1)} ms; ratio ${ratio(hand, own.probeCpu)}`);
  if (peer) {
    const memory = `memory ${ratio(peer.pss, own.pss)}`;
    console.log(`to containerd: ${memory}, CPU ${ratio(peer.probeCpu, own.probeCpu)}`);
  }
  await daemon.removeAllPods();
  await daemon.stop();
  for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
  await sleep(500);
}

await main();
