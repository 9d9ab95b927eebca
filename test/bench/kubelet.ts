// Measures how long a kubelet takes from a static pod's manifest to its running container, beside containerd:
// `bun test/bench/kubelet.ts FOLDER [--rounds 10]`. Each runtime has a kubelet of its own in a network namespace; they take
// turns, so that whatever else the machine does meets both. Prints medians and their ratio. Needs root, the built
// executable and docker-registry; ISULAD_BIN names another executable. FOLDER has containerd, its shim, runc and the
// kubelet (test/kubernetes_programs builds them).
import { join, resolve } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { runtime } from "../../src/proto/messages.js";
import { Containerd, sameParts } from "../containerd.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { makeCgroups } from "../host.ts";
import { busyboxImage } from "../image_maker.ts";
import { Kubelet, Netns } from "../kubelet_node.ts";
import type { Manifest } from "../kubelet_pods.ts";
import { median } from "../median.ts";
import { startRegistry } from "../registry.ts";

/** The first pods of a kubelet wait for its own start. */
const warmUp = 2;

type Side = { name: string; daemon: Daemon; kubelet: Kubelet; ms: number[] };

function manifestOf(name: string, image: string): Manifest {
  const container = {
    name: "main",
    image,
    imagePullPolicy: "Never",
    command: ["sleep", "1000000"],
  };
  const spec = { terminationGracePeriodSeconds: 0, containers: [container] };
  const pod = { apiVersion: "v1", kind: "Pod", metadata: { name, namespace: "default" }, spec };
  return { name, json: JSON.stringify(pod), expected: [] };
}

/** Returns when the pod has as many running containers as wanted. */
function untilRunning({ client }: Daemon, name: string, count: number): Promise<void> {
  const state = { state: runtime.v1.ContainerState.CONTAINER_RUNNING };
  const label_selector = { "io.kubernetes.pod.name": `${name}-node1` };
  return until(`${name} has ${count} running containers`, async () => {
    const { containers } = await client.ListContainers({ filter: { state, label_selector } });
    return containers.length === count;
  });
}

async function onePod({ daemon, kubelet }: Side, manifest: Manifest): Promise<number> {
  const begin = performance.now();
  kubelet.add(manifest);
  await untilRunning(daemon, manifest.name, 1);
  const ms = performance.now() - begin;
  kubelet.remove(manifest);
  await untilRunning(daemon, manifest.name, 0);
  return ms;
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    options: { rounds: { type: "string", default: "10" } },
    allowPositionals: true,
  });
  const bin = resolve(positionals[0] ?? "");
  await using all = new AsyncDisposableStack();
  const registry = all.use(await startRegistry());
  await registry.push("busybox", "1", busyboxImage());
  const image = `${registry.host}/busybox:1`;
  const config = { ...sameParts(bin, registry), "restrict-oom-score-adj": true };
  const side = async (name: string, daemon: Daemon): Promise<Side> => {
    all.use(daemon);
    const { dir, cgroupParent, socket: endpoint, client } = daemon;
    makeCgroups([cgroupParent.slice(1)]);
    await client.PullImage({ image: { image } });
    const netns = all.use(new Netns(`isulad-bench-${name}-${process.pid}`));
    const node = { dir, cgroupParent, endpoint, netns };
    return { name, daemon, kubelet: all.use(new Kubelet(join(bin, "kubelet"), node)), ms: [] };
  };
  const sides = [
    await side("isulad-ts", await startDaemon({ config, image: false, detached: true })),
    await side("containerd", await Containerd.run(bin, registry)),
  ];
  for (let round = -warmUp; round < Number(values.rounds); round++) {
    const turns = round % 2 === 0 ? sides : sides.toReversed();
    for (const one of turns) {
      const ms = await onePod(one, manifestOf(`pod${round + warmUp}`, image));
      if (round >= 0) one.ms.push(ms);
    }
  }
  const [own, peer] = sides.map(({ ms }) => median(ms)) as [number, number];
  const times = `isulad-ts ${own.toFixed(0)} ms, containerd ${peer.toFixed(0)} ms`;
  console.log(`from manifest to running container: ${times}, ratio ${(own / peer).toFixed(2)}`);
  for (const { daemon } of sides) await daemon.removeAllPods();
}

await main();
