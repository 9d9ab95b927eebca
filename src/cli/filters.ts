// Provides the options by which ps, pods, images and the inspect commands choose, and the lists they choose from.
import { messageOf } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { quoted } from "../base/text.ts";
import { runtime } from "../proto/messages.js";
import type { Container, Image, PodSandbox } from "../proto/types.ts";
import type { Client } from "./client.ts";
import { completes, podArg } from "./daemon_command.ts";
import type { Lookup } from "./lookup.ts";
import { repeatable, UsageError } from "./options.ts";
import { everyValue } from "./program.ts";

const { ContainerState, PodSandboxState } = runtime.v1;

const containerStateOf: Record<string, runtime.v1.ContainerState> = {
  created: ContainerState.CONTAINER_CREATED,
  running: ContainerState.CONTAINER_RUNNING,
  exited: ContainerState.CONTAINER_EXITED,
  unknown: ContainerState.CONTAINER_UNKNOWN,
};
const podStateOf: Record<string, runtime.v1.PodSandboxState> = {
  ready: PodSandboxState.SANDBOX_READY,
  notready: PodSandboxState.SANDBOX_NOTREADY,
};

export const labelArg = {
  label: {
    type: "string",
    valueHint: "key=value",
    description: "Only those with this label",
    ...repeatable,
  },
} as const;

const sharedArgs = {
  name: { type: "string", valueHint: "regexp", description: "Only names that match" },
  namespace: { type: "string", valueHint: "name", description: "Only those of this namespace" },
  ...labelArg,
  latest: { type: "boolean", alias: "l", description: "Only the newest" },
  last: { type: "string", alias: "n", valueHint: "count", description: "Only the newest ones" },
} as const;

const stateArg = (states: Record<string, number>) =>
  ({
    state: {
      type: "enum",
      alias: "s",
      options: Object.keys(states),
      description: "Only those in this state",
    },
  }) as const;

export const podFilterArgs = { ...sharedArgs, ...stateArg(podStateOf) } as const;
export const containerFilterArgs = {
  ...podArg,
  ...sharedArgs,
  ...stateArg(containerStateOf),
  image: {
    type: "string",
    valueHint: "image",
    description: "Only those of this image, by name, digest or id",
    ...completes.image,
  },
} as const;
export const imageFilterArgs = {
  filter: {
    type: "string",
    alias: "f",
    valueHint: "key=value",
    description: "dangling=true, dangling=false or reference=regexp",
    ...repeatable,
  },
  pinned: { type: "boolean", description: "Only images that are never removed as unused" },
} as const;

type Shared = {
  name?: string | undefined;
  namespace?: string | undefined;
  state?: string | undefined;
  latest?: boolean | undefined;
  last?: string | undefined;
};
export type ContainerFilters = Shared & { pod?: string | undefined; image?: string | undefined };
/** rawArgs: has the values of repeated options. */
type Given<Filters> = { args: Filters; rawArgs: readonly string[] };

/** filters: the options of which one may be given. */
export function hasFilter(args: Record<string, unknown>, filters: object): boolean {
  return Object.keys(filters).some((name) => args[name] !== undefined && args[name] !== false);
}

/** Lists pods, newest first. @throws UsageError for a malformed filter */
export async function listPods(client: Client, { args, rawArgs }: Given<Shared>) {
  const choose = chooser(args);
  const state = args.state === undefined ? undefined : { state: podStateOf[args.state] };
  const response = await client.ListPodSandbox({
    filter: { state, label_selector: labelsOf(rawArgs) },
  });
  const isThere = ({ metadata }: PodSandbox) =>
    args.namespace === undefined || metadata?.namespace === args.namespace;
  response.items = choose(response.items.filter(isThere));
  return response;
}

/**
 * Lists containers, newest first: the running ones unless another state, --latest or --last is chosen, or all
 * is set.
 * @throws UsageError for a malformed filter, CriError for an unknown pod or image
 */
