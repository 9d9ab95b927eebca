// Implements isulad-ts pods, ps and images, with crictl's tables.
import { defineCommand } from "citty";
import { messageOf } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { runtime } from "../proto/messages.js";
import type { Container, Image, PodSandbox } from "../proto/types.ts";
import { prune } from "./image_commands.ts";
import { verify } from "./images_verify.ts";
import { print } from "./output.ts";
import { UsageError } from "./options.ts";
import {
  completes,
  hostArg,
  podArg,
  showsFullIds,
  outputArg,
  printJson,
  quietArg,
  truncArg,
  withClient,
} from "./daemon_command.ts";
import { containerStates, podStates } from "./states.ts";
import { age, jsonForm, protoJson, shortId, size, table } from "./text.ts";

const { ContainerState } = runtime.v1;

const nameArg = {
  name: { type: "string", valueHint: "regexp", description: "Only names that match" },
} as const;

export const pods = defineCommand({
  meta: { description: "List pods" },
  args: { ...nameArg, ...quietArg, ...truncArg, ...outputArg, ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const wanted = pattern(args.name);
      const response = await client.ListPodSandbox({});
      response.items = newestFirst(response.items, wanted);
      if (args.output === "json") {
        printJson(protoJson(runtime.v1.ListPodSandboxResponse.toObject(response, jsonForm)));
      } else if (args.quiet) printIds(response.items);
      else process.stdout.write(podTable(response.items, showsFullIds(args)));
    }),
});

export function podTable(items: readonly PodSandbox[], fullIds: boolean): string {
  const header = ["POD ID", "CREATED", "STATE", "NAME", "NAMESPACE", "ATTEMPT", "RUNTIME"];
  const rows = items.map((pod) => [
    fullIds ? (pod.id ?? "") : shortId(pod.id ?? ""),
    age(pod.created_at),
    podStates[pod.state ?? 0] ?? "",
    pod.metadata?.name ?? "",
    pod.metadata?.namespace ?? "",
    String(pod.metadata?.attempt ?? 0),
    pod.runtime_handler || "(default)",
  ]);
  return table([header, ...rows]);
}

export const ps = defineCommand({
  meta: { description: "List running containers" },
  args: {
    all: { type: "boolean", alias: "a", description: "Include containers that are not running" },
    ...podArg,
    ...nameArg,
    ...quietArg,
    ...truncArg,
    ...outputArg,
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const wanted = pattern(args.name);
      const podId = args.pod === undefined ? undefined : (await find.pod(args.pod)).id;
      const state = args.all ? undefined : { state: ContainerState.CONTAINER_RUNNING };
      const response = await client.ListContainers({ filter: { pod_sandbox_id: podId, state } });
      response.containers = newestFirst(response.containers, wanted);
      if (args.output === "json") {
        printJson(protoJson(runtime.v1.ListContainersResponse.toObject(response, jsonForm)));
      } else if (args.quiet) printIds(response.containers);
      else process.stdout.write(containerTable(response.containers, showsFullIds(args)));
    }),
});

export function containerTable(items: readonly Container[], fullIds: boolean): string {
  const header = "CONTAINER,IMAGE,CREATED,STATE,NAME,ATTEMPT,POD ID,POD,NAMESPACE".split(",");
  const id = (text: string | null | undefined) => (fullIds ? (text ?? "") : shortId(text ?? ""));
  const rows = items.map((container) => {
    const image = container.image?.image ?? "";
    return [
      id(container.id),
      image.startsWith("sha256:") ? id(image) : image,
      age(container.created_at),
      containerStates[container.state ?? 0] ?? "",
      container.metadata?.name ?? "",
      String(container.metadata?.attempt ?? 0),
      id(container.pod_sandbox_id),
      container.labels?.["io.kubernetes.pod.name"] ?? "unknown",
      container.labels?.["io.kubernetes.pod.namespace"] ?? "unknown",
    ];
  });
  return table([header, ...rows]);
}

export const images = defineCommand({
  meta: { description: "List images" },
  subCommands: { prune, verify },
  args: {
    image: {
      type: "positional",
      required: false,
      description: "Only the image of this name",
      ...completes.image,
    },
    digests: { type: "boolean", description: "Show digests" },
    ...quietArg,
    ...truncArg,
    ...outputArg,
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const filter = args.image ? { image: { image: args.image } } : undefined;
      const response = await client.ListImages({ filter });
      const show = { fullIds: showsFullIds(args), digests: args.digests === true };
      if (args.output === "json") {
        printJson(protoJson(runtime.v1.ListImagesResponse.toObject(response, jsonForm)));
      } else if (args.quiet) printIds(response.images);
      else process.stdout.write(imageTable(response.images, show));
    }),
});

/** Formats a row for each tag; an untagged image has one row, with the repository of its first digest. */
export function imageTable(
  items: readonly Image[],
  show: { fullIds: boolean; digests: boolean },
): string {
  const none = "<none>";
  const shown = (id: string) => (show.fullIds ? id : shortId(id));
  const rows = items.flatMap((image) => {
    const [repository = none, digest = none] = image.repo_digests?.[0]?.split("@") ?? [];
    const tags = image.repo_tags?.length ? image.repo_tags : [`${repository}:${none}`];
    return tags.map((tag) => {
      const colon = tag.lastIndexOf(":");
      const id = [shown(image.id ?? ""), size(image.size)];
      const middle = show.digests ? [shown(digest)] : [];
      return [tag.slice(0, colon), tag.slice(colon + 1), ...middle, ...id];
    });
  });
  const header = ["IMAGE", "TAG", ...(show.digests ? ["DIGEST"] : []), "IMAGE ID", "SIZE"];
  return table([header, ...rows.sort((a, b) => (a.join() < b.join() ? -1 : 1))]);
}

function printIds(items: readonly { id?: string | null }[]): void {
  for (const item of items) print(item.id ?? "");
}

/** Parses --name; the default matches all names. @throws UsageError */
function pattern(name = ""): RegExp {
  try {
    return new RegExp(name);
  } catch (error) {
    throw new UsageError(`--name: ${messageOf(error)}`);
  }
}

function newestFirst<T extends PodSandbox | Container>(items: T[], wanted: RegExp): T[] {
  return items
    .filter((item) => wanted.test(item.metadata?.name ?? ""))
    .sort((a, b) => Number(toBigInt(b.created_at) - toBigInt(a.created_at)));
}
