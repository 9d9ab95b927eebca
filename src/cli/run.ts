// Implements isulad-ts run: runs a container in a new pod, shows its output, and removes the pod.
import { randomUUID } from "node:crypto";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { defineCommand } from "citty";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { ContainerStatus } from "../proto/types.ts";
import type { Client } from "./client.ts";
import { stopContainer } from "./stop_remove.ts";
import { catchInterrupts, type Interrupts } from "./interrupts.ts";
import { readLog } from "./log_file.ts";
import { print, ReaderGone, readerGoneCode, say, writeOut } from "./output.ts";
import { repeatable, UsageError } from "./options.ts";
import { everyValue } from "./program.ts";
import { follow } from "./progress.ts";
import { withAdvice } from "./pull_advice.ts";
import { requireTerminal } from "./terminal.ts";
import { passInput, showTerminal } from "./run_attached.ts";
import {
  containerConfig,
  logName,
  nameOf,
  podConfig,
  runLabel,
  type RunOptions,
} from "./run_options.ts";
import { completes, hostArg, withClient } from "./daemon_command.ts";
import { isuladFailureCode, startFailureCode } from "./start_exit_code.ts";
import { waitForExit } from "./wait_for_exit.ts";
import { removeTree } from "../sys/remove_tree.ts";

const graceSeconds = 10;
/** A daemon that is restarted or upgraded answers within this time. */
const restartMs = 10_000;
const retryMs = 250;
/** Where the kubelet has the logs of its pods. */
const podLogs = "/var/log/pods";
// This deadline is a last resort: the daemon has shorter ones for CNI plugins and runtimes.
const startTimeoutMs = 240_000;

export const run = defineCommand({
  meta: { description: "Run a command in a new pod, show its output, and remove the pod" },
  args: {
    image: { type: "positional", description: "Name or id of an image", ...completes.image },
    command: {
      type: "positional",
      required: false,
      description: "Replaces the image's command",
      ...repeatable,
    },
    name: { type: "string", description: "Name of pod and container (default: from the image)" },
    env: {
      type: "string",
      alias: "e",
      ...repeatable,
      valueHint: "NAME=VALUE",
      description: "Environment variable; NAME alone takes this shell's value",
    },
    volume: {
      type: "string",
      alias: "v",
      ...repeatable,
      valueHint: "host:container[:ro]",
      description: "Mount a folder or file of the host",
    },
    publish: {
      type: "string",
      alias: "p",
      ...repeatable,
      valueHint: "host:pod[/udp]",
      description: "Publish a port of the pod on the host",
    },
    workdir: { type: "string", alias: "w", description: "Working directory" },
    interactive: { type: "boolean", alias: "i", description: "Pass standard input" },
    tty: { type: "boolean", alias: "t", description: "Allocate a terminal" },
    detach: {
      type: "boolean",
      alias: "d",
      description: "Leave the pod running, and print the container's id",
    },
    rm: { type: "boolean", description: "Remove the pod at the end, which is the default" },
    user: {
      type: "string",
      alias: "u",
      valueHint: "user[:gid]",
      description: "User by name or number, and group by number",
    },
    entrypoint: {
      type: "string",
      valueHint: "program",
      description: "Replaces the image's entrypoint and command",
    },
    memory: { type: "string", alias: "m", valueHint: "512m", description: "Limit of memory" },
    cpus: { type: "string", valueHint: "0.5", description: "Limit of CPU time, in CPUs" },
    annotation: {
      type: "string",
      ...repeatable,
      valueHint: "key=value",
      description: "Annotation of pod and container",
    },
    label: {
      type: "string",
      alias: "l",
      ...repeatable,
      valueHint: "key=value",
      description: "Label of pod and container",
    },
    "host-network": { type: "boolean", description: "Use the host's network" },
    privileged: { type: "boolean", description: "Allow all capabilities and devices" },
    runtime: { type: "string", valueHint: "handler", description: "Runtime handler" },
    pull: { type: "boolean", description: "Pull the image even if it is present" },
    ...hostArg,
  },
  run: ({ args, rawArgs }) => {
    const [image = "", ...command] = args._;
    const options: RunOptions = {
      image,
      command,
      name: args.name,
      env: everyValue(rawArgs, "env"),
      volumes: everyValue(rawArgs, "volume"),
      ports: everyValue(rawArgs, "publish"),
      workdir: args.workdir,
      hostNetwork: args["host-network"] === true,
      privileged: args.privileged === true,
      runtimeHandler: args.runtime ?? "",
      stdin: args.interactive === true,
      tty: args.tty === true,
      user: args.user,
      entrypoint: args.entrypoint,
      memory: args.memory,
      cpus: args.cpus,
      annotations: everyValue(rawArgs, "annotation"),
      labels: everyValue(rawArgs, "label"),
    };
    const detach = args.detach === true;
    if (detach && args.rm) {
      throw new UsageError("--detach excludes --rm: use isulad-ts rmp --force when it has ended");
    }
    const how = { pull: args.pull === true, detach };
    return withClient(args, (client) => runImage(client, options, how));
  },
});

