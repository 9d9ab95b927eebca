// Logs calls that failed: one line for each failure of a call that changes something, equal ones at most
// once a minute with a count, so that a client that tries again and again floods nothing.
import { codeOf, messageOf, type ErrorCode } from "../base/errors.ts";
import type { Fields, Log } from "../base/log.ts";
import { shorten } from "../base/text.ts";
import type { Context } from "./context.ts";
import { isQuestion } from "./questions.ts";

export type Failure = {
  call: string;
  /** undefined: it could not be read. */
  request: object | undefined;
  error: unknown;
};

type Level = "error" | "warn" | "info";
type Kind = { level: Level; fields: Fields; more: number; timer: ReturnType<typeof setTimeout> };

const windowMs = 60_000;
/** Of kinds of failures at a time. */
const kindsMax = 256;
const reasonBytesMax = 2_000;

export class FailureLog {
  readonly #log: Log;
  readonly #windowMs: number;
  readonly #kinds = new Map<string, Kind>();

  constructor(log: Log, ms = windowMs) {
    this.#log = log;
    this.#windowMs = ms;
  }

  add(context: Subjects, { call, request, error }: Failure): void {
    const code = codeOf(error);
    const reason = shorten(messageOf(error), reasonBytesMax);
    const fields = { call, ...subjectOf(context, request), code, reason };
    if (isQuestion(call) && code !== "INTERNAL") return this.#log.debug("call failed", fields);
    const kind = [call, code, fields.pod, fields.image, withoutIds(reason)].join("\n");
    const known = this.#kinds.get(kind);
    if (known !== undefined) known.more++;
    else this.#begin(kind, levelOf(code), fields, error);
  }

  #begin(kind: string, level: Level, fields: Fields, error: unknown): void {
    if (this.#kinds.size >= kindsMax) this.#end(this.#kinds.keys().next().value!);
    // The stack says where; whoever called is known from the other fields.
    const stack = level === "error" && error instanceof Error ? error.stack : undefined;
    this.#log[level]("call failed", { ...fields, stack });
    const timer = setTimeout(() => this.#end(kind), this.#windowMs);
    timer.unref();
    this.#kinds.set(kind, { level, fields, more: 0, timer });
  }

  #end(kind: string): void {
    const { level, fields, more, timer } = this.#kinds.get(kind)!;
    this.#kinds.delete(kind);
    clearTimeout(timer);
    if (more > 0) this.#log[level]("call failed again", { ...fields, times: more });
  }
}

/** A client that has cancelled its call knows. */
function levelOf(code: ErrorCode): Level {
  if (code === "INTERNAL") return "error";
  return code === "CANCELLED" ? "info" : "warn";
}

/** Ids, pids and times differ with each try. */
function withoutIds(reason: string): string {
  return reason.replaceAll(/\b[0-9a-f]{12,}\b|\d+/g, "#");
}

/** What a request's ids are looked up in. */
export type Subjects = Pick<Context, "sandboxes" | "containers">;

type Named = { metadata?: { name?: string | null; namespace?: string | null } | null };
type Image = { image?: string | null };
type Request = {
  config?: (Named & { image?: Image | null }) | null;
  sandbox_config?: Named | null;
  pod_sandbox_id?: string;
  container_id?: string;
  image?: string | Image | null;
};

/** The pod, container and image that a request is about, by name where there is one. */
function subjectOf(context: Subjects, request: Request = {}) {
  const { config, sandbox_config: podConfig, pod_sandbox_id: podId, container_id: id } = request;
  const container = context.containers.listed(id ?? "");
  const sandbox = context.sandboxes.listed(podId || container?.sandboxId || "");
  const isOfPod = podConfig === undefined && podId === undefined;
  const pod = podName(sandbox?.config) ?? podName(isOfPod ? config : podConfig);
  const name = container?.config.metadata?.name ?? (isOfPod ? undefined : config?.metadata?.name);
  return {
    pod: pod || podId || undefined,
    container: name || id || undefined,
    image: imageName(request.image) ?? imageName(config?.image),
  };
}

function podName(config: Named | null | undefined): string | undefined {
  const { namespace, name } = config?.metadata ?? {};
  return name ? `${namespace}/${name}` : undefined;
}

function imageName(image: Request["image"]): string | undefined {
  return (typeof image === "string" ? image : image?.image) || undefined;
}
