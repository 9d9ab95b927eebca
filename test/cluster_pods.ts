// Makes the objects that the steps of the test cluster apply, and waits for what becomes of them.
import { setTimeout as sleep } from "node:timers/promises";
import type { ClusterNode } from "./cluster_node.ts";
import type { ControlPlane } from "./cluster_control.ts";

/** What a step works with. */
export type Cluster = {
  control: ControlPlane;
  nodes: ClusterNode[];
  /** Reference of the image with busybox. */
  image: string;
  /** Folder of the run. */
  dir: string;
  /** Folder that outlives runs. */
  cache: string;
  minutes: number;
  pods: number;
};

/** Waits for a condition, which a busy machine may reach late. @throws Error naming it. */
export async function eventually(
  what: string,
  holds: () => Promise<boolean>,
  withinMs = 240_000,
): Promise<void> {
  const end = performance.now() + withinMs;
  let cause: unknown;
  for (;;) {
    try {
      if (await holds()) return;
    } catch (error) {
      cause = error;
    }
    if (performance.now() > end) throw new Error(`timed out waiting until ${what}`, { cause });
    await sleep(500);
  }
}

export function expect(holds: boolean, what: string): void {
  if (!holds) throw new Error(what);
}

/** Serves its host name at port 8080, and ends at once when told to. */
export const webScript =
  "mkdir -p /www; hostname >/www/index.html; trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait";

type PodOptions = {
  labels: Record<string, string>;
  script?: string;
  node?: string;
  /** Additional fields of the pod and of its container "app". */
  spec?: object;
  container?: object;
};

export function podTemplate(cluster: Cluster, options: PodOptions): object {
  const { labels, script = webScript, node, spec = {}, container = {} } = options;
  const app = {
    name: "app",
    image: cluster.image,
    command: ["sh", "-c", script],
    ...container,
  };
  const selector = node === undefined ? {} : { "kubernetes.io/hostname": node };
  return {
    metadata: { labels },
    spec: {
      terminationGracePeriodSeconds: 5,
      nodeSelector: selector,
      containers: [app],
      ...spec,
    },
  };
}

export const readiness = {
  readinessProbe: { httpGet: { path: "/", port: 8080 }, periodSeconds: 2, timeoutSeconds: 5 },
};

type Meta = { name: string; namespace: string };

export function pod(cluster: Cluster, meta: Meta, options: Omit<PodOptions, "labels">): object {
  const labels = { app: meta.name };
  const template = podTemplate(cluster, { ...options, labels }) as { spec: object };
  return { apiVersion: "v1", kind: "Pod", metadata: { ...meta, labels }, spec: template.spec };
}

/** Makes an object of apps/v1 whose pods have the label app=NAME. */
export function workload(
  cluster: Cluster,
  kind: "Deployment" | "DaemonSet" | "StatefulSet",
  meta: Meta,
  options: { pods?: Omit<PodOptions, "labels">; spec?: object } = {},
): object {
  const labels = { app: meta.name };
  const template = podTemplate(cluster, { ...options.pods, labels });
  const spec = { selector: { matchLabels: labels }, template, ...options.spec };
  return { apiVersion: "apps/v1", kind, metadata: meta, spec };
}

/** Makes a service for the pods with the label app=NAME. */
export function service(meta: Meta, spec: object = {}): object {
  const ports = [{ port: 80, targetPort: 8080 }];
  const selector = { app: meta.name };
  return { apiVersion: "v1", kind: "Service", metadata: meta, spec: { selector, ports, ...spec } };
}

export type PodRow = {
  name: string;
  uid: string;
  node: string;
  ip: string;
  phase: string;
  ready: boolean;
  restarts: number;
  containerIds: string[];
  /** How its containers ended that were restarted, as JSON. */
  ends: string[];
};

type ApiPod = {
  metadata: { name: string; uid: string; deletionTimestamp?: string };
  spec: { nodeName?: string };
  status: {
    phase: string;
    podIP?: string;
    conditions?: { type: string; status: string }[];
    containerStatuses?: {
      restartCount: number;
      containerID?: string;
      lastState?: { terminated?: object };
    }[];
  };
};

