// Implements isulad-ts stop, stopp, rm, rmp and rmi. CRI answers OK for unknown ids; these commands look each
// id up first, so that a mistyped one is an error.
import { defineCommand } from "citty";
import { CriError } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import { runtime } from "../proto/messages.js";
import type { Client } from "./client.ts";
import { print } from "./output.ts";
import { repeatable, UsageError } from "./options.ts";
import { forEach, hostArg, secondsOf, withClient } from "./daemon_command.ts";

const { ContainerState, PodSandboxState } = runtime.v1;

const operands = { type: "positional", required: false, ...repeatable } as const;
const idArg = (what: string) =>
  ({ id: { ...operands, description: `Ids or id prefixes of ${what}` } }) as const;
const allArg = (what: string) =>
  ({ all: { type: "boolean", alias: "a", description: `All ${what}` } }) as const;
const forceArg = (what: string) =>
  ({ force: { type: "boolean", alias: "f", description: what } }) as const;

export const stop = defineCommand({
  meta: { description: "Stop containers" },
  args: {
    ...idArg("containers"),
    timeout: {
      type: "string",
      alias: "t",
      default: "10",
      valueHint: "seconds",
      description: "Grace period before they are killed; 0 kills at once",
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client) => {
      const graceSeconds = secondsOf(args.timeout, "--timeout");
      return forEach(required(args._, "a container"), async (id) => {
        const container = await containerOf(client, id);
        await stopContainer(client, container.id, graceSeconds);
        print(id);
      });
    }),
});

/** The call's deadline leaves the daemon time to kill and clean up after the grace period. */
export async function stopContainer(client: Client, id: string, graceSeconds: number) {
  const request = { container_id: id, timeout: toLong(graceSeconds) };
  await client.StopContainer(request, { timeoutMs: (graceSeconds + 60) * 1000 });
}

export const rm = defineCommand({
  meta: { description: "Remove containers" },
  args: {
    ...idArg("containers"),
    ...allArg("containers"),
    ...forceArg("Kill and remove running containers"),
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const listed = args.all ? (await client.ListContainers({})).containers : [];
      const ids = args.all ? listed.map(({ id }) => id ?? "") : required(args._, "a container");
      return await forEach(ids, async (id) => {
        const container = await containerOf(client, id);
        if (container.state === ContainerState.CONTAINER_RUNNING && !args.force) {
          throw new CriError("FAILED_PRECONDITION", "is running: stop it first, or use --force");
        }
        await client.RemoveContainer({ container_id: container.id });
        print(id);
      });
    }),
});

export const stopp = defineCommand({
  meta: { description: "Stop pods and their containers" },
  args: { ...idArg("pods"), ...hostArg },
  run: ({ args }) =>
    withClient(args, (client) =>
      forEach(required(args._, "a pod"), async (id) => {
        const pod = await podOf(client, id);
        await client.StopPodSandbox({ pod_sandbox_id: pod.id });
        print(`Stopped sandbox ${id}`);
      }),
    ),
});

export const rmp = defineCommand({
  meta: { description: "Remove pods and their containers" },
  args: {
    ...idArg("pods"),
    ...allArg("pods"),
    ...forceArg("Stop and remove ready pods"),
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const listed = args.all ? (await client.ListPodSandbox({})).items : [];
      const ids = args.all ? listed.map(({ id }) => id ?? "") : required(args._, "a pod");
      return await forEach(ids, async (id) => {
        const pod = await podOf(client, id);
        if (pod.state === PodSandboxState.SANDBOX_READY) {
          if (!args.force) {
            throw new CriError("FAILED_PRECONDITION", "is ready: stop it first, or use --force");
          }
          await client.StopPodSandbox({ pod_sandbox_id: pod.id });
        }
        await client.RemovePodSandbox({ pod_sandbox_id: pod.id });
        print(`Removed sandbox ${id}`);
      });
    }),
});

export const rmi = defineCommand({
  meta: { description: "Remove images, with all their names" },
  args: {
    image: { ...operands, description: "Names, digests or ids" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client) =>
      forEach(required(args._, "an image"), async (name) => {
        const { image } = await client.ImageStatus({ image: { image: name } });
        if (!image) throw new CriError("NOT_FOUND", "no such image");
        await client.RemoveImage({ image: { image: image.id } });
        for (const tag of image.repo_tags ?? []) print(`Deleted: ${tag}`);
        print(`Deleted: ${image.id}`);
      }),
    ),
});

async function containerOf(client: Client, id: string) {
  const { status } = await client.ContainerStatus({ container_id: id });
  return { id: status?.id ?? id, state: status?.state };
}

async function podOf(client: Client, id: string) {
  const { status } = await client.PodSandboxStatus({ pod_sandbox_id: id });
  return { id: status?.id ?? id, state: status?.state };
}

function required(ids: readonly string[], what: string): readonly string[] {
  if (ids.length > 0) return ids;
  throw new UsageError(`Specify ${what}.`);
}
