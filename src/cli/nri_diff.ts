// Implements isulad-ts nri diff: what each NRI plugin has changed in a container's spec.
import { defineCommand } from "citty";
import { toBigInt } from "../base/int64.ts";
import { exactIntegers, jsonText, trustedJsonValue } from "../base/json.ts";
import { printable } from "../base/text.ts";
import { isulad } from "../proto/messages.js";
import type { ListNriChangesResponse, NriChange, NriFieldChange } from "../proto/types.ts";
import { cellsOf } from "./cells.ts";
import { containerOperand, hostArg, withClient } from "./daemon_command.ts";
import { checkFormat, screenColumns, show, tableFormatArgs } from "./format.ts";
import { folded } from "./help.ts";
import { coloured } from "./output.ts";
import { jsonForm, lineText, localTime, protoJson } from "./text.ts";

export const diff = defineCommand({
  meta: { description: "Show what each NRI plugin changed in a container's OCI spec" },
  args: { container: containerOperand, ...tableFormatArgs, ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      checkFormat(args);
      const { id, path } = await find.container(args.container);
      const response = await client.ListNriChanges({ container_id: id });
      const { changes, dropped } = isulad.v1.ListNriChangesResponse.toObject(response, jsonForm);
      const json = { container: { id, path }, ...withValues({ changes, dropped }) };
      await show(args, json, () => changesText(path, response, screenColumns()));
    }),
});

/** Replaces the text of the fields' values by the values; a field without one has no such side. */
function withValues(response: { changes?: NriChange[]; dropped?: unknown }) {
  const { changes, dropped } = protoJson(response) as { changes: NriChange[]; dropped: string };
  const valued = changes.map((change) => ({
    ...change,
    fields: (change.fields ?? []).map(({ path, before, after }) => ({
      path,
      ...(before ? { before: valueOf(before) } : {}),
      ...(after ? { after: valueOf(after) } : {}),
    })),
  }));
  return { changes: valued, dropped };
}

function valueOf(text: string): unknown {
  return trustedJsonValue(text, exactIntegers);
}

/** Formats the changes of each plugin as lines that are no longer than `columns`. */
export function changesText(
  container: string,
  { changes, dropped }: ListNriChangesResponse,
  columns: number,
): string {
  const lines: string[] = [];
  const count = Number(toBigInt(dropped));
  if (count > 0) lines.push(`${count} older ${count === 1 ? "update is" : "updates are"} gone`);
  for (const change of changes ?? []) {
    if (lines.length > 0) lines.push("");
    lines.push(...folded(`${change.plugin} ${eventText(change)}:`, columns));
    for (const field of change.fields ?? []) lines.push(...fieldLines(field, columns));
    const more = Number(toBigInt(change.more_fields));
    if (more > 0) lines.push(`  and ${more} more ${more === 1 ? "field" : "fields"}, not kept`);
  }
  if (lines.length === 0) lines.push(`No NRI plugin has changed ${container}.`);
  return lines.map((line) => `${line}\n`).join("");
}

function eventText({ at, event }: NriChange): string {
  const { day, clock } = localTime(at);
  const time = `${day} ${clock}`;
  if (event === "CreateContainer") return `changed it at its creation, ${time}`;
  if (event === "UpdateContainerResources") return `changed an update of it, ${time}`;
  return `updated it, ${time}`;
}

const indent = "  ";
const sign = { added: "+", removed: "-", changed: "~" };

function fieldLines({ path, before, after }: NriFieldChange, columns: number): string[] {
  const shown = (json: string) => printable(valueText(valueOf(json))); // JSON escapes not all
  const [old, now] = [before, after].map((json) => (json ? shown(json) : undefined));
  const name = lineText(path ?? "");
  const fold = (mark: string, text: string, inset: string) => {
    const [first = "", ...rest] = folded(text, columns - inset.length - indent.length);
    return [`${inset}${mark} ${first}`, ...rest.map((line) => inset + indent + line)];
  };
  const painted = (lines: string[], colour: "red" | "green") =>
    lines.map((line) => coloured(line, colour));
  if (old === undefined) {
    return painted(fold(sign.added, `${name}: ${now}`, indent), "green");
  }
  if (now === undefined) return painted(fold(sign.removed, `${name}: ${old}`, indent), "red");
  const line = `${indent}${sign.changed} ${name}: ${old} → ${now}`;
  if (cellsOf(line) <= columns) return [line];
  const inset = indent + indent;
  return [
    ...fold(sign.changed, `${name}:`, indent),
    ...painted(fold(sign.removed, old, inset), "red"),
    ...painted(fold(sign.added, now, inset), "green"),
  ];
}

/** Formats an object as "type=bind source=/srv", a string without quotes where it is clear without. */
function valueText(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map((entry) => jsonText(entry)).join(", ")}]`;
  if (typeof value === "object" && value !== null) {
    return Object.entries(value)
      .map(([key, part]) => `${key}=${partText(part)}`)
      .join(" ");
  }
  return isClear(value) ? value : jsonText(value);
}

function partText(part: unknown): string {
  const isWord = (entry: unknown) => isClear(entry) && !/[\s,]/.test(entry);
  if (isWord(part)) return part as string;
  const isSimple = Array.isArray(part) && part.length > 0 && part.every(isWord);
  return isSimple ? part.join(",") : jsonText(part);
}

function isClear(value: unknown): value is string {
  return typeof value === "string" && value !== "" && !/^[\s"[{]|\s$|\p{Cc}/u.test(value);
}
