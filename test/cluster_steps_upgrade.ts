// Runs an upgrade of isulad-ts on a node of the test cluster while its pods serve requests and are probed.
import { readlinkSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { ClusterNode } from "./cluster_node.ts";
import {
  type Cluster,
  eventually,
  expect,
  inNamespace,
  checkUnchanged,
  readiness,
  readyPods,
  service,
  workload,
} from "./cluster_pods.ts";
import { victimOf } from "./cluster_steps_disturb.ts";
import { executable } from "./harness.ts";
import { buildNext } from "./next_build.ts";

/** Requests without a pause between them, each by a connection of its own, to addresses in turn. */
class Load implements AsyncDisposable {
  requests = 0;
  readonly failures: string[] = [];
  #isOver = false;
  readonly #workers: Promise<void>[];

  constructor(urls: string[], workers: number) {
    this.#workers = Array.from({ length: workers }, (_, index) => this.#work(urls, index));
  }

  async #work(urls: string[], first: number): Promise<void> {
    for (let count = first; !this.#isOver; count++) {
      const url = urls[count % urls.length]!;
      const options = { keepalive: false, signal: AbortSignal.timeout(10_000) };
      const error = await fetch(url, options).then(
        async (answer) => {
          await answer.text();
          return answer.ok ? undefined : String(answer.status);
        },
        (error: unknown) => String(error),
      );
      this.requests++;
      if (error !== undefined) this.failures.push(`${new Date().toISOString()} ${url}: ${error}`);
      await sleep(10);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.#workers);
  }
}

/** Returns the files that the machine's processes of isulad-ts run. */
function programsOf({ machine }: ClusterNode): string[] {
  const files = machine.processes().map((pid) => {
    try {
      return readlinkSync(`/proc/${pid}/exe`);
    } catch {
      return ""; // It ended meanwhile.
    }
  });
  return files.filter((file) => file.includes("/isulad-ts"));
}

/** Replaces the executable and restarts the daemon; returns how long calls were refused. */
async function upgradeTo(node: ClusterNode, build: string): Promise<number> {
  node.replaceExecutable(build);
  const startMs = Date.now();
  await node.daemon.stop();
  await node.startDaemon();
  const tookMs = Date.now() - startMs;
  await eventually("daemon and monitor run the new build", () => {
    const programs = programsOf(node);
    const isNew = programs.length >= 2 && programs.every((file) => !file.includes("(deleted)"));
    return Promise.resolve(isNew);
  });
  return tookMs;
}

/** Upgrades and downgrades: no request to the node's pods fails, no container restarts. */
export function upgrade(cluster: Cluster): Promise<string> {
  const namespace = "upgrade";
  return inNamespace(cluster, namespace, async () => {
    const { control, dir } = cluster;
    const victim = victimOf(cluster);
    const next = join(dir, "isulad-ts-next");
    buildNext(next);
    const livenessProbe = {
      exec: { command: ["true"] },
      periodSeconds: 2,
      failureThreshold: 1,
      timeoutSeconds: 20,
    };
    const meta = { name: "web", namespace };
    const pods = { node: victim.name, container: { ...readiness, livenessProbe } };
    await control.apply(
      workload(cluster, "Deployment", meta, { pods, spec: { replicas: 4 } }),
      service(meta, { type: "NodePort" }),
    );
    const before = await readyPods(cluster, namespace, 4);
    const path = `/api/v1/namespaces/${namespace}/services/web`;
    const { spec } = await control.get<{ spec: { ports: { nodePort: number }[] } }>(path);
    const byService = `http://${victim.machine.address}:${spec.ports[0]!.nodePort}/`;
    await eventually("the service answers", async () => (await fetch(byService)).ok);
    const downs: number[] = [];
    await using load = new Load([...before.map(({ ip }) => `http://${ip}:8080/`), byService], 5);
    for (const build of [next, executable]) {
      downs.push(await upgradeTo(victim, build));
      await sleep(10_000);
      // A pod that is made after the upgrade shows that the new build works.
      const replicas = 4 + downs.length;
      await control.kubectl(["-n", namespace, "scale", "deployment/web", `--replicas=${replicas}`]);
      await readyPods(cluster, namespace, replicas);
    }
    await checkUnchanged(cluster, namespace, before);
    const { requests, failures } = load;
    expect(failures.length === 0, `${failures.length} of ${requests} failed: ${failures[0]}`);
    const seconds = downs.map((ms) => (ms / 1000).toFixed(1)).join(" and ");
    return `${requests} requests, none failed; the daemon was away for ${seconds} s; 0 restarts`;
  });
}