/** Lists the pods of a namespace that are not being deleted. */
export async function podsIn(cluster: Cluster, namespace: string, app = ""): Promise<PodRow[]> {
  const query = app === "" ? "" : `?labelSelector=app%3D${app}`;
  const path = `/api/v1/namespaces/${namespace}/pods${query}`;
  const pods = await cluster.control.list<ApiPod>(path);
  return pods.filter(({ metadata }) => metadata.deletionTimestamp === undefined).map(rowOf);
}

function rowOf({ metadata, spec, status }: ApiPod): PodRow {
  const containers = status.containerStatuses ?? [];
  const conditions = status.conditions ?? [];
  return {
    name: metadata.name,
    uid: metadata.uid,
    node: spec.nodeName ?? "",
    ip: status.podIP ?? "",
    phase: status.phase,
    ready: conditions.some(({ type, status }) => type === "Ready" && status === "True"),
    restarts: containers.reduce((sum, { restartCount }) => sum + restartCount, 0),
    containerIds: containers.map(({ containerID }) => containerID ?? ""),
    ends: containers
      .flatMap(({ lastState }) => lastState?.terminated ?? [])
      .map((one) => JSON.stringify(one)),
  };
}

/** Returns what the API knows of a pod's restarts: how its containers ended, and its events. */
export async function restartsOf(
  cluster: Cluster,
  namespace: string,
  { name, ends }: PodRow,
): Promise<string> {
  const events = await cluster.control.kubectl(["-n", namespace, "events", "--for", `pod/${name}`]);
  return `${ends.join()}\n${events}`;
}

/** Checks that pods kept their containers, and are ready. @throws Error with restartsOf() of one that did not. */
export async function checkUnchanged(
  cluster: Cluster,
  namespace: string,
  before: PodRow[],
): Promise<void> {
  const after = await podsIn(cluster, namespace);
  for (const was of before) {
    const is = after.find(({ uid }) => uid === was.uid);
    if (is === undefined) throw new Error(`${was.name} was replaced`);
    const isSame =
      is.containerIds.join() === was.containerIds.join() && is.restarts === was.restarts;
    if (isSame && is.ready) continue;
    // A container that was restarted need not be ready again: its restart is the reason.
    const problem = isSame ? `${is.name} is not ready` : `a container of ${is.name} was restarted`;
    throw new Error(`${problem}: ${await restartsOf(cluster, namespace, is)}`);
  }
}

/** Waits until exactly `count` pods exist and are ready, and returns them. */
export async function readyPods(
  cluster: Cluster,
  namespace: string,
  count: number,
  app = "",
  withinMs?: number,
): Promise<PodRow[]> {
  let rows: PodRow[] = [];
  const what = () =>
    rows.map(({ name, node, phase, ready }) => `${name} ${node} ${phase} ${ready}`).join(", ");
  try {
    const holds = async () => {
      rows = await podsIn(cluster, namespace, app);
      return rows.length === count && rows.every(({ ready }) => ready);
    };
    await eventually(`${count} pods of ${namespace} ${app} are ready`, holds, withinMs);
  } catch (cause) {
    throw new Error(`there are: ${what()}`, { cause });
  }
  return rows;
}

/** Runs a step in a namespace of its own, which is deleted afterwards and must go. */
export async function inNamespace(
  cluster: Cluster,
  name: string,
  step: () => Promise<string>,
): Promise<string> {
  const { control } = cluster;
  await control.apply({ apiVersion: "v1", kind: "Namespace", metadata: { name } });
  // A pod that is made before its namespace has an account is refused.
  await eventually(`${name} has an account`, async () => {
    const answer = await control.fetch(`/api/v1/namespaces/${name}/serviceaccounts/default`);
    return answer.ok;
  });
  const remove = () =>
    control.kubectl(["delete", "namespace", name, "--timeout=240s"], "", 250_000);
  try {
    const result = await step();
    await remove();
    return result;
  } catch (error) {
    // A step that failed must not burden the next one; what it deletes may be what failed.
    await remove().catch(() => {});
    throw error;
  }
}
