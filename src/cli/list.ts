// Implements isulad-ts pods, ps and images, with crictl's tables.
import { defineCommand } from "citty";
import { nearest } from "../base/edit_distance.ts";
import { runtime } from "../proto/messages.js";
import type { Container, Image, PodSandbox } from "../proto/types.ts";
import type { Client } from "./client.ts";
import {
  completes,
  hostArg,
  quietArg,
  showsFullIds,
  truncArg,
  withClient,
} from "./daemon_command.ts";
import {
  containerFilterArgs,
  imageFilterArgs,
  imageNameOf,
  listContainers,
  listImages,
  listPods,
  podFilterArgs,
} from "./filters.ts";
import { checkFormat, screenTable, show, tableFormatArgs } from "./format.ts";
import { prune } from "./image_commands.ts";
import { verify } from "./images_verify.ts";
import { print, say } from "./output.ts";
import { containerStates, podStates } from "./states.ts";
import { age, jsonForm, protoJson, shortId, size } from "./text.ts";

const podNameLabel = "io.kubernetes.pod.name";
type PodNames = ReadonlyMap<string | null | undefined, PodSandbox["metadata"]>;

const viewArgs = { ...quietArg, ...truncArg, ...tableFormatArgs, ...hostArg } as const;

export const pods = defineCommand({
  meta: { description: "List pods" },
  args: { ...podFilterArgs, ...viewArgs },
  run: ({ args, rawArgs }) =>
    withClient(args, async (client) => {
      checkFormat(args);
      const response = await listPods(client, { args, rawArgs });
      if (args.quiet) return printIds(response.items);
      const value = protoJson(runtime.v1.ListPodSandboxResponse.toObject(response, jsonForm));
      return await show(args, value, () => podTable(response.items, showsFullIds(args)));
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
  const columns = {
    dispensable: ["ATTEMPT", "RUNTIME"],
    narrow: ["NAMESPACE", "STATE", "CREATED"],
  };
  return screenTable([header, ...rows], columns, fullIds);
}

export const ps = defineCommand({
  meta: { description: "List running containers" },
  args: {
    all: { type: "boolean", alias: "a", description: "Include containers that are not running" },
    ...containerFilterArgs,
    ...viewArgs,
  },
  run: ({ args, rawArgs }) =>
    withClient(args, async (client, find) => {
      checkFormat(args);
      const from = { client, find, all: args.all === true };
      const response = await listContainers(from, { args, rawArgs });
      if (args.quiet) return printIds(response.containers);
      const value = protoJson(runtime.v1.ListContainersResponse.toObject(response, jsonForm));
      const pods = await podsOf(client, response.containers);
      const table = () => containerTable(response.containers, showsFullIds(args), pods);
      return await show(args, value, table);
    }),
});

/** Returns the pods by id if there is a container without the labels by which kubelets name its pod. */
async function podsOf(client: Client, containers: readonly Container[]): Promise<PodNames> {
  if (containers.every(({ labels }) => labels?.[podNameLabel] !== undefined)) return new Map();
  const { items } = await client.ListPodSandbox({});
  return new Map(items.map(({ id, metadata }) => [id, metadata]));
}

export function containerTable(
  items: readonly Container[],
  fullIds: boolean,
  pods: PodNames = new Map(),
): string {
  const header = "CONTAINER,IMAGE,CREATED,STATE,NAME,ATTEMPT,POD ID,POD,NAMESPACE".split(",");
  const id = (text: string | null | undefined) => (fullIds ? (text ?? "") : shortId(text ?? ""));
  const rows = items.map((container) => {
    const image = imageNameOf(container);
    const pod = pods.get(container.pod_sandbox_id);
    return [
      id(container.id),
      image.startsWith("sha256:") ? id(image) : fullIds ? image : withoutDigest(image),
      age(container.created_at),
      containerStates[container.state ?? 0] ?? "",
      container.metadata?.name ?? "",
      String(container.metadata?.attempt ?? 0),
      id(container.pod_sandbox_id),
      container.labels?.[podNameLabel] ?? pod?.name ?? "unknown",
      container.labels?.["io.kubernetes.pod.namespace"] ?? pod?.namespace ?? "unknown",
    ];
  });
  const columns = {
    dispensable: ["POD ID", "ATTEMPT"],
    narrow: ["NAMESPACE", "STATE", "CREATED", "IMAGE"],
  };
  return screenTable([header, ...rows], columns, fullIds);
}

/** Leaves out the digest of a name that has a tag, on a terminal. */
function withoutDigest(image: string): string {
  return process.stdout.isTTY
    ? image.replace(/(?<=:[\w.-]{1,128})@sha256:[0-9a-f]{64}$/, "")
    : image;
}

const imagesCommands = { prune, verify };

export const images = defineCommand({
  meta: { description: "List images" },
  subCommands: imagesCommands,
  args: {
    image: {
      type: "positional",
      required: false,
      description: "Only the image of this name",
      ...completes.image,
    },
    digests: { type: "boolean", description: "Show digests" },
    ...imageFilterArgs,
    ...viewArgs,
  },
  run: ({ args, rawArgs }) =>
    withClient(args, async (client) => {
      checkFormat(args);
      const response = await listImages(client, args.image, { args, rawArgs });
      if (args.quiet) return printIds(response.images);
      if (args.image && response.images.length === 0) say(noImage(args.image));
      const value = protoJson(runtime.v1.ListImagesResponse.toObject(response, jsonForm));
      const shown = { fullIds: showsFullIds(args), digests: args.digests === true };
      return await show(args, value, () => imageTable(response.images, shown));
    }),
});

/** A mistyped subcommand is taken for an image's name. */
function noImage(name: string): string {
  const command = nearest(name, Object.keys(imagesCommands), 2);
  const advice =
    command === "" ? "isulad-ts images lists all" : `did you mean isulad-ts images ${command}?`;
  return `isulad-ts: no image ${name}: ${advice}`;
}

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
  return screenTable(
    [header, ...rows.sort((a, b) => (a.join() < b.join() ? -1 : 1))],
    { narrow: ["DIGEST", "IMAGE ID"] },
    show.fullIds,
  );
}

function printIds(items: readonly { id?: string | null }[]): void {
  for (const item of items) print(item.id ?? "");
}
