// Implements isulad-ts runp, create, start, update and checkpoint: crictl's single steps, with its files.
import { randomUUID } from "node:crypto";
import { resolve } from "node:path";
import { defineCommand } from "citty";
import { toLong } from "../base/int64.ts";
import { quoted } from "../base/text.ts";
import { runtime } from "../proto/messages.js";
import type { LinuxContainerResources } from "../proto/types.ts";
import {
  containerOperand,
  forEachContainer,
  hostArg,
  podOperand,
  withClient,
} from "./daemon_command.ts";
import { readMessage } from "./message_file.ts";
import { repeatable, UsageError } from "./options.ts";
import { print } from "./output.ts";

// This deadline is a last resort: the daemon has shorter ones for CNI plugins and runtimes.
const startTimeoutMs = 240_000;

const { ContainerConfig, PodSandboxConfig } = runtime.v1;

const podFile = {
  type: "positional",
  required: true,
  valueHint: "pod-file",
  description: "JSON or YAML of a PodSandboxConfig; - is standard input",
} as const;

/** A pod without a uid gets a random one, as with crictl. */
async function readPod(file: string) {
  const config = await readMessage(file, PodSandboxConfig);
  if (config.metadata) config.metadata.uid ||= randomUUID();
  return config;
}

export const runp = defineCommand({
  meta: { description: "Run a pod without containers" },
  args: {
    file: podFile,
    runtime: { type: "string", alias: "r", valueHint: "handler", description: "Runtime handler" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const config = await readPod(args.file);
      const request = { config, runtime_handler: args.runtime ?? "" };
      const answer = await client.RunPodSandbox(request, { timeoutMs: startTimeoutMs });
      print(answer.pod_sandbox_id ?? "");
    }),
});

export const create = defineCommand({
  meta: { description: "Create a container in a pod" },
  args: {
    pod: podOperand,
    container: {
      type: "positional",
      required: true,
      valueHint: "container-file",
      description: "JSON or YAML of a ContainerConfig",
    },
    file: podFile,
    "with-pull": { type: "boolean", description: "Pull the image before" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const config = await readMessage(args.container, ContainerConfig);
      const sandbox_config = await readMessage(args.file, PodSandboxConfig);
      const { id: pod_sandbox_id } = await find.pod(args.pod);
      if (args["with-pull"]) {
        await client.PullImage({ image: config.image, sandbox_config }, { timeoutMs: 0 });
      }
      const request = { pod_sandbox_id, config, sandbox_config };
      const answer = await client.CreateContainer(request, { timeoutMs: startTimeoutMs });
      print(answer.container_id ?? "");
    }),
});

export const start = defineCommand({
  meta: { description: "Start created containers" },
  args: { container: { ...containerOperand, ...repeatable }, ...hostArg },
  run: ({ args }) =>
    withClient(args, (client, find) =>
      forEachContainer(find, args._, async ({ id }) => {
        await client.StartContainer({ container_id: id }, { timeoutMs: startTimeoutMs });
      }),
    ),
});

const limit = (valueHint: string, description: string) =>
  ({ type: "string", valueHint, description }) as const;

/** Options and the fields that they set. */
const numberFields = {
  "cpu-period": "cpu_period",
  "cpu-quota": "cpu_quota",
  "cpu-share": "cpu_shares",
  memory: "memory_limit_in_bytes",
} as const;

export const update = defineCommand({
  meta: { description: "Change limits of containers" },
  args: {
    container: { ...containerOperand, ...repeatable },
    "cpu-period": limit("µs", "Period of the CPU quota"),
    "cpu-quota": limit("µs", "CPU time in each period"),
    "cpu-share": limit("weight", "Weight against other containers"),
    "cpuset-cpus": limit("list", "CPUs that it may use, such as 0-3,8"),
    "cpuset-mems": limit("list", "Memory nodes that it may use"),
    memory: limit("bytes", "Limit of memory"),
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client, find) => {
      const linux = limitsOf(args);
      return forEachContainer(find, args._, async ({ id }) => {
        await client.UpdateContainerResources({ container_id: id, linux });
      });
    }),
});

function limitsOf(args: Record<string, unknown>): LinuxContainerResources {
  const limits: LinuxContainerResources = {};
  for (const [option, field] of Object.entries(numberFields)) {
    const text = args[option] as string | undefined;
    if (text === undefined) continue;
    // CRI leaves a limit of 0 as it is.
    if (!/^-?[1-9]\d{0,17}$/.test(text)) {
      throw new UsageError(`--${option} takes a whole number other than 0, not ${quoted(text)}`);
    }
    limits[field] = toLong(BigInt(text));
  }
  for (const [option, field] of [
    ["cpuset-cpus", "cpuset_cpus"],
    ["cpuset-mems", "cpuset_mems"],
  ] as const) {
    const text = args[option] as string | undefined;
    if (text !== undefined) limits[field] = text;
  }
  if (Object.keys(limits).length > 0) return limits;
  throw new UsageError("Specify a limit, such as --memory. See isulad-ts update --help.");
}

export const checkpoint = defineCommand({
  meta: { description: "Write a running container's state into an archive (needs criu)" },
  args: {
    container: containerOperand,
    export: {
      type: "string",
      alias: "e",
      required: true,
      valueHint: "file",
      description: "Path of the archive on the daemon's host",
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const { id } = await find.container(args.container);
      const request = { container_id: id, location: resolve(args.export) };
      await client.CheckpointContainer(request, { timeoutMs: 0 });
      print(args.container);
    }),
});
