// Disturbs nodes and the control plane of the test cluster: a drain, a power loss, an outage of the control plane.
import { setTimeout as sleep } from "node:timers/promises";
import { runtime } from "../src/proto/messages.js";
import type { ClusterNode } from "./cluster_node.ts";
import {
  checkUnchanged,
  type Cluster,
  eventually,
  expect,
  inNamespace,
  pod,
  podsIn,
  type PodRow,
  readiness,
  readyPods,
  restartsOf,
  workload,
} from "./cluster_pods.ts";

const { ContainerState } = runtime.v1;

/** The node that is disturbed: the first of isulad-ts. */
export function victimOf(cluster: Cluster): ClusterNode {
  const victim = cluster.nodes.find((one) => one.runtime === "isulad-ts");
  if (victim === undefined) throw new Error("no node runs isulad-ts");
  return victim;
}

/** Drains a node under a disruption budget: its pods move, and none of its containers is left. */
export function drain(cluster: Cluster): Promise<string> {
  const namespace = "drain";
  return inNamespace(cluster, namespace, async () => {
    const { control } = cluster;
    const victim = victimOf(cluster);
    const meta = { name: "web", namespace };
    const budget = {
      apiVersion: "policy/v1",
      kind: "PodDisruptionBudget",
      metadata: meta,
      spec: { maxUnavailable: 1, selector: { matchLabels: { app: "web" } } },
    };
    const volumes = [{ name: "scratch", emptyDir: {} }];
    const spec = { volumes, nodeSelector: {} };
    const pods = { container: readiness, spec };
    await control.apply(
      budget,
      workload(cluster, "Deployment", meta, { pods, spec: { replicas: 6 } }),
    );
    const before = await readyPods(cluster, namespace, 6);
    const moved = before.filter(({ node }) => node === victim.name).length;
    expect(moved > 0, `no pod runs on ${victim.name}`);
    const words = ["drain", victim.name, "--ignore-daemonsets", "--delete-emptydir-data"];
    await control.kubectl([...words, "--timeout=240s"], "", 250_000);
    try {
      const after = await readyPods(cluster, namespace, 6);
      const left = after.filter(({ node }) => node === victim.name);
      expect(left.length === 0, `${left.length} pods are left on ${victim.name}`);
      await emptied(victim, before);
    } finally {
      await control.kubectl(["uncordon", victim.name]);
    }
    return `${moved} of 6 pods moved from ${victim.name}, nothing left there`;
  });
}

/** Waits until the runtime has no container or sandbox of these pods. */
async function emptied(node: ClusterNode, pods: PodRow[]): Promise<void> {
  using client = node.client();
  const uids = new Set(pods.map(({ uid }) => uid));
  await eventually(`${node.name} has removed its pods`, async () => {
    const { items } = await client.ListPodSandbox({});
    return !items.some(({ metadata }) => uids.has(metadata?.uid ?? ""));
  });
}

/** Cuts a node's power: after its boot, its pods run again under their identity, with their volumes' data. */
export function reboot(cluster: Cluster): Promise<string> {
  const namespace = "reboot";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    const victim = victimOf(cluster);
    const meta = { name: "web", namespace };
    const options = {
      container: { ...readiness, volumeMounts: [{ name: "kept", mountPath: "/kept" }] },
      spec: { volumes: [{ name: "kept", emptyDir: {} }] },
      script: `echo $HOSTNAME >>/kept/boots; mkdir -p /www; wc -l </kept/boots >/www/index.html;
        trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait`,
    };
    await control.apply(
      workload(cluster, "DaemonSet", meta, { pods: options }),
      ...[1, 2, 3].map((count) =>
        pod(cluster, { name: `p${count}`, namespace }, { ...options, node: victim.name }),
      ),
    );
    const count = nodes.length + 3;
    const before = await readyPods(cluster, namespace, count);
    const startMs = Date.now();
    await victim.cut();
    await victim.boot(nodes.map(({ machine }) => machine));
    let after: PodRow[] = [];
    await eventually("all pods run again", async () => {
      after = await podsIn(cluster, namespace);
      const mine = after.filter(({ node }) => node === victim.name);
      return (
        after.length === count &&
        after.every((one) => one.ready) &&
        mine.every((one) => one.restarts > 0)
      );
    });
    const seconds = Math.round((Date.now() - startMs) / 1000);
    for (const was of before) {
      const is = after.find(({ uid }) => uid === was.uid);
      expect(is !== undefined, `${was.name} was replaced`);
      const expected = was.node === victim.name ? 1 : 0;
      if (is!.restarts !== expected) {
        const restarts = await restartsOf(cluster, namespace, is!);
        throw new Error(`${was.name} has ${is!.restarts} restarts, not ${expected}: ${restarts}`);
      }
      const boots = await pageOf(cluster, is!);
      expect(boots === String(expected + 1), `the volume of ${was.name} counts ${boots} boots`);
    }
    await eventually(
      "API and runtimes agree",
      async () => (await agreement(cluster, namespace)) > 0,
    );
    return `${before.filter(({ node }) => node === victim.name).length} pods back within ${seconds} s`;
  });
}

