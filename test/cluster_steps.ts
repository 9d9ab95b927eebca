// Runs workloads on the test cluster: Deployments, Services, a DaemonSet, Jobs and a StatefulSet.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { ClusterNode } from "./cluster_node.ts";
import {
  type Cluster,
  eventually,
  expect,
  inNamespace,
  podsIn,
  pod,
  podTemplate,
  readiness,
  readyPods,
  service,
  workload,
} from "./cluster_pods.ts";

const spread = {
  topologySpreadConstraints: [
    {
      maxSkew: 1,
      topologyKey: "kubernetes.io/hostname",
      whenUnsatisfiable: "DoNotSchedule",
      labelSelector: { matchLabels: { app: "web" } },
    },
  ],
};

/** Scales a Deployment up and down, and rolls it to another template. */
export function deployment(cluster: Cluster): Promise<string> {
  const namespace = "deployment";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    const pods = { spec: spread, container: readiness };
    const meta = { name: "web", namespace };
    await control.apply(workload(cluster, "Deployment", meta, { pods, spec: { replicas: 6 } }));
    const first = await readyPods(cluster, namespace, 6);
    const used = new Set(first.map(({ node }) => node));
    expect(used.size === nodes.length, `pods run on ${[...used].join()} only`);
    await control.kubectl(["-n", namespace, "scale", "deployment/web", "--replicas=3"]);
    await readyPods(cluster, namespace, 3);
    await control.kubectl(["-n", namespace, "rollout", "restart", "deployment/web"]);
    const words = ["-n", namespace, "rollout", "status", "deployment/web", "--timeout=240s"];
    await control.kubectl(words, "", 250_000);
    const second = await readyPods(cluster, namespace, 3);
    const stayed = second.filter(({ uid }) => first.some((one) => one.uid === uid));
    expect(stayed.length === 0, `${stayed.length} pods stayed in spite of the rollout`);
    return `6 pods on ${used.size} nodes, scaled to 3, rolled out anew`;
  });
}

/** Debian's busybox crashes with wget's own option for a timeout. */
const getPage = ["timeout", "10", "busybox", "wget", "-qO-"];

/** Calls pods from each node to each node, by their addresses, by a ClusterIP and by a node port. */
export function services(cluster: Cluster): Promise<string> {
  const namespace = "services";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    const meta = { name: "web", namespace };
    await control.apply(
      workload(cluster, "DaemonSet", meta, { pods: { container: readiness } }),
      service(meta, { type: "NodePort" }),
    );
    const pods = await readyPods(cluster, namespace, nodes.length);
    const { spec } = await control.get<{
      spec: { clusterIP: string; ports: { nodePort: number }[] };
    }>(`/api/v1/namespaces/${namespace}/services/web`);
    const names = pods.map(({ name }) => name).sort();
    let calls = 0;
    const reached = async (what: string, call: () => Promise<string>) => {
      const seen = new Set<string>();
      await eventually(
        `${what} reaches ${names.join()}`,
        async () => {
          calls++;
          seen.add((await call()).trim());
          return seen.size === names.length;
        },
        90_000,
      );
    };
    for (const from of pods) {
      const get = (url: string) =>
        control.kubectl(["-n", namespace, "exec", from.name, "--", ...getPage, url]);
      for (const to of pods) {
        const answer = await get(`http://${to.ip}:8080/`);
        expect(answer.trim() === to.name, `${from.name} → ${to.name} answered ${answer}`);
      }
      await reached(`ClusterIP from ${from.node}`, () => get(`http://${spec.clusterIP}/`));
    }
    for (const { machine, name } of nodes) {
      const url = `http://${machine.address}:${spec.ports[0]!.nodePort}/`;
      await reached(`the node port of ${name}`, async () => (await fetch(url)).text());
      const inside = `http://${spec.clusterIP}/`;
      await reached(`ClusterIP from the host ${name}`, async () => machine.run(...getPage, inside));
    }
    return `${pods.length ** 2} pairs of pods; ClusterIP from ${pods.length} pods and hosts, node ports: ${calls} calls`;
  });
}

/** Runs a DaemonSet and rolls it to another template. */
export function daemonSet(cluster: Cluster): Promise<string> {
  const namespace = "daemonset";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    const make = (generation: string) =>
      workload(
        cluster,
        "DaemonSet",
        { name: "agent", namespace },
        {
          pods: {
            container: { ...readiness, env: [{ name: "GENERATION", value: generation }] },
            spec: { hostNetwork: true, hostPID: true },
            script:
              "mkdir -p /www; echo $GENERATION >/www/index.html; exec httpd -f -p 8080 -h /www",
          },
        },
      );
    await control.apply(make("1"));
    await readyPods(cluster, namespace, nodes.length);
    await control.apply(make("2"));
    const words = ["-n", namespace, "rollout", "status", "daemonset/agent", "--timeout=240s"];
    await control.kubectl(words, "", 250_000);
    for (const { machine } of nodes) {
      const answer = await (await fetch(`http://${machine.address}:8080/`)).text();
      expect(answer.trim() === "2", `${machine.name} serves generation ${answer}`);
    }
    return `${nodes.length} pods with the host's network, replaced in a roll`;
  });
}

