// Implements isulad-ts stop, stopp, rm, rmp and rmi. CRI answers OK for unknown ids; these commands look each
// one up first, so that a mistyped one is an error.
import { defineCommand } from "citty";
import { codeOf, CriError } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import { runtime } from "../proto/messages.js";
import type { Client } from "./client.ts";
import { print, say } from "./output.ts";
import { repeatable, UsageError } from "./options.ts";
import {
  completes,
  containerOperand,
  forEach,
  forEachContainer,
  hostArg,
  podOperand,
  secondsOf,
  withClient,
} from "./daemon_command.ts";
import { containerStates, podStates } from "./states.ts";

const running = containerStates[runtime.v1.ContainerState.CONTAINER_RUNNING];
const ready = podStates[runtime.v1.PodSandboxState.SANDBOX_READY];

/** Operands that --all replaces. */
const several = { required: false, ...repeatable } as const;
const allArg = (what: string) =>
  ({ all: { type: "boolean", alias: "a", description: `All ${what}` } }) as const;
const forceArg = (what: string) =>
  ({ force: { type: "boolean", alias: "f", description: what } }) as const;

export const stop = defineCommand({
  meta: { description: "Stop containers" },
  args: {
    container: { ...containerOperand, ...repeatable },
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
    withClient(args, (client, find) => {
      const graceSeconds = secondsOf(args.timeout, "--timeout");
      return forEachContainer(find, args._, ({ id }) => stopContainer(client, id, graceSeconds));
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
    container: { ...containerOperand, ...several },
    ...allArg("containers"),
    ...forceArg("Kill and remove running containers"),
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const chosen = chosenBy(args, "container");
      const listed = args.all ? (await client.ListContainers({})).containers : [];
      const ids = args.all ? listed.map(({ id }) => id ?? "") : chosen;
      return await forEachContainer(find, ids, async ({ id, state }) => {
        if (state === running && !args.force) {
          throw new CriError(
            "FAILED_PRECONDITION",
            "the container is running: stop it first (isulad-ts stop), or use --force",
          );
        }
        await client.RemoveContainer({ container_id: id });
      });
    }),
});

export const stopp = defineCommand({
  meta: { description: "Stop pods and their containers" },
  args: { pod: { ...podOperand, ...repeatable }, ...hostArg },
  run: ({ args }) =>
    withClient(args, (client, find) =>
      forEach(args._, async (text) => {
        const { id } = await find.pod(text);
        await client.StopPodSandbox({ pod_sandbox_id: id });
        print(`Stopped sandbox ${text}`);
      }),
    ),
});

export const rmp = defineCommand({
  meta: { description: "Remove pods and their containers" },
  args: {
    pod: { ...podOperand, ...several },
    ...allArg("pods"),
    ...forceArg("Stop and remove ready pods"),
    "abandon-network": {
      type: "boolean",
      description: "Remove pods although their CNI DEL fails: their addresses stay taken",
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const chosen = chosenBy(args, "pod");
      const listed = args.all ? (await client.ListPodSandbox({})).items : [];
      const ids = args.all ? listed.map(({ id }) => id ?? "") : chosen;
      return await forEach(ids, async (text) => {
        const { id, state } = await find.pod(text);
        if (state === ready && !args.force) {
          throw new CriError(
            "FAILED_PRECONDITION",
            "the pod is ready: stop it first (isulad-ts stopp), or use --force",
          );
        }
        const abandons = args["abandon-network"] === true;
        await removePod(client, id).catch(async (error: unknown) => {
          if (!abandons) throw error;
          await abandonNetwork(client, id, error);
          await removePod(client, id);
        });
        print(`Removed sandbox ${text}`);
      });
    }),
});

async function removePod(client: Client, id: string): Promise<void> {
  await client.StopPodSandbox({ pod_sandbox_id: id });
  await client.RemovePodSandbox({ pod_sandbox_id: id });
}

/** Has the pod's failed CNI DEL abandoned. @throws `error`, the failure of the removal, if no CNI DEL has failed. */
async function abandonNetwork(client: Client, id: string, error: unknown): Promise<void> {
  await client.AbandonNetwork({ pod_sandbox_id: id }).catch((other: unknown) => {
    throw codeOf(other) === "FAILED_PRECONDITION" ? error : other;
  });
  const where = "the daemon's log has the reason and the file that names them";
  say(
    `${id}: its network is given up: its addresses stay taken unless CNI DEL succeeds now; ${where}`,
  );
}

export const rmi = defineCommand({
  meta: { description: "Remove images, with all their names" },
  args: {
    image: {
      type: "positional",
      description: "Name, digest or id",
      ...repeatable,
      ...completes.image,
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client) =>
      forEach(args._, async (name) => {
        const { image } = await client.ImageStatus({ image: { image: name } });
        if (!image) throw new CriError("NOT_FOUND", "no such image: isulad-ts images lists all");
        await client.RemoveImage({ image: { image: image.id } });
        for (const tag of image.repo_tags ?? []) print(`Deleted: ${tag}`);
        print(`Deleted: ${image.id}`);
      }),
    ),
});

/** @throws UsageError unless either operands or --all are given */
function chosenBy(args: { _: string[]; all?: boolean | undefined }, what: string): string[] {
  if (args._.length > 0 !== (args.all === true)) return args._;
  throw new UsageError(`Specify a ${what}, or --all for all of them.`);
}
