// Logs failed calls that change state. Of equal failures the first is logged, and after a minute how many more there
// were, so that a retrying client does not flood the log.
import { codeOf, messageOf, type ErrorCode } from "../base/errors.ts";
import type { Fields, Log } from "../base/log.ts";
import { shorten, withoutIds } from "../base/text.ts";
import type { Context } from "./context.ts";
import { podName } from "../state/sandbox.ts";
import { isReadOnlyCall } from "../base/read_only_calls.ts";

type Failure = {
  call: string;
  /** undefined if it could not be decoded. */
  request: object | undefined;
  error: unknown;
};

type Level = "error" | "warn" | "info";
type Kind = { level: Level; fields: Fields; more: number; timer: ReturnType<typeof setTimeout> };

const kindsMax = 256;
const reasonBytesMax = 2_000;
/** Bound of a pod's, a container's and an image's name, which a refused request may have of any length. */
const nameBytesMax = 1_000;

export class FailureLog {
  readonly #log: Log;
  readonly #windowMs: number;
  readonly #kinds = new Map<string, Kind>();

  constructor(log: Log, windowMs = 60_000) {
    this.#log = log;
    this.#windowMs = windowMs;
  }

  add(context: Subjects, { call, request, error }: Failure): void {
    const code = codeOf(error);
    const reason = shorten(messageOf(error), reasonBytesMax);
    const fields = { call, ...shortened(subjectOf(context, request)), code, reason };
    if (isReadOnlyCall(call) && code !== "INTERNAL") return this.#log.debug("call failed", fields);
    const kind = [call, code, fields.pod, fields.image, withoutIds(reason)].join("\n");
    const known = this.#kinds.get(kind);
    if (known !== undefined) known.more++;
    else this.#begin(kind, levelOf(code), fields, error);
  }

  #begin(kind: string, level: Level, fields: Fields, error: unknown): void {
    if (this.#kinds.size >= kindsMax) this.#end(this.#kinds.keys().next().value!);
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

function shortened<Names extends Record<string, string | undefined>>(names: Names): Names {
  const entries = Object.entries(names).map(([kind, name]) => [
    kind,
    name && shorten(name, nameBytesMax),
  ]);
  return Object.fromEntries(entries) as Names;
}

/** Cancellation is no news to the client that cancelled. */
function levelOf(code: ErrorCode): Level {
  if (code === "INTERNAL") return "error";
  return code === "CANCELLED" ? "info" : "warn";
}

/** Stores to look up a request's ids in. */
type Subjects = Pick<Context, "sandboxes" | "containers">;

type Named = { metadata?: { name?: string | null; namespace?: string | null } | null };
type Image = { image?: string | null; user_specified_image?: string | null };
type Request = {
  config?: (Named & { image?: Image | null }) | null;
  sandbox_config?: Named | null;
  pod_sandbox_id?: string;
  container_id?: string;
  image?: string | Image | null;
};

/** The pod, container and image of a request, by name if known. */
export function subjectOf(context: Subjects, request: Request = {}) {
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

/** Kubelets create containers by the image's id, and name the image beside it. */
function imageName(image: Request["image"]): string | undefined {
  if (typeof image === "string") return image || undefined;
  return image?.user_specified_image || image?.image || undefined;
}
