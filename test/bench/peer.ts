// Measures what a kubelet waits for, beside containerd: `bun run bench:peer FOLDER [--rounds 10]`. Both daemons
// run at once, with the same runc and CNI plugins, and take turns within each round, so that whatever else the
// machine does meets both. Prints medians and their ratio; the first rounds find both daemons fresh. Needs root,
// the built executable and docker-registry; ISULAD_BIN names another executable. FOLDER has containerd, its shim
// and runc (test/kubernetes_programs builds them).
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { addTime, timed, type Times } from "../call_times.ts";
import { Containerd, sameParts } from "../containerd.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage, makeImage, makeLayer } from "../image_maker.ts";
import { logText } from "../log_text.ts";
import { median } from "../median.ts";
import { type Registry, startRegistry } from "../registry.ts";

/** Of each call in a round. */
const listsInRound = 100;
const execsInRound = 10;
const podsInRound = 2;
const crowds = [
  { atOnce: 5, pods: 12 },
  { atOnce: 20, pods: 20 },
];
const logLines = 1_000_000;
const logLine = "the quick brown fox jumps over the lazy dog 0123456789";

/** One of the two daemons, with a pod for the calls that need one. */
type Side = { name: string; daemon: Daemon; containerId: string; times: Times };

class Peers {
  readonly #registry: Registry;

  constructor(registry: Registry) {
    this.#registry = registry;
  }

  image(name: string): { image: string } {
    return { image: `${this.#registry.host}/${name}:1` };
  }

  async push(): Promise<void> {
    await this.#registry.push("busybox", "1", busyboxImage());
    const files = [1, 2, 3, 4, 5].map((index) => ({
      name: `file${index}`,
      data: randomBytes(20_000_000),
    }));
    await this.#registry.push("large", "1", makeImage(files.map((file) => makeLayer([file]))));
  }

  containerd(bin: string): Promise<Daemon> {
    return Containerd.run(bin, this.#registry);
  }

  async isuladTs(bin: string): Promise<Daemon> {
    return startDaemon({ config: sameParts(bin, this.#registry), image: false });
  }

  async side(name: string, daemon: Daemon): Promise<Side> {
    await daemon.client.PullImage({ image: this.image("busybox") });
    const containerId = (await this.pod(daemon)).containerId;
    return { name, daemon, containerId, times: new Map() };
  }

  async pod(daemon: Daemon): Promise<{ podId: string; containerId: string }> {
    const config = daemon.podConfig();
    const podId = await daemon.runPod(config);
    return { podId, containerId: await this.#container(daemon, { podId, config }) };
  }

  #container(
    daemon: Daemon,
    { podId, config }: { podId: string; config: PodSandboxConfig },
    command: string | string[] = ["sleep", "3600"],
  ): Promise<string> {
    return daemon.run(podId, config, command, { image: this.image("busybox") });
  }

  /** What a kubelet does once a second or more often. */
  async calls(side: Side): Promise<void> {
    const { client } = side.daemon;
    for (let count = 0; count < listsInRound; count++) {
      await timed(side.times, "Status", () => client.Status({}));
      await timed(side.times, "Version", () => client.Version({}));
      await timed(side.times, "ListContainers", () => client.ListContainers({}));
    }
    for (let count = 0; count < execsInRound; count++) {
      const exec = () => side.daemon.exec(side.containerId, ["true"]);
      const { exitCode } = await timed(side.times, "ExecSync true", exec);
      if (exitCode !== 0) throw new Error(`${side.name}: true ended with ${exitCode}`);
    }
  }

  async lifeCycle(side: Side): Promise<void> {
    const { client } = side.daemon;
    for (let count = 0; count < podsInRound; count++) {
      const { podId, containerId } = await timed(side.times, "pod ready", () =>
        this.pod(side.daemon),
      );
      await timed(side.times, "pod stop + remove", async () => {
        await client.StopContainer({ container_id: containerId });
        await side.daemon.removePod(podId);
      });
    }
  }

  async crowd(side: Side, { atOnce, pods }: { atOnce: number; pods: number }): Promise<void> {
    const podIds: string[] = [];
    let left = pods;
    const worker = async () => {
      while (left-- > 0) podIds.push((await this.pod(side.daemon)).podId);
    };
    const begin = performance.now();
    await Promise.all(Array.from({ length: atOnce }, worker));
    addTime(side.times, `a pod, ${atOnce} at once`, (performance.now() - begin) / pods);
    for (const podId of podIds) await side.daemon.removePod(podId);
  }

  async pull(side: Side): Promise<void> {
    const { client } = side.daemon;
    const image = this.image("large");
    await timed(side.times, "pull of 5 x 20 MB", () => client.PullImage({ image }));
    await client.RemoveImage({ image });
  }

  async log(side: Side): Promise<void> {
    const { daemon } = side;
    const config = daemon.podConfig();
    const podId = await daemon.runPod(config);
    const command = `yes '${logLine}' | head -n ${logLines}`;
    const { log_path } = await timed(
      side.times,
      `${logLines / 1e6} million log lines`,
      async () => {
        const id = await this.#container(daemon, { podId, config }, command);
        return (await daemon.exited(id, 60_000)).status;
      },
    );
    const text = logText(readFileSync(log_path!, "utf8"));
    const lost = logLines - text.split(`${logLine}\n`).length + 1;
    if (lost !== 0) throw new Error(`${side.name} lost ${lost} log lines`);
    await daemon.removePod(podId);
  }
}

/** By turns, so that neither side always runs on what the other has left. */
async function measure(peers: Peers, sides: Side[], rounds: number): Promise<void> {
  for (let round = 0; round < rounds; round++) {
    for (const side of round % 2 === 0 ? sides : sides.toReversed()) {
      await peers.calls(side);
      await peers.lifeCycle(side);
      for (const crowd of crowds) await peers.crowd(side, crowd);
      await peers.pull(side);
      await peers.log(side);
    }
  }
}

function print([ours, theirs]: [Side, Side]): void {
  for (const [what, values] of ours.times) {
    const [own, other] = [median(values), median(theirs.times.get(what)!)];
    const both = `${ours.name} ${own.toFixed(2)} ms, ${theirs.name} ${other.toFixed(2)} ms`;
    console.log(`${what.padEnd(24)} ${both}, ratio ${(own / other).toFixed(2)}`);
  }
}

async function main(): Promise<void> {
  const options = { rounds: { type: "string", default: "10" } } as const;
  const { values, positionals } = parseArgs({ allowPositionals: true, options });
  const [bin] = positionals;
  if (bin === undefined) throw new Error("name the folder of containerd, its shim and runc");
  await using registry = await startRegistry();
  const peers = new Peers(registry);
  await peers.push();
  await using containerd = await peers.containerd(bin);
  await using isuladTs = await peers.isuladTs(bin);
  const sides: [Side, Side] = [
    await peers.side("isulad-ts", isuladTs),
    await peers.side("containerd", containerd),
  ];
  await measure(peers, sides, Number(values.rounds));
  for (const { daemon } of sides) {
    await daemon.removeAllPods();
    await daemon.stop();
  }
  for (const pid of isuladTs.monitors()) process.kill(pid, "SIGKILL");
  await sleep(500);
  print(sides);
}

await main();