/** Returns the exit code for this process. @throws CriError for failures outside the container */
async function runImage(
  client: Client,
  options: RunOptions,
  { pull, detach }: { pull: boolean; detach: boolean },
) {
  if (!detach) requireTerminal(options);
  podConfig(options, "", ""); // Reports invalid options before an image is pulled.
  containerConfig(options, "", "");
  using interrupts = catchInterrupts();
  try {
    const imageId = await resolveImage(client, options.image, { pull, signal: interrupts.signal });
    return await runPod(client, { ...options, imageId, detach }, interrupts);
  } catch (error) {
    if (interrupts.exitCode !== undefined) return interrupts.exitCode;
    if (error instanceof ReaderGone) return readerGoneCode;
    throw error;
  }
}

async function resolveImage(
  client: Client,
  name: string,
  options: { pull: boolean; signal: AbortSignal },
): Promise<string> {
  const { signal } = options;
  const known = await client.ImageStatus({ image: { image: name } }, { signal });
  if (known.image?.id && !options.pull) return known.image.id;
  const pulling = client.Pull({ image: name }, { signal });
  const shown = follow(pulling, { title: `Pulling ${name}`, quiet: false });
  const [id = ""] = await withAdvice(client, name, shown);
  return id;
}

async function runPod(
  client: Client,
  options: RunOptions & { imageId: string; detach: boolean },
  interrupts: Interrupts,
): Promise<number> {
  const uid = randomUUID();
  await using undo = new AsyncDisposableStack();
  const logDirectory = options.detach
    ? join(podLogs, `default_${nameOf(options)}_${uid}`)
    : ownLogFolder();
  undo.defer(() => removeTree(logDirectory));
  undo.defer(() => removePods(client, uid));

  const config = podConfig(options, uid, logDirectory);
  const limit = { timeoutMs: startTimeoutMs };
  const pod = { config, runtime_handler: options.runtimeHandler };
  const { pod_sandbox_id } = await client.RunPodSandbox(pod, limit);
  if (interrupts.exitCode !== undefined) return interrupts.exitCode;
  const container = containerConfig(options, uid, options.imageId);
  const request = { pod_sandbox_id, config: container, sandbox_config: config };
  const { container_id } = await client.CreateContainer(request, limit);
  if (interrupts.exitCode !== undefined) return interrupts.exitCode;
  try {
    await client.StartContainer({ container_id }, limit);
  } catch (error) {
    say(`isulad-ts: ${messageOf(error)}`);
    return startFailureCode(messageOf(error));
  }
  if (options.detach) {
    undo.move();
    print(container_id ?? "");
    return 0;
  }
  const status = await showUntilExit(client, { ...options, id: container_id ?? "" }, interrupts);
  return interrupts.exitCode ?? exitCodeOf(status);
}