/** Returns the page of a pod. @throws Error with what its node's runtime logged about it. */
async function pageOf(cluster: Cluster, { name, node, ip }: PodRow): Promise<string> {
  try {
    const options = { signal: AbortSignal.timeout(20_000) };
    return (await (await fetch(`http://${ip}:8080/`, options)).text()).trim();
  } catch (cause) {
    const { machine, runtime } = cluster.nodes.find((one) => one.name === node)!;
    const lines = machine.log(runtime).split("\n");
    const about = lines.filter((line) => line.includes(`/${name} `) || line.includes(ip));
    const text = [...about, machine.run("ip", "neigh"), machine.run("ip", "addr")].join("\n");
    throw new Error(`${name} at ${ip} does not answer:\n${text}`, { cause });
  }
}

/** Checks that the API and every runtime have the same running containers of a namespace. */
export async function agreement(cluster: Cluster, namespace: string): Promise<number> {
  const said = (await podsIn(cluster, namespace)).flatMap(({ containerIds }) =>
    containerIds.map((id) => id.replace(/^[\w-]+:\/\//, "")),
  );
  let running = 0;
  for (const node of cluster.nodes) {
    using client = node.client();
    const state = { state: ContainerState.CONTAINER_RUNNING };
    const labels = { "io.kubernetes.pod.namespace": namespace };
    const { containers } = await client.ListContainers({
      filter: { state, label_selector: labels },
    });
    for (const { id, metadata } of containers)
      expect(said.includes(id!), `${node.name} runs ${metadata?.name} ${id}, which the API lacks`);
    running += containers.length;
  }
  return running;
}

/** Requests a page of each pod once a second until the end. */
async function visit(pods: PodRow[], endMs: number) {
  const failures: string[] = [];
  let requests = 0;
  while (Date.now() < endMs) {
    for (const { ip, name } of pods) {
      requests++;
      const options = { signal: AbortSignal.timeout(10_000), keepalive: false };
      const answer = await fetch(`http://${ip}:8080/`, options).catch((error: unknown) => error);
      if (!(answer instanceof Response && answer.ok)) failures.push(`${name}: ${String(answer)}`);
    }
    await sleep(1000);
  }
  return { requests, failures };
}

/** Stops the control plane for minutes, in which containers crash, fail their probes and are restarted. */
export function outage(cluster: Cluster): Promise<string> {
  const namespace = "outage";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes, minutes } = cluster;
    const liveness = {
      exec: { command: ["test", "!", "-e", "/sick"] },
      periodSeconds: 3,
      failureThreshold: 1,
      timeoutSeconds: 10,
    };
    const sets = {
      steady: { container: readiness },
      crash: { script: "sleep 7; exit 1" },
      sick: {
        script: "trap 'exit 0' TERM; sleep 15 & wait; touch /sick; sleep 1000 & wait",
        container: { livenessProbe: liveness },
      },
    };
    for (const [name, pods] of Object.entries(sets))
      await control.apply(workload(cluster, "DaemonSet", { name, namespace }, { pods }));
    await readyPods(cluster, namespace, nodes.length, "steady");
    await eventually("the others started", async () => {
      const rows = await podsIn(cluster, namespace);
      return rows.length === 3 * nodes.length && rows.every(({ phase }) => phase === "Running");
    });
    const before = await podsIn(cluster, namespace);
    await control.stop();
    const steady = before.filter(({ name }) => name.startsWith("steady"));
    const { requests, failures } = await visit(steady, Date.now() + minutes * 60_000);
    await control.start();
    expect(
      failures.length === 0,
      `${failures.length} of ${requests} requests failed: ${failures[0]}`,
    );
    let after: PodRow[] = [];
    await eventually("the API knows of the restarts", async () => {
      after = await podsIn(cluster, namespace);
      const restarted = after.filter(({ name }) => !name.startsWith("steady"));
      const least = (uid: string) => before.find((one) => one.uid === uid)!.restarts + minutes;
      return restarted.every(({ uid, restarts }) => restarts >= least(uid));
    });
    for (const { uid, name } of before) {
      const isKept = after.some((one) => one.uid === uid);
      expect(isKept, `${name} was replaced`);
    }
    await checkUnchanged(cluster, namespace, steady);
    await eventually(
      "API and runtimes agree",
      async () => (await agreement(cluster, namespace)) > 0,
    );
    const restarts = nodes.map(({ name, runtime }) => {
      const of = (app: string) =>
        after.find((one) => one.node === name && one.name.startsWith(app))!;
      return `${name} (${runtime}) ${of("crash").restarts} crashes, ${of("sick").restarts} by probes`;
    });
    return `${minutes} min, ${requests} requests; ${restarts.join(", ")}`;
  });
}
