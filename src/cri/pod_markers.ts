// Keeps a marker cgroup for each pod, by which cAdvisor finds the pod's network (containerd_api.ts). For each sandbox,
// cAdvisor counts the interfaces of one process, whose pid it asks for once: when it sees a cgroup with the sandbox's
// id in its name. A pod has no process of its own here, so the marker stands for the process of a container; when that
// process ends, a marker with another name replaces this one, and cAdvisor asks for the pid again.
import { mkdirSync, readdirSync, rmdirSync } from "node:fs";
import { join } from "node:path";
import { messageOf } from "../base/errors.ts";
import { isGone } from "../node/cgroup.ts";
import type { Sandbox } from "../state/sandbox.ts";
import { hasCgroup } from "./cgroups.ts";
import type { Context } from "./context.ts";
import { containersOf } from "./sandbox_lookup.ts";

/**
 * Around a number and the sandbox's id. The kubelet's /stats/summary takes the id of a pod from a name that ends
 * in "-ID.scope" (extractIDFromCgroupPath). No unit has the name, so systemd ignores the cgroup.
 */
const prefix = "isulad-pod-";
const suffix = ".scope";

type Marker = { pid: number; folders: string[] };

export class PodMarkers {
  readonly #context: Context;
  /** By sandbox. */
  readonly #markers = new Map<string, Marker>();
  /** The number of each sandbox's last marker. */
  readonly #numbers = new Map<string, number>();
  readonly #changed = new Set<string>();

  constructor(context: Context) {
    this.#context = context;
  }

  /** Removes the markers of an earlier daemon, and marks the pods that have a process. */
  start(): void {
    for (const sandbox of this.#context.sandboxes.list()) {
      const { id } = sandbox;
      for (const folder of foldersOf(this.#context, sandbox)) {
        for (const number of numbersIn(folder, id)) {
          this.#numbers.set(id, Math.max(number, this.#numbers.get(id) ?? 0));
          this.#attempt(id, () => rmdirSync(join(folder, markerName(number, id))));
        }
      }
      this.changed(id);
    }
  }

  /** Follows a change of the pod or of its containers, once for all changes of this turn. */
  changed(sandboxId: string): void {
    this.#changed.add(sandboxId);
    if (this.#changed.size === 1) setImmediate(() => this.#followAll());
  }

  /** Returns the pid of a process in the pod's network namespace; undefined while there is none. */
  processOf(sandboxId: string): number | undefined {
    const sandbox = this.#context.sandboxes.listed(sandboxId);
    if (sandbox === undefined || sandbox.torndown) return undefined;
    if (sandbox.pause !== undefined) return sandbox.pause.pid || undefined;
    const running = containersOf(this.#context, sandboxId).flatMap(({ phase }) =>
      phase.phase === "running" ? [phase] : [],
    );
    const marked = this.#markers.get(sandboxId)?.pid;
    if (running.some(({ pid }) => pid === marked)) return marked;
    // The process that started first is the most likely to run as long as the pod.
    running.sort((a, b) => Number(BigInt(a.startedAtNs) - BigInt(b.startedAtNs)));
    return running[0]?.pid;
  }

  #followAll(): void {
    const ids = [...this.#changed];
    this.#changed.clear();
    for (const id of ids) this.#attempt(id, () => this.#follow(id));
  }

  #follow(id: string): void {
    const pid = this.processOf(id);
    const marker = this.#markers.get(id);
    if (pid !== marker?.pid) {
      for (const folder of marker?.folders ?? []) this.#attempt(id, () => rmdirSync(folder));
      this.#markers.delete(id);
      const sandbox = this.#context.sandboxes.listed(id);
      if (pid !== undefined && sandbox !== undefined && needsMarker(sandbox))
        this.#mark(sandbox, pid);
    }
    if (this.#context.sandboxes.listed(id) === undefined) this.#numbers.delete(id);
  }

  #mark(sandbox: Sandbox, pid: number): void {
    const { id } = sandbox;
    const number = (this.#numbers.get(id) ?? 0) + 1;
    this.#numbers.set(id, number);
    const name = markerName(number, id);
    const folders = foldersOf(this.#context, sandbox).map((folder) => join(folder, name));
    this.#markers.set(id, { pid, folders });
    for (const folder of folders) this.#attempt(id, () => mkdirSync(folder));
  }

  /** Best effort: without its marker a pod only lacks network metrics. */
  #attempt(sandbox: string, change: () => void): void {
    try {
      change();
    } catch (error) {
      if (isGone(error)) return; // the kubelet makes no cgroup for the pod in this hierarchy, or removed it
      const fields = { sandbox, error: messageOf(error) };
      const text =
        "changing a pod's marker cgroup failed: cAdvisor has no network metrics of the pod";
      this.#context.log.warn(text, fields);
    }
  }
}

/** A pause container's cgroup has the sandbox's id, and so has the cgroup of a pod without a kubelet. */
function needsMarker({ pause, cgroup }: Sandbox): boolean {
  return pause === undefined && cgroup.parent !== "";
}

function markerName(number: number, id: string): string {
  return `${prefix}${number}-${id}${suffix}`;
}

function numbersIn(folder: string, id: string): number[] {
  try {
    const names = readdirSync(folder).filter(
      (name) => name.startsWith(prefix) && name.endsWith(`-${id}${suffix}`),
    );
    return names.map((name) => Number.parseInt(name.slice(prefix.length), 10));
  } catch (error) {
    if (isGone(error)) return [];
    throw error;
  }
}

function foldersOf(context: Context, sandbox: Sandbox): string[] {
  const { id, cgroup } = sandbox;
  if (!hasCgroup(context, sandbox)) return []; // of an earlier boot
  return [...new Set(Object.values(context.cgroup.podCgroup(cgroup.parent, id).paths))];
}
