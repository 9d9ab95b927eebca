// Changes a container's limits, and reads them as the kernel, CRI and the bundle have them.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { LinuxContainerResources } from "../../src/proto/types.ts";
import type { Daemon } from "../harness.ts";
import { isV2 } from "../host.ts";

export const mib = (count: number) => toLong(count << 20);

const files = isV2
  ? ["memory.max", "cpu.weight", "cpu.max"]
  : [
      "memory/memory.limit_in_bytes",
      "cpu/cpu.shares",
      "cpu/cpu.cfs_quota_us",
      "cpu/cpu.cfs_period_us",
    ];

export class Limits {
  readonly #daemon: Daemon;

  constructor(daemon: Daemon) {
    this.#daemon = daemon;
  }

  async update(container_id: string, linux: LinuxContainerResources): Promise<void> {
    await this.#daemon.client.UpdateContainerResources({ container_id, linux });
  }

  /** Returns the limits that the container sees. */
  async kernel(id: string) {
    // CPUs not of the cgroup's file: under systemd the controller comes with its first limit.
    const allowed = "grep Cpus_allowed_list /proc/self/status";
    const cat = files.map((file) => `echo $(cat /sys/fs/cgroup/${file})`).join("; ");
    const { stdout } = await this.#daemon.exec(id, `${allowed}; ${cat}`);
    const [cpus = "", memory = "", shares = "", ...quota] = stdout.trimEnd().split("\n");
    return { memory, shares, cpus: cpus.split(/\s+/)[1], quota: quota.join(" ") };
  }

  async reported(id: string): Promise<Record<string, string>> {
    const { resources } = await this.#daemon.status(id);
    return JSON.parse(JSON.stringify(resources?.linux ?? {})) as Record<string, string>;
  }

  /** Returns the memory limit in the container's bundle. */
  bundle(id: string): number | undefined {
    const path = join(this.#daemon.dir, "graph/containers", id, "config.json");
    const spec = JSON.parse(readFileSync(path, "utf8")) as {
      linux: { resources: { memory?: { limit: number } } };
    };
    return spec.linux.resources.memory?.limit;
  }
}
