// Runs a Kubernetes cluster on this machine (control plane, two nodes of isulad-ts, one of containerd) and steps on it:
// `bun test/cluster.ts [STEP…] [--nodes isulad-ts,isulad-ts,containerd] [--minutes 3] [--pods 60] [--again]`. Without
// a name it runs all steps, and skips those that passed with this executable (test/.cache/cluster.json). Missing
// programs are built from Go modules, once. The machines are namespaces: all of it ends with this command. Needs
// root, iptables, docker-registry and openssl.
import { mkdirSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { ControlPlane } from "./cluster_control.ts";
import { runInLab } from "./cluster_lab.ts";
import { labAddress, Machine, makeLab, servicesOf } from "./cluster_machine.ts";
import { ClusterNode, type RuntimeName } from "./cluster_node.ts";
import { type Cluster, eventually } from "./cluster_pods.ts";
import * as workloads from "./cluster_steps.ts";
import { crowd } from "./cluster_steps_crowd.ts";
import * as disturbed from "./cluster_steps_disturb.ts";
import * as streams from "./cluster_steps_kubectl.ts";
import { stats } from "./cluster_steps_stats.ts";
import { upgrade } from "./cluster_steps_upgrade.ts";
import { executable } from "./harness.ts";
import { busyboxImage } from "./image_maker.ts";
import { buildKubernetes } from "./kubelet_node.ts";
import { removeCgroups } from "./leaks.ts";
import { type Registry, startRegistry } from "./registry.ts";
import { resumed } from "./run_record.ts";

const cache = join(import.meta.dirname, ".cache");

const steps: Record<string, (cluster: Cluster) => Promise<string>> = {
  first: workloads.firstPods,
  deployment: workloads.deployment,
  services: workloads.services,
  daemonset: workloads.daemonSet,
  job: workloads.job,
  statefulset: workloads.statefulSet,
  exec: streams.exec,
  cp: streams.copy,
  logs: streams.logs,
  debug: streams.debug,
  "port-forward": streams.portForward,
  drain: disturbed.drain,
  reboot: disturbed.reboot,
  outage: disturbed.outage,
  upgrade,
  stats,
  crowd,
};

const control = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];
const ofNodes = ["kubelet", "kube-proxy", "runc", "bridge", "host-local", "loopback", "portmap"];
const containerd = ["containerd", "containerd-shim-runc-v2"];

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    nodes: { type: "string", default: "isulad-ts,isulad-ts,containerd" },
    minutes: { type: "string", default: "3" },
    pods: { type: "string", default: "60" },
    again: { type: "boolean", default: false },
    inside: { type: "string" },
  },
});
const runtimes = values.nodes.split(",") as RuntimeName[];
const wanted = positionals.length > 0 ? positionals : Object.keys(steps);

function programs(): string {
  const others = runtimes.includes("containerd") ? containerd : [];
  const ofStats = wanted.includes("stats") ? ["metrics-server"] : [];
  return buildKubernetes(cache, [...control, ...ofNodes, ...others, ...ofStats]);
}

/** Starts everything in the namespaces of this process. */
async function startCluster(dir: string, registry: Registry): Promise<Cluster> {
  const bin = programs();
  for (const name of ["busybox", "pause"])
    await registry.push(name, "1", busyboxImage(name === "pause" ? { Cmd: ["sleep", "1d"] } : {}));
  const plane = new ControlPlane(new Machine("control", 0, join(dir, "control")), bin);
  const podsMax = Number(values.pods) + 20;
  const parts = { bin, executable, control: plane, registry: registry.host, podsMax };
  const nodes = runtimes.map((name, index) => new ClusterNode(name, index + 1, dir, parts));
  const machines = nodes.map(({ machine }) => machine);
  await plane.machine.boot(machines);
  await plane.start();
  for (const node of nodes) await node.boot(machines);
  const cluster: Cluster = {
    control: plane,
    nodes,
    image: `${registry.host}/busybox:1`,
    dir,
    cache,
    minutes: Number(values.minutes),
    pods: Number(values.pods),
  };
  await eventually("all nodes are ready", async () => {
    type Node = {
      metadata: { name: string };
      status: { conditions: { type: string; status: string }[] };
    };
    const items = await plane.list<Node>("/api/v1/nodes");
    const ready = items.filter(({ status }) =>
      status.conditions.some(({ type, status }) => type === "Ready" && status === "True"),
    );
    return ready.length === nodes.length;
  });
  return cluster;
}

/** Runs the steps one by one; returns the number of those that failed. */
async function runSteps(cluster: Cluster, names: string[]): Promise<number> {
  const file = join(cache, "cluster.json");
  const fresh: { passed: Record<string, string> } = { passed: {} };
  const again = values.again || positionals.length > 0;
  const record = resumed(file, fresh, {});
  const summary: string[] = [];
  let failures = 0;
  for (const name of names) {
    if (!again && record.passed[name] !== undefined) {
      summary.push(`${name}: ok before: ${record.passed[name]}`);
      continue;
    }
    const startMs = Date.now();
    console.log(`${new Date().toISOString()} ${name}`);
    try {
      const figures = await steps[name]!(cluster);
      const seconds = Math.round((Date.now() - startMs) / 1000);
      record.passed[name] = figures;
      writeFileSync(file, JSON.stringify(record, null, 2));
      summary.push(`${name}: ok, ${seconds} s: ${figures}`);
    } catch (error) {
      failures++;
      summary.push(`${name}: FAILED`);
      console.error(error);
      if (process.env["ISULAD_KEEP"] === "1") break;
    }
    console.log(summary.at(-1));
  }
  console.log(summary.join("\n"));
  return failures;
}

async function inside(dir: string): Promise<number> {
  makeLab();
  await using registry = await startRegistry({ address: labAddress });
  const cluster = await startCluster(dir, registry);
  const failures = await runSteps(cluster, wanted);
  if (failures > 0 && process.env["ISULAD_KEEP"] === "1") {
    console.log(`kept until this command is interrupted: ${dir}`);
    await new Promise(() => {});
  }
  for (const { machine } of [...cluster.nodes, cluster.control]) await machine.cut();
  return failures === 0 ? 0 : 1;
}

/** Runs this command in namespaces of its own, whose end is the end of all that it has started. */
async function outside(): Promise<number> {
  const unknown = wanted.filter((name) => steps[name] === undefined);
  if (unknown.length > 0)
    throw new Error(`unknown: ${unknown.join()}; the steps are ${Object.keys(steps).join(" ")}`);
  programs();
  mkdirSync(cache, { recursive: true });
  return runInLab("cluster", (dir) => {
    const nodes = runtimes.map((_, index) => `${basename(dir)}node${index + 1}`);
    for (const name of nodes) removeCgroups(name.replaceAll("-", "").toLowerCase());
    const machines = ["control", ...runtimes.map((_, index) => `node${index + 1}`)];
    for (const name of machines) removeCgroups(servicesOf(join(dir, name)));
  });
}

if (import.meta.main) {
  process.exitCode = values.inside === undefined ? await outside() : await inside(values.inside);
}
