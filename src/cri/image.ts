// The image service. What it has no call for is in node_images.ts.
import { nowNs } from "../base/clock.ts";
import { toLong } from "../base/int64.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import type { ImageRecord, RegistryAuth } from "../image/store.ts";
import type { DiskUsage } from "../stats/disk_usage.ts";
import { runtime } from "../proto/messages.js";
import type {
  AuthConfig,
  Image,
  ImageFsInfoResponse,
  ImageStatusRequest,
  ImageStatusResponse,
  ListImagesRequest,
  PullImageRequest,
  PullImageResponse,
  RemoveImageRequest,
  StreamImagesRequest,
} from "../proto/types.ts";
import { imageUserOf } from "../spec/users.ts";
import { handlerOf, type Call, type Context } from "./context.ts";
import { candidates } from "./filter.ts";
import { Encoded, listItem, sendItems } from "./lists.ts";
import { layersOf } from "./stats.ts";
import { filesystemUsage } from "../stats/stats_messages.ts";

export async function pullImage(
  context: Context,
  request: PullImageRequest,
  call: Call,
): Promise<PullImageResponse> {
  const { image: reference, runtime_handler: handler } = request.image!;
  handlerOf(context, handler ?? "");
  const options = {
    auth: authOf(request.auth),
    runtimeHandler: handler || undefined,
    signal: call.signal,
  };
  const image = await context.instruments.pull(context.images.pull(reference!, options));
  return { image_ref: image.id };
}

export function authOf(auth: AuthConfig | null | undefined): RegistryAuth | undefined {
  if (!auth) return undefined;
  const { server_address, identity_token, registry_token, ...rest } = auth;
  return {
    ...rest,
    serverAddress: server_address,
    identityToken: identity_token,
    registryToken: registry_token,
  };
}

/** @throws CriError INVALID_ARGUMENT for an unknown handler, or the start of several ids. */
export async function imageStatus(
  context: Context,
  request: ImageStatusRequest,
): Promise<ImageStatusResponse> {
  const { image: reference, runtime_handler: handler } = request.image!;
  handlerOf(context, handler ?? "");
  const image = context.images.find(reference!);
  if (image === undefined) return {};
  return {
    image: criImage(context, image),
    info: request.verbose === true ? { info: await infoOf(context, image) } : {},
  };
}

/** imageSpec and chainID as containerd has them; the rest is ours. */
async function infoOf(context: Context, image: ImageRecord): Promise<string> {
  const { layers, config } = await context.images.detailsOf(image);
  return jsonText({
    chainID: image.layers.at(-1) ?? "",
    imageSpec: config === "" ? { config: image.config } : jsonValue(config),
    layers,
    source: image.source,
    pulledAt: new Date(Number(image.pulledAtNs / 1_000_000n)).toISOString(),
    runtimeHandler: image.runtimeHandler ?? "",
  });
}

export function listImages(context: Context, request: ListImagesRequest): Encoded {
  return new Encoded(items(context, request));
}

export function streamImages(
  context: Context,
  request: StreamImagesRequest,
  call: Call,
  send: (batch: Encoded) => Promise<void>,
): Promise<void> {
  return sendItems(items(context, request), call, send);
}

function items(context: Context, request: ListImagesRequest): Uint8Array[] {
  const images = candidates(context.images, request.filter?.image?.image);
  return images.map((image) => itemOf(context, image));
}

/** A record that changes is another object, and what is pinned stays the same. */
const itemsOfImages = new WeakMap<ImageRecord, Uint8Array>();

function itemOf(context: Context, image: ImageRecord): Uint8Array {
  const known = itemsOfImages.get(image);
  if (known !== undefined) return known;
  const item = listItem(runtime.v1.Image, criImage(context, image));
  itemsOfImages.set(image, item);
  return item;
}

export async function removeImage(context: Context, request: RemoveImageRequest): Promise<object> {
  await context.images.remove(request.image!.image!);
  return {};
}

/**
 * Images: what their layers came to when they were unpacked. Containers: what they have written, as it
 * was last counted in the background; of those that never were, as many as a second allows.
 */
export async function imageFsInfo(context: Context): Promise<ImageFsInfoResponse> {
  const atNs = nowNs();
  const { graph } = context.config;
  const written = [...(await layersOf(context, context.containers.list())).values()];
  const sum = (of: (usage: DiskUsage) => bigint) =>
    written.reduce((total, usage) => total + of(usage), 0n);
  const containers = {
    atNs,
    bytes: sum(({ bytes }) => bytes),
    inodes: sum(({ inodes }) => inodes),
  };
  return {
    image_filesystems: [filesystemUsage({ atNs, ...context.images.usage() }, graph)],
    container_filesystems: [filesystemUsage(containers, graph)],
  };
}

export function criImage(context: Context, image: ImageRecord): Image {
  const { uid, username } = imageUserOf(image.config.User ?? "");
  return {
    id: image.id,
    repo_tags: image.repoTags,
    repo_digests: image.repoDigests,
    size: toLong(image.sizeBytes),
    uid: uid === undefined ? undefined : { value: toLong(uid) },
    username: username ?? "",
    spec: { image: image.id, runtime_handler: image.runtimeHandler },
    pinned: context.images.pinned(image),
  };
}
