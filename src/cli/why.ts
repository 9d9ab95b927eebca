// Implements isulad-ts why: the timeline of a pod, also of one that was removed lately.
import { constants } from "node:os";
import { defineCommand } from "citty";
import { codeOf } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { printable } from "../base/text.ts";
import { isulad } from "../proto/messages.js";
import type { PodTimeline, TimelineEntry } from "../proto/types.ts";
import type { Client } from "./client.ts";
import { beginning, cellsOf, padded } from "./cells.ts";
import { completes, hostArg, withClient } from "./daemon_command.ts";
import { checkFormat, screenColumns, show, tableFormatArgs } from "./format.ts";
import { folded } from "./help.ts";
import { type Candidate, choose, containersOf, podCandidate } from "./lookup.ts";
import { coloured } from "./output.ts";
import { jsonForm, localTime, protoJson, shortId, size } from "./text.ts";

/** Longer names of containers are cut. */
const nameColumnsMax = 16;
const ofPod = "(pod)";

export const why = defineCommand({
  meta: { description: "Show what happened to a pod or container, also to a removed one" },
  args: {
    pod: {
      type: "positional",
      required: true,
      description: "namespace/pod[/container], a unique name, or the beginning of an id",
      ...completes.pod,
    },
    ...tableFormatArgs,
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      checkFormat(args);
      const { pod, container, createdNs } = await chosen(client, args.pod);
      const { timelines, since } = await client.ListTimelines({ pod });
      const timeline = ofContainer(timelines?.[0] ?? { pod }, container);
      const isOlder = createdNs < toBigInt(since);
      const value = protoJson(isulad.v1.PodTimeline.toObject(timeline as never, jsonForm));
      await show(args, value, () =>
        timelineText(timeline, screenColumns(), isOlder ? since : undefined),
      );
    }),
});

/**
 * Finds a pod (container: "") or a container, also a removed one of which there is a timeline.
 * @throws CriError NOT_FOUND, INVALID_ARGUMENT if several match
 */
export async function chosen(
  client: Client,
  text: string,
): Promise<{ pod: string; container: string; createdNs: bigint }> {
  const listed = client.ListPodSandbox({}).then(({ items }) => items);
  const [live, { timelines }] = await Promise.all([listed, client.ListTimelines({})]);
  const pods = withKept(live.map(podCandidate), timelines.flatMap(podsOf));
  try {
    const { path, createdNs } = choose("pod", text, pods);
    return { pod: path, container: "", createdNs };
  } catch (error) {
    if (codeOf(error) !== "NOT_FOUND") throw error;
    const containers = await containersOf(client, listed);
    const all = withKept(containers, timelines.flatMap(keptContainers));
    try {
      const { path, createdNs } = choose("container", text, all);
      const end = path.lastIndexOf("/");
      return { pod: path.slice(0, end), container: path.slice(end + 1), createdNs };
    } catch (other) {
      throw codeOf(other) === "NOT_FOUND" ? error : other;
    }
  }
}

function withKept(live: readonly Candidate[], kept: readonly Candidate[]): Candidate[] {
  // A path stands for the id of a pod that has none (podsOf).
  const known = new Set(live.flatMap(({ id, path }) => [id, path]));
  return [...live, ...kept.filter(({ id }) => !known.has(id))];
}

/** The pods of a timeline; one without an id, of which nothing but failures is known, has its path in its place. */
function podsOf(timeline: PodTimeline): Candidate[] {
  const path = timeline.pod ?? "";
  const pods = (timeline.objects ?? []).filter(({ container }) => !container);
  const named = pods.length > 0 ? pods : [{ id: path, created_at: timeline.began_at }];
  return named.map(({ id, created_at }) => candidate(id ?? "", path, created_at));
}

function keptContainers({ pod, objects }: PodTimeline): Candidate[] {
  return (objects ?? []).flatMap(({ id, container, created_at }) =>
    container ? [candidate(id ?? "", `${pod}/${container}`, created_at)] : [],
  );
}

function candidate(id: string, path: string, createdAt: PodTimeline["began_at"]): Candidate {
  return { id, path, attempt: 0, createdNs: toBigInt(createdAt), state: "removed" };
}

/** Leaves out what happened to other containers of the pod. */
function ofContainer(timeline: PodTimeline, name: string): PodTimeline {
  if (name === "") return timeline;
  const isShown = ({ container }: { container?: string | null }) =>
    !container || container === name;
  const entries = (timeline.entries ?? []).filter(isShown);
  return { ...timeline, entries, objects: (timeline.objects ?? []).filter(isShown) };
}

/**
 * Formats a line, or several, for each entry; they fit `columns`, unless the terminal is too narrow for words. since:
 * the daemon's start, if the pod was there before.
 */
