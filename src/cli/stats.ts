// Implements isulad-ts stats and statsp: show the resource usage of containers or pods, once or repeatedly.
import { setTimeout as sleep } from "node:timers/promises";
import { defineCommand } from "citty";
import { toBigInt } from "../base/int64.ts";
import { runtime } from "../proto/messages.js";
import type { ContainerStats, CpuUsage, PodSandboxStats, UInt64Value } from "../proto/types.ts";
import type { Client } from "./client.ts";
import {
  containerOperand,
  hostArg,
  podArg,
  podOperand,
  secondsOf,
  showsFullIds,
  truncArg,
  withClient,
} from "./daemon_command.ts";
import { labelArg, labelsOf } from "./filters.ts";
import { checkFormat, type Format, screenTable, show, tableFormatArgs } from "./format.ts";
import { catchInterrupts } from "./interrupts.ts";
import type { Lookup } from "./lookup.ts";
import { repeatable, UsageError } from "./options.ts";
import { print } from "./output.ts";
import { jsonForm, protoJson, shortId, size } from "./text.ts";

/** Time between the two samples: longer than the daemon caches a sample (1 s). */
const betweenMs = 1_100;

const viewArgs = {
  watch: { type: "boolean", alias: "w", description: "Repeat until interrupted, busiest first" },
  seconds: {
    type: "string",
    alias: "s",
    default: "1",
    valueHint: "seconds",
    description: "Time over which the CPU usage is measured",
  },
  ...labelArg,
  ...truncArg,
  ...tableFormatArgs,
  ...hostArg,
} as const;

export const stats = defineCommand({
  meta: { description: "Show the resource usage of running containers" },
  args: {
    container: { ...containerOperand, required: false, ...repeatable },
    ...podArg,
    ...viewArgs,
  },
  run: ({ args, rawArgs }) =>
    withClient(args, async (client, find) => {
      const labels = labelsOf(rawArgs);
      const which = await chosen(find, args);
      return await watched(args, {
        read: () => readStats(client, { ...which, labels }),
        keyOf: ({ attributes }) => attributes?.id,
        cpuOf: ({ cpu }) => cpu,
        json: (now) =>
          runtime.v1.ListContainerStatsResponse.toObject({ stats: now } as never, jsonForm),
        table: (usages) => statsTable(usages, showsFullIds(args)),
      });
    }),
});

export const statsp = defineCommand({
  meta: { description: "Show the resource usage of ready pods" },
  args: { pod: { ...podOperand, required: false, ...repeatable }, ...viewArgs },
  run: ({ args, rawArgs }) =>
    withClient(args, async (client, find) => {
      const filter = { label_selector: labelsOf(rawArgs) };
      const found = await Promise.all(args._.map((text) => find.pod(text)));
      const ids = new Set(found.map(({ id }) => id));
      return await watched<PodSandboxStats>(args, {
        read: async () => {
          const listed = (await client.ListPodSandboxStats({ filter })).stats;
          return ids.size === 0
            ? listed
            : listed.filter((one) => ids.has(one.attributes?.id ?? ""));
        },
        keyOf: ({ attributes }) => attributes?.id,
        cpuOf: ({ linux }) => linux?.cpu,
        json: (now) =>
          runtime.v1.ListPodSandboxStatsResponse.toObject({ stats: now } as never, jsonForm),
        table: (usages) => podStatsTable(usages, showsFullIds(args)),
      });
    }),
});

type View<Stats> = {
  read(): Promise<Stats[]>;
  keyOf(stats: Stats): string | null | undefined;
  cpuOf(stats: Stats): CpuUsage | null | undefined;
  json(now: Stats[]): object;
  table(usages: readonly Usage<Stats>[]): string;
};

/** Stats with their CPU usage in cores; undefined: not known yet. */
export type Usage<Stats> = { stats: Stats; cores: number | undefined };

/** Shows the usage between two samples, once or until interrupted. */
async function watched<Stats>(
  args: Format & { seconds: string; watch?: boolean | undefined },
  view: View<Stats>,
): Promise<number> {
  checkFormat(args);
  const seconds = secondsOf(args.seconds, "--seconds");
  if (seconds < 1 || seconds > 3600) throw new UsageError("--seconds takes 1 to 3600");
  using interrupts = args.watch ? catchInterrupts() : undefined;
  const signal = interrupts?.signal;
  let before = await view.read();
  do {
    await sleep(Math.max(betweenMs, seconds * 1000), undefined, { signal }).catch(() => {});
    if (signal?.aborted) {
      if (process.stdout.isTTY) print(""); // the terminal has shown ^C
      break;
    }
    const now = await view.read();
    const usages = usagesOf(before, now, view);
    if (args.watch) usages.sort((a, b) => (b.cores ?? 0) - (a.cores ?? 0));
    await show(args, protoJson(view.json(now)), () => {
      const table = view.table(usages);
      return args.watch && process.stdout.isTTY ? redrawn(table, process.stdout.rows) : table;
    });
    before = now;
  } while (args.watch);
  return 0;
}

