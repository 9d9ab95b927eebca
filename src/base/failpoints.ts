// Failpoints: let tests kill, delay or fail daemon and monitor before and after each step with outside effects.
import { setTimeout as sleep } from "node:timers/promises";
import { activity } from "./activity.ts";
import { CriError } from "./errors.ts";

/** Every step, in the order of a pod's life. */
export const stepNames = [
  // RunPodSandbox
  "sandbox-record",
  "sandbox-cgroup",
  "sandbox-namespaces",
  "sandbox-files",
  "cni-add",
  "sandbox-sysctls",
  "pause-rootfs",
  "pause-start",
  "sandbox-ready",
  // PullImage
  "image-verify",
  "image-layers",
  "image-register",
  "image-origins",
  // CreateContainer
  "container-record",
  "container-rootfs",
  "container-bundle",
  "container-created",
  // StartContainer, in the daemon and in the monitor
  "container-start",
  "monitor-record",
  "monitor-stdio",
  "runtime-create",
  "shim-start",
  "shim-connect",
  "shim-create",
  "runtime-start",
  "container-running",
  // UpdateContainerResources
  "update-record",
  "runtime-update",
  "update-bundle",
  "update-done",
  // ExecSync and Exec, in the monitor
  "exec-start",
  // The exit, in the monitor and in the daemon
  "exit-record",
  "runtime-delete",
  "container-exited",
  // StopContainer, StopPodSandbox
  "container-signal",
  "container-kill",
  "pause-remove",
  "cni-del",
  "namespaces-unpin",
  "sandbox-files-remove",
  "sandbox-torndown",
  // RemoveContainer, RemovePodSandbox
  "container-forget",
  "container-rootfs-remove",
  "container-remove",
  "sandbox-cgroup-remove",
  "sandbox-remove",
  // The start after a SIGKILL, of the daemon and of the monitor
  "left-programs-kill",
  "left-programs-forget",
  "left-calls-kill",
] as const;
type StepName = (typeof stepNames)[number];

type Action = { kind: "error" } | { kind: "kill" } | { kind: "delay"; ms: number };

const armed = new Map<string, Action>();
let reportHit: (failpoint: string, action: string) => void = () => {};

/**
 * Arms failpoints: `before:cni-add=error,after:runtime-create=delay:1000,before:cni-del=kill`.
 * onHit is called for each that is reached. @throws CriError INVALID_ARGUMENT.
 */
export function armFailpoints(
  text: string,
  onHit: (failpoint: string, action: string) => void,
): void {
  reportHit = onHit;
  for (const entry of text.split(",").filter(Boolean)) {
    const [name = "", action = ""] = entry.split("=");
    const [when, step] = name.split(":");
    if ((when !== "before" && when !== "after") || !stepNames.some((known) => known === step)) {
      const known = stepNames.join(", ");
      throw new CriError(
        "INVALID_ARGUMENT",
        `ISULAD_FAILPOINTS: unknown failpoint ${name}: use before: or after: with one of ${known}`,
      );
    }
    armed.set(name, actionOf(name, action));
  }
}

function actionOf(name: string, text: string): Action {
  if (text === "error" || text === "kill") return { kind: text };
  const ms = /^delay:(\d{1,6})$/.exec(text)?.[1];
  if (ms !== undefined) return { kind: "delay", ms: Number(ms) };
  throw new CriError(
    "INVALID_ARGUMENT",
    `ISULAD_FAILPOINTS: ${name}=${text}: use error, delay:MILLISECONDS or kill`,
  );
}

/** Runs one step, as an activity, between its failpoints. */
export function step<T>(name: StepName, act: () => T | Promise<T>): Promise<T> {
  return activity(
    "step",
    { step: name },
    armed.size === 0 ? act : () => betweenFailpoints(name, act),
  );
}

async function betweenFailpoints<T>(name: StepName, act: () => T | Promise<T>): Promise<T> {
  await failpoint(`before:${name}`);
  const result = await act();
  await failpoint(`after:${name}`);
  return result;
}

async function failpoint(name: string): Promise<void> {
  const action = armed.get(name);
  if (action === undefined) return;
  reportHit(name, action.kind);
  switch (action.kind) {
    case "delay":
      await sleep(action.ms);
      return;
    case "kill":
      process.kill(process.pid, "SIGKILL");
      return;
    case "error":
      armed.delete(name); // once, so that tests see the recovery
      throw new CriError("INTERNAL", `failpoint ${name}`);
  }
}