export function timelineText(
  timeline: PodTimeline,
  columns: number,
  since?: PodTimeline["began_at"],
): string {
  const { pod } = timeline;
  const entries = timeline.entries ?? [];
  const dropped = Number(toBigInt(timeline.dropped));
  const lines = since === undefined ? [] : folded(sinceText(since), columns);
  if (entries.length === 0) {
    lines.push(`Nothing has happened to ${pod} since the daemon was started.`);
  }
  if (dropped > 0)
    lines.push(`${dropped} older ${dropped === 1 ? "entry is" : "entries are"} gone`);
  const names = entries.map(({ container }) => clipped(container || ofPod));
  const width = Math.max(0, ...names.map(cellsOf));
  const start = 10 + width + 2;
  let day = "";
  for (const [at, entry] of entries.entries()) {
    const time = localTime(entry.at);
    if (time.day !== day) lines.push(time.day);
    day = time.day;
    const [first = "", ...rest] = textLines(entry, columns - start);
    lines.push(`${time.clock}  ${padded(names[at]!, width)}  ${first}`);
    lines.push(...rest.map((line) => " ".repeat(start) + line));
  }
  return lines.map((line) => `${line}\n`).join("");
}

function sinceText(since: PodTimeline["began_at"]): string {
  const { day, clock } = localTime(since);
  return `The daemon was started at ${day} ${clock}; of the time before, this has what the records tell, and the log has more.`;
}

function clipped(name: string): string {
  return cellsOf(name) <= nameColumnsMax ? name : `${beginning(name, nameColumnsMax - 1)}…`;
}

function textLines(entry: TimelineEntry, width: number): string[] {
  const times = Number(toBigInt(entry.times));
  const again = times > 1 ? ` (${times} times since ${localTime(entry.first_at).clock})` : "";
  // Ids in full, and line breaks, are in -o json.
  const text = printable(textOf(entry) + again)
    .replaceAll(/\b[0-9a-f]{64}\b/g, shortId)
    .replaceAll(/\s+/g, " ");
  const isBad = entry.what === "exit" ? (entry.exit_code ?? 0) !== 0 : Boolean(entry.code);
  return folded(text, width).map((line) => (isBad ? coloured(line, "red") : line));
}

/** Successful calls in words. */
const done: Record<string, string> = {
  RunPodSandbox: "pod created",
  CreateContainer: "created from",
  StartContainer: "started",
  StopContainer: "stopped",
  StopPodSandbox: "pod stopped",
  UpdateContainerResources: "resources changed",
  UpdatePodSandboxResources: "resources changed",
  CheckpointContainer: "checkpoint written",
};

function textOf(entry: TimelineEntry): string {
  const { what, detail, code } = entry;
  const took = duration(Number(toBigInt(entry.took_ms)));
  if (entry.is_running) return `${what} has gone on for ${took}${detail ? `: ${detail}` : ""}`;
  switch (what ?? "") {
    case "network":
      return `network made by ${detail} in ${took}`;
    case "network_end":
      return `network removed by ${detail} in ${took}`;
    case "nri":
      return `changed by NRI plugin ${detail}`;
    case "exit":
      return exitText(entry, took);
    case "not_ready":
      return `the pod is ready no longer: ${detail}`;
    case "warning":
      return `warning: ${detail}`;
    case "remove":
      return "removed";
    case "log":
      return `its log cannot be written${code ? ` (${code})` : ""}: ${detail}`;
    case "log_end":
      return logEndText(entry, took);
  }
  if (code) return failureText(entry, took);
  if (what === "PullImage") {
    const bytes = toBigInt(entry.bytes);
    return `pulled ${detail}: ${bytes > 0n ? size(bytes) : "no layer was missing"} in ${took}`;
  }
  const text = `${done[what ?? ""] ?? what}${detail ? ` ${detail}` : ""}`;
  const isKnown = toBigInt(entry.took_ms) > 0n; // a record does not tell it
  return isKnown ? `${text} in ${took}` : text;
}

function logEndText({ bytes }: TimelineEntry, took: string): string {
  const dropped = toBigInt(bytes);
  const lost = dropped > 0n ? `${size(dropped)} of its output dropped` : "no output dropped";
  return `its log could not be written for ${took}: ${lost}`;
}

function failureText({ what, code, detail }: TimelineEntry, took: string): string {
  const isTimeout = what === "ExecSync" && code === "DEADLINE_EXCEEDED";
  if (isTimeout) return `exec (a probe or hook) timed out after ${took}: ${detail}`;
  return `${what} failed after ${took} with ${code}: ${detail}`;
}

function exitText({ exit_code, code, detail }: TimelineEntry, took: string): string {
  const number = exit_code ?? 0;
  const known = Object.entries(constants.signals).find(([, signal]) => signal === number - 128);
  const signal = known === undefined ? "" : ` (${known[0]})`;
  const reason = code === "Completed" || code === "Error" ? "" : `, ${code}`;
  return `exited with code ${number}${signal} after ${took}${reason}${detail ? `: ${detail}` : ""}`;
}

function duration(ms: number): string {
  if (ms < 1000) return `${ms} ms`;
  return ms < 120_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60_000)} min`;
}
