// isulad-ts run: a pod with one container, its output live, its exit code as ours, nothing left.
import { randomUUID } from "node:crypto";
import { mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { defineCommand } from "citty";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { ContainerStatus } from "../proto/types.ts";
import type { Client } from "./client.ts";
import { stopContainer } from "./stop_remove.ts";
import { catchInterrupts, type Interrupts } from "./interrupts.ts";
import { readLog } from "./log_file.ts";
import { ReaderGone, readerGoneCode, say, writeOut } from "./output.ts";
import { repeatable } from "./options.ts";
import { everyValue } from "./program.ts";
import { follow } from "./progress.ts";
import { containerConfig, podConfig, runLabel, type RunOptions } from "./run_options.ts";
import { hostArg, withClient } from "./daemon_command.ts";
import { ourFailureCode, startFailureCode } from "./start_exit_code.ts";
import { waitForExit } from "./wait_for_exit.ts";

const graceSeconds = 10;
// CNI plugins and runtimes have deadlines of their own in the daemon; this is the last resort.
const startTimeoutMs = 240_000;

export const run = defineCommand({
  meta: { description: "Run a command in a new pod, show its output, and remove the pod" },
  args: {
    image: { type: "positional", description: "Name or id of an image; a command may follow" },
    name: { type: "string", description: "Name of pod and container (else from the image's)" },
    env: {
      type: "string",
      alias: "e",
      ...repeatable,
      valueHint: "NAME=VALUE",
      description: "Variable; repeatable",
    },
    volume: {
      type: "string",
      alias: "v",
      ...repeatable,
      valueHint: "host:container[:ro]",
      description: "Mount a folder or file of the host; repeatable",
    },
    publish: {
      type: "string",
      alias: "p",
      ...repeatable,
      valueHint: "host:pod[/udp]",
      description: "Make a port of the pod one of the host; repeatable",
    },
    workdir: { type: "string", alias: "w", description: "Working directory" },
    "host-network": { type: "boolean", description: "The host's network instead of a pod's own" },
    privileged: { type: "boolean", description: "All capabilities and devices" },
    runtime: { type: "string", valueHint: "handler", description: "Another runtime handler" },
    pull: { type: "boolean", description: "Ask the registry even if the image is here" },
    ...hostArg,
  },
  run: ({ args, rawArgs }) => {
    const [image = "", ...command] = args._;
    const options: RunOptions = {
      image,
      command,
      name: args.name,
      env: everyValue(rawArgs, ["--env", "-e"]),
      volumes: everyValue(rawArgs, ["--volume", "-v"]),
      ports: everyValue(rawArgs, ["--publish", "-p"]),
      workdir: args.workdir,
      hostNetwork: args["host-network"] === true,
      privileged: args.privileged === true,
      runtimeHandler: args.runtime ?? "",
    };
    return withClient(args, (client) => runImage(client, options, args.pull === true));
  },
});

/** The exit code for our process. @throws CriError for what is not the container's doing */
async function runImage(client: Client, options: RunOptions, pull: boolean) {
  podConfig(options, "", ""); // What is wrong in the options is said before anything is fetched.
  containerConfig(options, "", "");
  using interrupts = catchInterrupts();
  try {
    const imageId = await resolveImage(client, options.image, { pull, signal: interrupts.signal });
    return await runPod(client, { ...options, imageId }, interrupts);
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
  const [id = ""] = await follow(pulling, { title: `Pulling ${name}`, quiet: false });
  return id;
}

async function runPod(
  client: Client,
  options: RunOptions & { imageId: string },
  interrupts: Interrupts,
): Promise<number> {
  const uid = randomUUID();
  await using undo = new AsyncDisposableStack();
  const logDirectory = mkdtempSync(join(tmpdir(), "isulad-ts-run-"));
  undo.defer(() => rm(logDirectory, { recursive: true, force: true }));
  undo.defer(() => removePods(client, uid));

  const config = podConfig(options, uid, logDirectory);
  const timeoutMs = startTimeoutMs;
  const { pod_sandbox_id } = await client.RunPodSandbox(
    { config, runtime_handler: options.runtimeHandler },
    { timeoutMs },
  );
  if (interrupts.exitCode !== undefined) return interrupts.exitCode;
  const { container_id } = await client.CreateContainer(
    {
      pod_sandbox_id,
      config: containerConfig(options, uid, options.imageId),
      sandbox_config: config,
    },
    { timeoutMs },
  );
  if (interrupts.exitCode !== undefined) return interrupts.exitCode;
  try {
    await client.StartContainer({ container_id }, { timeoutMs });
  } catch (error) {
    say(`isulad-ts: ${messageOf(error)}`);
    return startFailureCode(messageOf(error));
  }
  const status = await showUntilExit(client, container_id, interrupts);
  return interrupts.exitCode ?? exitCodeOf(status);
}

/** Copies the container's output to ours until it has ended; an interrupt stops it. */
async function showUntilExit(client: Client, id: string, interrupts: Interrupts) {
  interrupts.onEach((count) => {
    if (count === 1) say("isulad-ts: stopping the container; once more kills it");
    const stopped = stopContainer(client, id, count === 1 ? graceSeconds : 0);
    stopped.catch((error) => say(`isulad-ts: cannot stop ${id}: ${messageOf(error)}`));
  });
  const { status } = await client.ContainerStatus({ container_id: id });
  const ended = new AbortController();
  const unwanted = new AbortController();
  const exited = waitForExit(client, id, unwanted.signal).finally(() => ended.abort());
  // A reader that goes away, or a log that cannot be read, ends the wait as well.
  const copied = copyLog(status?.log_path ?? "", ended.signal).finally(() => unwanted.abort());
  const [last] = await Promise.all([exited, copied]);
  return last;
}

async function copyLog(path: string, ended: AbortSignal): Promise<void> {
  try {
    for await (const { stream, bytes } of readLog(path, { follow: ended })) {
      await writeOut(stream, bytes);
    }
  } catch (error) {
    if (error instanceof ReaderGone) throw error;
    throw new CriError(codeOf(error), `Cannot read the log ${path}: ${messageOf(error)}`, {
      cause: error,
    });
  }
}

function exitCodeOf(status: ContainerStatus | undefined): number {
  if (status === undefined) {
    say("isulad-ts: the container was removed by somebody else");
    return ourFailureCode;
  }
  if (status.reason === "OOMKilled") say("isulad-ts: out of memory: it was killed");
  if (status.reason === "Unknown") say(`isulad-ts: ${status.message || "exit unknown"}`);
  return status.exit_code ?? 0;
}

/** Never throws: the container's exit code is worth more than the report of a failed removal. */
async function removePods(client: Client, uid: string): Promise<void> {
  try {
    const { items } = await client.ListPodSandbox({
      filter: { label_selector: { [runLabel]: uid } },
    });
    for (const { id } of items ?? []) {
      await client.StopPodSandbox({ pod_sandbox_id: id });
      await client.RemovePodSandbox({ pod_sandbox_id: id });
    }
  } catch (error) {
    const hint = "see isulad-ts pods, and remove it with isulad-ts rmp --force";
    say(`isulad-ts: the pod could not be removed: ${messageOf(error)}; ${hint}`);
  }
}