/** The daemon makes logs that only root may read; it appends to one that exists, and leaves it to its owner. */
function ownLogFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), "isulad-ts-run-"));
  writeFileSync(join(folder, logName), "", { mode: 0o600 });
  return folder;
}

/**
 * Copies the container's output until it exits; an interrupt stops the container. Returns undefined if another
 * client has removed the container, or if no daemon answers after an interrupt.
 */
async function showUntilExit(
  client: Client,
  { id, tty, stdin }: { id: string; tty: boolean; stdin: boolean },
  interrupts: Interrupts,
) {
  const stopFollowing = new AbortController();
  const stopPolling = new AbortController();
  interrupts.onEach((count) => {
    if (count === 1) say("isulad-ts: stopping the container; interrupt again to kill it");
    stopOnInterrupt(client, id, { count, givenUp: stopPolling.signal }).catch((error) => {
      say(`isulad-ts: cannot stop container ${id}: ${messageOf(error)}`);
      // Otherwise no interrupt could end this process while there is no daemon.
      if (codeOf(error) === "UNAVAILABLE") stopPolling.abort();
    });
  });
  const { status } = await client.ContainerStatus({ container_id: id });
  const exited = waitForExit(client, id, stopPolling.signal).finally(() => stopFollowing.abort());
  // A closed output or an unreadable log also ends the wait.
  const logPath = status?.log_path ?? "";
  if (stdin && !tty) {
    passInput(client, id).catch((error) => say(`isulad-ts: no input: ${messageOf(error)}`));
  }
  const copied = tty
    ? showTerminal(client, { id, logPath, stdin })
    : copyLog(logPath, stopFollowing.signal).finally(() => stopPolling.abort());
  const [last] = await Promise.all([exited, copied]);
  return last;
}

/** Waits at the first interrupt for a daemon that is restarting. count: of the interrupts so far. */
async function stopOnInterrupt(
  client: Client,
  id: string,
  { count, givenUp }: { count: number; givenUp: AbortSignal },
): Promise<void> {
  const giveUpMs = performance.now() + (count === 1 ? restartMs : 0);
  for (;;) {
    try {
      return await stopContainer(client, id, count === 1 ? graceSeconds : 0);
    } catch (error) {
      if (codeOf(error) !== "UNAVAILABLE" || performance.now() > giveUpMs) throw error;
    }
    await setTimeout(retryMs);
    if (givenUp.aborted) return; // by a later interrupt
  }
}

async function copyLog(path: string, ended: AbortSignal): Promise<void> {
  try {
    for await (const { stream, bytes } of readLog(path, { follow: ended })) {
      await writeOut(stream, bytes);
    }
  } catch (error) {
    if (error instanceof ReaderGone) throw error;
    const message = `Cannot read the log ${path}: ${messageOf(error)}`;
    throw new CriError(codeOf(error), message, { cause: error });
  }
}

function exitCodeOf(status: ContainerStatus | undefined): number {
  if (status === undefined) {
    say("isulad-ts: another client removed the container");
    return isuladFailureCode;
  }
  if (status.reason === "OOMKilled") say("isulad-ts: the container was killed: out of memory");
  if (status.reason === "Unknown") say(`isulad-ts: ${status.message || "unknown exit code"}`);
  return status.exit_code ?? 0;
}

/** Never throws: a failed removal must not hide the container's exit code. */
async function removePods(client: Client, uid: string): Promise<void> {
  try {
    const filter = { label_selector: { [runLabel]: uid } };
    const { items } = await client.ListPodSandbox({ filter });
    for (const { id } of items) {
      await client.StopPodSandbox({ pod_sandbox_id: id });
      await client.RemovePodSandbox({ pod_sandbox_id: id });
    }
  } catch (error) {
    const hint = "find it with isulad-ts pods, and remove it with isulad-ts rmp --force";
    say(`isulad-ts: cannot remove the pod: ${messageOf(error)}; ${hint}`);
  }
}