/** Runs Jobs: four completions, two at a time; and one that fails until its limit. */
export function job(cluster: Cluster): Promise<string> {
  const namespace = "job";
  return inNamespace(cluster, namespace, async () => {
    const { control } = cluster;
    const make = (name: string, script: string, spec: object) => {
      const once = { restartPolicy: "Never" };
      const template = podTemplate(cluster, { labels: { app: name }, script, spec: once });
      const metadata = { name, namespace };
      return { apiVersion: "batch/v1", kind: "Job", metadata, spec: { template, ...spec } };
    };
    await control.apply(
      make("works", "echo done", { completions: 4, parallelism: 2 }),
      make("fails", "exit 3", { backoffLimit: 1 }),
    );
    type Job = { status: { succeeded?: number; failed?: number; conditions?: { type: string }[] } };
    const get = (name: string) =>
      control.get<Job>(`/apis/batch/v1/namespaces/${namespace}/jobs/${name}`);
    const has = async (name: string, type: string) =>
      (await get(name)).status.conditions?.some((one) => one.type === type) ?? false;
    await eventually("the job is complete", () => has("works", "Complete"));
    await eventually("the other job failed", () => has("fails", "Failed"));
    const { succeeded } = (await get("works")).status;
    const { failed } = (await get("fails")).status;
    expect(succeeded === 4 && failed === 2, `${succeeded} succeeded, ${failed} failed`);
    const logs = await control.kubectl(["-n", namespace, "logs", "-l", "app=works"]);
    expect(logs === "done\n".repeat(4), `the logs are ${JSON.stringify(logs)}`);
    const pods = await podsIn(cluster, namespace, "fails");
    const failedPods = pods.filter(({ phase }) => phase === "Failed");
    expect(failedPods.length === 2, `${failedPods.length} pods are Failed`);
    return "4 completions, 2 failures";
  });
}

/** Makes a volume that is a folder of a node. */
function localVolume({ name, machine }: ClusterNode) {
  const path = join(machine.dir, "volume");
  mkdirSync(path, { recursive: true });
  const key = "kubernetes.io/hostname";
  const terms = [{ matchExpressions: [{ key, operator: "In", values: [name] }] }];
  const spec = {
    capacity: { storage: "1Gi" },
    accessModes: ["ReadWriteOnce"],
    storageClassName: "local",
    local: { path },
    nodeAffinity: { required: { nodeSelectorTerms: terms } },
  };
  return { apiVersion: "v1", kind: "PersistentVolume", metadata: { name: `on-${name}` }, spec };
}

/** Runs a StatefulSet with a local volume on each node; a replaced pod finds its data. */
export function statefulSet(cluster: Cluster): Promise<string> {
  const namespace = "statefulset";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    const storageClass = {
      apiVersion: "storage.k8s.io/v1",
      kind: "StorageClass",
      metadata: { name: "local" },
      provisioner: "kubernetes.io/no-provisioner",
      volumeBindingMode: "WaitForFirstConsumer",
    };
    const volumes = nodes.map(localVolume);
    const claim = {
      metadata: { name: "data" },
      spec: {
        accessModes: ["ReadWriteOnce"],
        storageClassName: "local",
        resources: { requests: { storage: "1Gi" } },
      },
    };
    const set = workload(
      cluster,
      "StatefulSet",
      { name: "db", namespace },
      {
        pods: {
          script: "echo $HOSTNAME >>/data/boots; trap 'exit 0' TERM; sleep infinity & wait",
          container: {
            volumeMounts: [{ name: "data", mountPath: "/data" }],
            readinessProbe: {
              exec: { command: ["test", "-s", "/data/boots"] },
              timeoutSeconds: 10,
            },
          },
        },
        spec: { replicas: nodes.length, serviceName: "db", volumeClaimTemplates: [claim] },
      },
    );
    await control.apply(storageClass, ...volumes, set);
    const first = await readyPods(cluster, namespace, nodes.length);
    for (const { name } of first)
      await control.kubectl(["-n", namespace, "delete", "pod", name, "--wait=true"]);
    const second = await readyPods(cluster, namespace, nodes.length);
    for (const { name, node, uid } of second) {
      expect(
        first.every((one) => one.uid !== uid),
        `${name} is still the first pod`,
      );
      const was = first.find((one) => one.name === name)!.node;
      expect(was === node, `${name} moved from ${was} to ${node}`);
      const machine = nodes.find((one) => one.name === node)!.machine;
      const boots = readFileSync(join(machine.dir, "volume/boots"), "utf8");
      expect(boots === `${name}\n${name}\n`, `the volume of ${name} has ${JSON.stringify(boots)}`);
    }
    const names = volumes.map(({ metadata }) => metadata.name);
    await control.kubectl(["-n", namespace, "delete", "statefulset/db"]);
    await control.kubectl(["-n", namespace, "delete", "pvc", "--all"]);
    await control.kubectl(["delete", "pv", ...names]);
    return `${nodes.length} pods, each replaced, with their data`;
  });
}

/** The first pod of a cluster: is everything there that later steps need? */
export function firstPods(cluster: Cluster): Promise<string> {
  const namespace = "first";
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    for (const { name } of nodes) {
      const options = { node: name, container: readiness };
      await control.apply(pod(cluster, { name: `on-${name}`, namespace }, options));
    }
    const pods = await readyPods(cluster, namespace, nodes.length);
    for (const { name, ip } of pods) {
      const answer = await (await fetch(`http://${ip}:8080/`)).text();
      expect(answer.trim() === name, `${name} at ${ip} answered ${answer}`);
    }
    return pods.map(({ name, ip }) => `${name} ${ip}`).join(", ");
  });
}