const rowsDefault = 24;

/** Draws over the last table: nothing is cleared before it is replaced, and the header stays on the screen. */
export function redrawn(table: string, rows = rowsDefault): string {
  const lines = table.trimEnd().split("\n");
  const room = rows - 1; // the cursor's line
  const isCut = lines.length > room;
  const shown = isCut ? lines.slice(0, Math.max(1, room - 1)) : lines;
  if (isCut) shown.push(`and ${lines.length - shown.length} more`);
  return `\u001b[H${shown.map((line) => `${line}\u001b[K\n`).join("")}\u001b[J`;
}

/** Ids of containers; none: all, or all of the pod. */
type Which = { ids: readonly string[]; podId: string | undefined };

async function chosen(find: Lookup, args: { _: string[]; pod?: string | undefined }) {
  const found = await Promise.all(args._.map((text) => find.container(text)));
  const podId = args.pod === undefined ? undefined : (await find.pod(args.pod)).id;
  return { ids: found.map(({ id }) => id), podId };
}

/** @throws CriError FAILED_PRECONDITION for an exited container. */
async function readStats(
  client: Client,
  { ids, podId, labels }: Which & { labels: Record<string, string> },
): Promise<ContainerStats[]> {
  if (ids.length === 0) {
    const filter = { pod_sandbox_id: podId, label_selector: labels };
    return (await client.ListContainerStats({ filter })).stats;
  }
  const answers = await Promise.all(ids.map((id) => client.ContainerStats({ container_id: id })));
  return answers.flatMap(({ stats }) => stats ?? []);
}

/** Computes CPU usage between two answers; for what is only in the second, uses the daemon's rate. */
export function usagesOf<Stats>(
  before: readonly Stats[],
  now: readonly Stats[],
  { keyOf, cpuOf }: Pick<View<Stats>, "keyOf" | "cpuOf">,
): Usage<Stats>[] {
  const earlier = new Map(before.map((stats) => [keyOf(stats), cpuOf(stats)]));
  const used = (cpu: CpuUsage | null | undefined) => toBigInt(cpu?.usage_core_nano_seconds?.value);
  return now.map((stats) => {
    const [from, to] = [earlier.get(keyOf(stats)), cpuOf(stats)];
    const passed = Number(toBigInt(to?.timestamp) - toBigInt(from?.timestamp));
    if (from && passed > 0) return { stats, cores: Number(used(to) - used(from)) / passed };
    const rate = to?.usage_nano_cores?.value;
    return { stats, cores: rate ? Number(toBigInt(rate)) / 1e9 : undefined };
  });
}

const bytes = (value: UInt64Value | null | undefined) => (value ? size(value.value) : "-");
const percent = (cores: number | undefined) =>
  cores === undefined ? "-" : (cores * 100).toFixed(2);

export function statsTable(usages: readonly Usage<ContainerStats>[], fullIds: boolean): string {
  const header = ["CONTAINER", "NAME", "CPU %", "MEM", "DISK", "INODES", "SWAP"];
  const rows = usages.map(({ stats: { attributes, memory, writable_layer, swap }, cores }) => [
    fullIds ? (attributes?.id ?? "") : shortId(attributes?.id ?? ""),
    attributes?.metadata?.name ?? "",
    percent(cores),
    bytes(memory?.working_set_bytes),
    bytes(writable_layer?.used_bytes),
    writable_layer?.inodes_used ? String(toBigInt(writable_layer.inodes_used.value)) : "-",
    bytes(swap?.swap_usage_bytes),
  ]);
  return screenTable(
    [header, ...rows],
    { dispensable: ["INODES", "SWAP"], narrow: ["CONTAINER", "DISK"] },
    fullIds,
  );
}

function podStatsTable(usages: readonly Usage<PodSandboxStats>[], fullIds: boolean): string {
  const header = ["POD ID", "NAME", "NAMESPACE", "CPU %", "MEM", "RECEIVED", "SENT", "PIDS"];
  const rows = usages.map(({ stats: { attributes, linux }, cores }) => {
    const { rx_bytes, tx_bytes } = linux?.network?.default_interface ?? {};
    const count = linux?.process?.process_count;
    return [
      fullIds ? (attributes?.id ?? "") : shortId(attributes?.id ?? ""),
      attributes?.metadata?.name ?? "",
      attributes?.metadata?.namespace ?? "",
      percent(cores),
      bytes(linux?.memory?.working_set_bytes),
      bytes(rx_bytes),
      bytes(tx_bytes),
      count ? String(toBigInt(count.value)) : "-",
    ];
  });
  return screenTable(
    [header, ...rows],
    { dispensable: ["NAMESPACE", "PIDS"], narrow: ["POD ID", "SENT", "RECEIVED"] },
    fullIds,
  );
}
