// Defines the monitor's records, for its files and for its socket: how a container was started, and how it
// ended. Older and newer builds read them too: a key is added as an optional one, and none is renamed.
import * as v from "valibot";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { checked, mapOf } from "../base/schema.ts";
import { Digits } from "../state/digits.ts";
import { ExitSchema } from "../state/exit.ts";

/** The records' version, to be raised when older monitors could not go on with what newer ones write. */
const Version = v.optional(v.literal(1), 1);

/** Everything that the monitor needs to start a container and to look after it. */
const StartSchema = v.object({
  id: v.string(),
  runtime: v.object({
    path: v.string(),
    args: v.array(v.string()),
    root: v.string(),
    systemdCgroup: v.boolean(),
    noNewKeyring: v.optional(v.boolean()),
    /** Present for shim v2 runtimes (node/oci_runtime.ts). */
    shim: v.optional(
      v.object({
        type: v.string(),
        configPath: v.string(),
        options: mapOf(v.string(), v.union([v.string(), v.number(), v.boolean()])),
      }),
    ),
  }),
  bundle: v.string(),
  /** Folder with the FIFOs stdin, stdout and stderr; the monitor makes them. */
  stdio: v.string(),
  /** CRI log, absolute; empty: output is discarded. */
  logPath: v.string(),
  /** Content bytes of one line of the log; absent in records of older builds. */
  logLineBytes: v.optional(v.number()),
  /** What happens to output while the log cannot be written; absent in records of older builds: "drop". */
  logOnError: v.optional(v.picklist(["drop", "block"])),
  /** The log says how much output was dropped, unless it is false. */
  logDropNote: v.optional(v.boolean()),
  /** The container reads from the stdin FIFO; else from /dev/null. */
  stdin: v.boolean(),
  /** A terminal instead of FIFOs: output is one stream. */
  terminal: v.boolean(),
  /** The root of the container's own user namespace, which owns its streams. */
  owner: v.optional(v.object({ uid: v.number(), gid: v.number() })),
  /** The SELinux label of its streams. */
  label: v.optional(v.string()),
  /** The cgroup's folder for each controller: counts its memory and lists its processes. */
  cgroup: mapOf(v.string(), v.string()),
  timeoutMs: v.number(),
});
export type StartRequest = v.InferOutput<typeof StartSchema>;
export type StreamOwner = NonNullable<StartRequest["owner"]>;

const RunSchema = v.object({
  version: Version,
  ...StartSchema.entries,
  /** Init's; 0 before the runtime has made it. */
  pid: v.number(),
  /** Clock ticks since boot: identifies one process together with the pid. */
  pidStartTime: v.string(),
  startedAtNs: Digits,
  /** The runtime's start has succeeded. */
  started: v.optional(v.boolean(), true),
});
export type RunRecord = v.InferOutput<typeof RunSchema>;

const ExitRecordSchema = v.object({
  version: Version,
  id: v.string(),
  pid: v.number(),
  ...ExitSchema.entries,
});
export type ExitRecord = Omit<v.InferOutput<typeof ExitRecordSchema>, "version">;

export function runText(run: RunRecord): string {
  return jsonText(run);
}

/** @throws when the text is no run record. */
export function parseRun(text: string): RunRecord {
  return checked(RunSchema, trustedJsonValue(text));
}

export function exitText(exit: ExitRecord): string {
  return jsonText({ version: 1, ...exit });
}

/** @throws when the text is no exit record. */
export function parseExit(text: string): ExitRecord {
  return checked(ExitRecordSchema, trustedJsonValue(text));
}
