// The CRI ImageService; node_images.ts has the further image calls of the NodeService.
import { nowNs } from "../base/clock.ts";
import { exactIntegers, jsonText, longJsonValue } from "../base/json.ts";
import { documentBounds } from "../base/json_bounds.ts";
import type { ImageRecord } from "../image/store.ts";
import type { DiskUsage } from "../stats/disk_usage.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import { filesystemUsage } from "../stats/stats_messages.ts";
import type { Call, Context } from "./context.ts";
import { listCalls, recordItems } from "./encoded_lists.ts";
import { imageMessage, registryAuth } from "./image_records.ts";
import { candidates } from "./list_filters.ts";
import { getHandler } from "./runtime_handlers.ts";
import { writableLayerUsage } from "./usage.ts";

export async function pullImage(
  context: Context,
  request: cri.PullImageRequest,
  call: Call,
): Promise<cri.PullImageResponse> {
  const { image: reference, runtime_handler: handler } = request.image!;
  getHandler(context, handler ?? "");
  const options = {
    auth: registryAuth(request.auth),
    runtimeHandler: handler || undefined,
    signal: call.signal,
  };
  const image = await context.instruments.pull(context.images.pull(reference!, options));
  return { image_ref: image.id };
}

/** @throws CriError INVALID_ARGUMENT for an unknown handler, or an ambiguous id prefix. */
export async function imageStatus(
  context: Context,
  request: cri.ImageStatusRequest,
): Promise<cri.ImageStatusResponse> {
  const { image: reference, runtime_handler: handler } = request.image!;
  getHandler(context, handler ?? "");
  const image = context.images.find(reference!);
  if (image === undefined) return {};
  return {
    image: imageMessage(image, context.images.pinned(image)),
    info: request.verbose === true ? { info: await infoOf(context, image) } : {},
  };
}

/** imageSpec and chainID match containerd; the other fields are isulad-ts's own. */
async function infoOf(context: Context, image: ImageRecord): Promise<string> {
  const { layers, config } = await context.images.detailsOf(image);
  return jsonText({
    chainID: image.layers.at(-1) ?? "",
    imageSpec: await imageSpecOf(image, config),
    layers,
    source: image.source,
    pulledAt: new Date(Number(image.pulledAtNs / 1_000_000n)).toISOString(),
    runtimeHandler: image.runtimeHandler ?? "",
  });
}

async function imageSpecOf(image: ImageRecord, config: string): Promise<unknown> {
  const spec =
    config === ""
      ? undefined
      : await longJsonValue(config, documentBounds, exactIntegers).catch(() => undefined);
  return spec ?? { config: image.config };
}

export const { list: listImages, stream: streamImages } = listCalls(
  ({ images }, { filter }: cri.ListImagesRequest) =>
    candidates(images, filter?.image?.image).map((image) =>
      images.pinned(image) ? pinnedItem(image) : unpinnedItem(image),
    ),
);

// Two caches: a reload of the configuration pins and unpins images without changing their records.
const imageItems = (pinned: boolean) =>
  recordItems(runtime.v1.Image, (image: ImageRecord) => imageMessage(image, pinned));
const [pinnedItem, unpinnedItem] = [imageItems(true), imageItems(false)];

export async function removeImage(
  context: Context,
  request: cri.RemoveImageRequest,
): Promise<object> {
  await context.images.remove(request.image!.image!);
  return {};
}

/**
 * Images: the size of their layers when unpacked. Containers: their writable layers as last counted in the
 * background; layers never counted before are counted now, for a second at most.
 */
export async function imageFsInfo(context: Context): Promise<cri.ImageFsInfoResponse> {
  const atNs = nowNs();
  const { graph } = context.config;
  const written = [...(await writableLayerUsage(context, context.containers.list())).values()];
  const sum = (value: (usage: DiskUsage) => bigint) =>
    written.reduce((total, usage) => total + value(usage), 0n);
  const bytes = sum(({ bytes }) => bytes);
  const inodes = sum(({ inodes }) => inodes);
  return {
    image_filesystems: [filesystemUsage({ atNs, ...context.images.usage() }, graph)],
    container_filesystems: [filesystemUsage({ atNs, bytes, inodes }, graph)],
  };
}
