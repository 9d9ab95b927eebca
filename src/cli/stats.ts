// Implements isulad-ts stats and top: show containers' resource usage once or repeatedly.
import { defineCommand } from "citty";
import { setTimeout as sleep } from "node:timers/promises";
import { toBigInt } from "../base/int64.ts";
import { runtime } from "../proto/messages.js";
import type { ContainerStats, UInt64Value } from "../proto/types.ts";
import type { Client } from "./client.ts";
import { catchInterrupts } from "./interrupts.ts";
import type { Lookup } from "./lookup.ts";
import { repeatable, UsageError } from "./options.ts";
import {
  containerOperand,
  hostArg,
  podArg,
  showsFullIds,
  outputArg,
  printJson,
  secondsOf,
  truncArg,
  withClient,
} from "./daemon_command.ts";
import { jsonForm, protoJson, shortId, size, table } from "./text.ts";

/** Longer than the daemon caches its samples (1 s). */
const betweenMs = 1_100;

const whichArgs = {
  container: {
    ...containerOperand,
    required: false,
    ...repeatable,
  },
  ...podArg,
  ...truncArg,
} as const;

export const stats = defineCommand({
  meta: { description: "Show the resource usage of running containers" },
  args: { ...whichArgs, ...outputArg, ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const which = await chosen(find, args);
      const before = await readStats(client, which);
      await sleep(betweenMs);
      const now = await readStats(client, which);
      if (args.output === "json") {
        const response = runtime.v1.ListContainerStatsResponse.fromObject({ stats: now });
        printJson(protoJson(runtime.v1.ListContainerStatsResponse.toObject(response, jsonForm)));
      } else process.stdout.write(statsTable(usagesOf(before, now), showsFullIds(args)));
    }),
});

export const top = defineCommand({
  meta: { description: "Show the resource usage of running containers repeatedly, busiest first" },
  args: {
    ...whichArgs,
    delay: {
      type: "string",
      alias: "d",
      default: "2",
      valueHint: "seconds",
      description: "Delay between two tables",
    },
    iterations: {
      type: "string",
      alias: "n",
      valueHint: "count",
      description: "Exit after this many tables",
    },
    ...hostArg,
  },
  run: async ({ args }) => {
    const delayS = secondsOf(args.delay, "--delay");
    if (delayS < 1 || delayS > 3600) throw new UsageError("--delay takes 1 to 3600 seconds");
    const tables = args.iterations === undefined ? Infinity : countOf(args.iterations);
    using interrupts = catchInterrupts();
    return await withClient(args, async (client, find) => {
      const which = await chosen(find, args);
      let before = await readStats(client, which);
      for (let shown = 0; shown < tables; shown++) {
        const waitMs = shown === 0 ? betweenMs : Math.max(betweenMs, delayS * 1000);
        await sleep(waitMs, undefined, { signal: interrupts.signal }).catch(() => {});
        if (interrupts.signal.aborted) break; // the normal end
        const now = await readStats(client, which);
        const usages = usagesOf(before, now).sort((a, b) => (b.cores ?? 0) - (a.cores ?? 0));
        const home = process.stdout.isTTY ? "\u001b[H\u001b[J" : "";
        process.stdout.write(`${home}${statsTable(usages, showsFullIds(args))}`);
        before = now;
      }
      return 0;
    });
  },
});

function countOf(text: string): number {
  const count = /^\d{1,9}$/.test(text) ? Number(text) : 0;
  if (count > 0) return count;
  throw new UsageError(`--iterations takes a number of tables, not "${text}"`);
}

/** Ids of containers; none: all, or all of the pod. */
type Which = { ids: readonly string[]; podId: string | undefined };

async function chosen(find: Lookup, args: { _: string[]; pod?: string | undefined }) {
  const found = await Promise.all(args._.map((text) => find.container(text)));
  const podId = args.pod === undefined ? undefined : (await find.pod(args.pod)).id;
  return { ids: found.map(({ id }) => id), podId };
}

/** @throws CriError FAILED_PRECONDITION for an exited container. */
async function readStats(client: Client, { ids, podId }: Which): Promise<ContainerStats[]> {
  if (ids.length === 0) {
    const filter = podId === undefined ? undefined : { pod_sandbox_id: podId };
    return (await client.ListContainerStats({ filter })).stats;
  }
  const answers = await Promise.all(ids.map((id) => client.ContainerStats({ container_id: id })));
  return answers.flatMap(({ stats }) => stats ?? []);
}

/** A container's stats with its CPU usage in cores; undefined: not known yet. */
type Usage = { stats: ContainerStats; cores: number | undefined };

/** Computes CPU usage between two answers; for containers only in the second, uses the daemon's rate. */
export function usagesOf(before: ContainerStats[], now: ContainerStats[]): Usage[] {
  const earlier = new Map(before.map((stats) => [stats.attributes?.id, stats.cpu]));
  return now.map((stats) => {
    const [from, to] = [earlier.get(stats.attributes?.id), stats.cpu];
    const passed = Number(toBigInt(to?.timestamp) - toBigInt(from?.timestamp));
    const used = (cpu: ContainerStats["cpu"]) => toBigInt(cpu?.usage_core_nano_seconds?.value);
    if (from && passed > 0) return { stats, cores: Number(used(to) - used(from)) / passed };
    const rate = to?.usage_nano_cores?.value;
    return { stats, cores: rate ? Number(toBigInt(rate)) / 1e9 : undefined };
  });
}

export function statsTable(usages: readonly Usage[], fullIds: boolean): string {
  const header = ["CONTAINER", "NAME", "CPU %", "MEM", "DISK", "INODES", "SWAP"];
  const bytes = (value: UInt64Value | null | undefined) => (value ? size(value.value) : "-");
  const rows = usages.map(({ stats: { attributes, memory, writable_layer, swap }, cores }) => [
    fullIds ? (attributes?.id ?? "") : shortId(attributes?.id ?? ""),
    attributes?.metadata?.name ?? "",
    cores === undefined ? "-" : (cores * 100).toFixed(2),
    bytes(memory?.working_set_bytes),
    bytes(writable_layer?.used_bytes),
    writable_layer?.inodes_used ? String(toBigInt(writable_layer.inodes_used.value)) : "-",
    bytes(swap?.swap_usage_bytes),
  ]);
  return table([header, ...rows]);
}
