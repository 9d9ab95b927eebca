// The image service, and the node service's Pull and Load.
import { nowNs, toLong } from "../base/int64.ts";
import type { ImageRecord, RegistryAuth } from "../image/store.ts";
import { runtime } from "../proto/messages.js";
import type {
  AuthConfig,
  Image,
  ImageFsInfoResponse,
  ImageStatusRequest,
  ImageStatusResponse,
  ListImagesRequest,
  ListImagesResponse,
  LoadRequest,
  LoadResponse,
  PullImageRequest,
  PullImageResponse,
  PullProgress,
  PullRequest,
  RemoveImageRequest,
  StreamImagesRequest,
} from "../proto/types.ts";
import { imageUserOf } from "../spec/users.ts";
import { handlerOf, type Call, type Context } from "./context.ts";
import { candidates } from "./filter.ts";
import { type Encoded, listItem, sendItems } from "./lists.ts";

export async function pullImage(
  context: Context,
  request: PullImageRequest,
  call: Call,
): Promise<PullImageResponse> {
  const reference = request.image!.image!;
  handlerOf(context, request.image?.runtime_handler ?? "");
  const auth = authOf(request.auth);
  const image = await context.instruments.pull(
    context.images.pull(reference, { auth, signal: call.signal }),
  );
  return { image_ref: image.id };
}

function authOf(auth: AuthConfig | null | undefined): RegistryAuth | undefined {
  if (!auth) return undefined;
  const { server_address, identity_token, registry_token, ...rest } = auth;
  return {
    ...rest,
    serverAddress: server_address,
    identityToken: identity_token,
    registryToken: registry_token,
  };
}

export function imageStatus(context: Context, request: ImageStatusRequest): ImageStatusResponse {
  const image = context.images.find(request.image!.image!);
  if (image === undefined) return {};
  return {
    image: criImage(context, image),
    info: request.verbose === true ? { info: infoOf(image) } : {},
  };
}

function infoOf(image: ImageRecord): string {
  const plain = (_key: string, value: unknown) =>
    typeof value === "bigint" ? String(value) : value;
  return JSON.stringify(image, plain);
}

export function listImages(context: Context, request: ListImagesRequest): ListImagesResponse {
  const reference = request.filter?.image?.image;
  const images = candidates(context.images, reference);
  return { images: images.map((image) => criImage(context, image)) };
}

export function streamImages(
  context: Context,
  request: StreamImagesRequest,
  call: Call,
  send: (batch: Encoded) => Promise<void>,
): Promise<void> {
  const { images = [] } = listImages(context, request);
  const items = images!.map((image) => listItem(runtime.v1.Image, image));
  return sendItems(items, call, send);
}

export async function removeImage(context: Context, request: RemoveImageRequest): Promise<object> {
  await context.images.remove(request.image!.image!);
  return {};
}

/** inodes_used stays unset: counting them would walk every layer at each of a kubelet's questions. */
export function imageFsInfo(context: Context): ImageFsInfoResponse {
  const usage = {
    timestamp: toLong(nowNs()),
    fs_id: { mountpoint: context.config.graph },
    used_bytes: { value: toLong(context.images.usedBytes()) },
  };
  return { image_filesystems: [usage] };
}

function criImage(context: Context, image: ImageRecord): Image {
  const { uid, username } = imageUserOf(image.config.User ?? "");
  return {
    id: image.id,
    repo_tags: image.repoTags,
    repo_digests: image.repoDigests,
    size: toLong(image.sizeBytes),
    uid: uid === undefined ? undefined : { value: toLong(uid) },
    username: username ?? "",
    spec: { image: image.id },
    pinned: context.images.pinned(image),
  };
}

/** isulad.v1 Pull: as PullImage, with progress. */
export async function pullWithProgress(
  context: Context,
  request: PullRequest,
  call: Call,
  send: (progress: PullProgress) => Promise<void>,
): Promise<void> {
  let last: PullProgress = {};
  let sending = Promise.resolve();
  let waiting = false;
  const pull = context.images.pull(request.image!, {
    signal: call.signal,
    onProgress: ({ doneBytes, totalBytes }) => {
      last = { done_bytes: toLong(doneBytes), total_bytes: toLong(totalBytes) };
      // While a message is on its way only the newest is kept.
      if (waiting) return;
      waiting = true;
      sending = sending.then(async () => {
        waiting = false;
        await send(last);
      });
    },
  });
  const image = await context.instruments.pull(pull);
  await sending;
  await send({ ...last, image_ref: image.id });
}

export async function load(
  context: Context,
  request: LoadRequest,
  call: Call,
): Promise<LoadResponse> {
  const name = request.name || undefined;
  const images = await context.images.load(request.path!, { name, signal: call.signal });
  return { images: images.flatMap(({ repoTags, id }) => (repoTags.length > 0 ? repoTags : [id])) };
}
