// Decides whether a call may act on a sandbox or container in its present phase.
import { CriError } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import type { AttachRequest, ContainerConfig, ExecRequest } from "../proto/types.ts";
import type { NamespaceOptions } from "../spec/namespace_options.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { WantedStreams } from "../stream/channels.ts";

/** 24 days: timers take 31 bits of milliseconds and fire at once beyond that. */
const timeoutSecondsMax = 2_147_483n;

/** @throws CriError FAILED_PRECONDITION unless the sandbox is ready. */
export function requireReady(sandbox: Sandbox): Sandbox {
  const { id, phase } = sandbox;
  if (phase.phase === "ready") return sandbox;
  const why = phase.phase === "notready" ? ` (${phase.message})` : "";
  const message = `sandbox ${id} is not ready${why}: remove it and run another one`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** @throws CriError FAILED_PRECONDITION unless the container is running. */
export function requireRunning(container: Container): Container {
  const { id, phase } = container;
  if (phase.phase === "running") return container;
  const how = phase.phase === "exited" ? ` (${phase.reason}, exit code ${phase.exitCode})` : "";
  const message = `container ${id} is ${phase.phase}${how}, not running`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** @throws CriError FAILED_PRECONDITION for a container that was started before. */
export function requireStartable({ id, phase }: Container): void {
  if (phase.phase === "created") return;
  const message = `container ${id} is ${phase.phase} and can be started only once: create another`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** @throws CriError FAILED_PRECONDITION for a container that has exited. */
export function requireUpdatable({ id, phase }: Container): void {
  if (phase.phase !== "exited") return;
  const message = `container ${id} has exited: it has no resources to update`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/**
 * Refuses a second attempt while an earlier one is being started. A kubelet whose StartContainer was cut off
 * (by its deadline, or by a restart of this daemon) sees the container CREATED and creates another; then both
 * would run.
 * @throws CriError FAILED_PRECONDITION
 */
export function refuseWhileStarting(
  podContainers: Container[],
  { metadata }: ContainerConfig,
  starting: { has(id: string): boolean },
): void {
  for (const { id, config } of podContainers) {
    if (config.metadata?.name !== metadata?.name || !starting.has(id)) continue;
    throw new CriError(
      "FAILED_PRECONDITION",
      `container ${id} of the same name is being started: wait for the outcome, then try again`,
    );
  }
}

/**
 * Returns the pid of the first process of `target`, whose pid namespace `container` joins.
 * @throws CriError INVALID_ARGUMENT for a target in another pod; FAILED_PRECONDITION for one that is not
 * running, as its pid may belong to another program by now.
 */
export function requireTargetPid(container: Container, target: Container): number {
  if (target.sandboxId !== container.sandboxId) {
    throw new CriError("INVALID_ARGUMENT", `container ${target.id} is in another pod`);
  }
  if (target.phase.phase === "running") return target.phase.pid;
  const message = `pid mode TARGET: container ${target.id} is not running`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** The target's id; undefined without pid mode TARGET. @throws CriError INVALID_ARGUMENT without an id. */
export function targetIdOf({ pid, targetId }: NamespaceOptions): string | undefined {
  if (pid !== "target") return undefined;
  if (targetId !== "") return targetId;
  throw new CriError("INVALID_ARGUMENT", "namespace_options.target_id is missing: pid is TARGET");
}

/** @throws CriError INVALID_ARGUMENT for no streams at all, or a combination that cannot exist. */
export function requestedStreams(request: ExecRequest | AttachRequest): WantedStreams {
  const [stdin, stdout] = [request.stdin === true, request.stdout === true];
  const [stderr, tty] = [request.stderr === true, request.tty === true];
  if (tty && stderr) {
    throw new CriError("INVALID_ARGUMENT", "tty and stderr: a terminal has one output, stdout");
  }
  if (!stdin && !stdout && !stderr) {
    throw new CriError("INVALID_ARGUMENT", "stdin, stdout, stderr: at least one must be true");
  }
  return { stdin, stdout, stderr, tty };
}

/** @throws CriError INVALID_ARGUMENT unless the client has a terminal as the container has one, or both have none. */
export function requireAttachable({ id, config }: Container, { tty }: WantedStreams): void {
  const hasTty = config.tty === true;
  if (tty === hasTty) return;
  const has = hasTty ? "has a terminal" : "has no terminal";
  throw new CriError("INVALID_ARGUMENT", `tty ${tty}: container ${id} ${has}`);
}

/** A request's timeout in milliseconds, at most 24 days; `unlimitedMs` for a longer one. */
export function timeoutMsOf(
  timeout: Parameters<typeof toBigInt>[0],
  unlimitedMs = Number(timeoutSecondsMax) * 1000,
): number {
  const seconds = toBigInt(timeout);
  return seconds > timeoutSecondsMax ? unlimitedMs : Number(seconds) * 1000;
}