export async function listContainers(
  { client, find, all }: { client: Client; find: Lookup; all: boolean },
  { args, rawArgs }: Given<ContainerFilters>,
) {
  const choose = chooser(args);
  const label_selector = labelsOf(rawArgs);
  const podId = args.pod === undefined ? undefined : (await find.pod(args.pod)).id;
  const isAny = all || args.latest === true || args.last !== undefined;
  const wanted = args.state ?? (isAny ? undefined : "running");
  const state = wanted === undefined ? undefined : { state: containerStateOf[wanted] };
  const response = await client.ListContainers({
    filter: { pod_sandbox_id: podId, state, label_selector },
  });
  let found = response.containers;
  if (args.namespace !== undefined) {
    const { items } = await client.ListPodSandbox({});
    const pods = items.filter(({ metadata }) => metadata?.namespace === args.namespace);
    const ids = new Set(pods.map(({ id }) => id));
    found = found.filter((container) => ids.has(container.pod_sandbox_id));
  }
  if (args.image !== undefined) {
    const names = await imageNames(client, args.image);
    found = found.filter((one) => names.has(imageNameOf(one)) || names.has(one.image_ref));
  }
  response.containers = choose(found);
  return response;
}

/** Kubelets create containers by the id of the image. */
export function imageNameOf({ image }: Container): string {
  return image?.user_specified_image || (image?.image ?? "");
}

async function imageNames(client: Client, name: string): Promise<Set<string | null | undefined>> {
  const { image } = await client.ImageStatus({ image: { image: name } });
  const { id, repo_tags, repo_digests } = image ?? {};
  return new Set([name, id, ...(repo_tags ?? []), ...(repo_digests ?? [])]);
}

/** Lists images. name: only the image of this name. @throws UsageError for a malformed filter */
export async function listImages(
  client: Client,
  name: string | undefined,
  { args, rawArgs }: Given<{ pinned?: boolean | undefined }>,
) {
  const tests = everyValue(rawArgs, "filter").map(imageTest);
  if (args.pinned === true) tests.push(({ pinned }) => pinned === true);
  const filter = name ? { image: { image: name } } : undefined;
  const response = await client.ListImages({ filter });
  response.images = response.images.filter((image) => tests.every((passes) => passes(image)));
  return response;
}

function imageTest(text: string): (image: Image) => boolean {
  const [, key, value = ""] = /^(\w+)=(.*)$/s.exec(text) ?? [];
  if (key === "dangling" && /^(true|false)$/.test(value)) {
    return ({ repo_tags }) => ((repo_tags ?? []).length === 0) === (value === "true");
  }
  if (key === "reference") {
    const wanted = regexpOf(value, "--filter reference");
    return ({ repo_tags, repo_digests }) =>
      [...(repo_tags ?? []), ...(repo_digests ?? [])].some((name) => wanted.test(name));
  }
  throw new UsageError(
    `--filter takes dangling=true, dangling=false or reference=regexp, not ${quoted(text)}`,
  );
}

/** @throws UsageError */
export function labelsOf(rawArgs: readonly string[]): Record<string, string> {
  const pairs = everyValue(rawArgs, "label").map((text) => {
    const [, key, value = ""] = /^([^=]+)=(.*)$/s.exec(text) ?? [];
    if (key === undefined) throw new UsageError(`--label takes key=value, not ${quoted(text)}`);
    return [key, value] as const;
  });
  return Object.fromEntries(pairs);
}

/** @throws UsageError */
function chooser({ name = "", latest, last }: Shared) {
  const wanted = regexpOf(name, "--name");
  if (latest && last !== undefined) throw new UsageError("--latest excludes --last");
  if (last !== undefined && !/^[1-9]\d{0,8}$/.test(last)) {
    throw new UsageError(`--last takes a number of 1 or more, not ${quoted(last)}`);
  }
  const count = latest ? 1 : last === undefined ? Infinity : Number(last);
  return <T extends PodSandbox | Container>(items: T[]): T[] =>
    items
      .filter((item) => wanted.test(item.metadata?.name ?? ""))
      .sort((a, b) => Number(toBigInt(b.created_at) - toBigInt(a.created_at)))
      .slice(0, count);
}

function regexpOf(text: string, option: string): RegExp {
  try {
    return new RegExp(text);
  } catch (error) {
    throw new UsageError(`${option}: ${messageOf(error)}`);
  }
}
