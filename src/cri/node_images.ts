// Image calls of isulad.v1.NodeService, which CRI lacks. Pull, Load and Save stream their progress.
import { toLong } from "../base/int64.ts";
import type { ImageProgress, LayerState } from "../image/store.ts";
import { isulad } from "../proto/messages.js";
import type * as api from "../proto/types.ts";
import type { Container } from "../state/container.ts";
import type { Call, Context } from "./context.ts";
import { imageMessage, registryAuth } from "./image_records.ts";

type Send = (progress: api.ImageProgress) => Promise<void>;

export async function pull(
  context: Context,
  request: api.PullRequest,
  call: Call,
  send: Send,
): Promise<void> {
  const progress = new ProgressSender(send);
  const { onProgress } = progress;
  const options = { auth: registryAuth(request.auth), signal: call.signal, onProgress };
  const pulling = context.images.pull(request.image!, options);
  const { id } = await context.instruments.pull(pulling);
  await progress.end([id]);
}

export async function load(
  context: Context,
  request: api.LoadRequest,
  call: Call,
  send: Send,
): Promise<void> {
  const progress = new ProgressSender(send);
  const { onProgress } = progress;
  const options = { name: request.name || undefined, signal: call.signal, onProgress };
  const images = await context.images.load(request.path!, options);
  await progress.end(images.flatMap(({ repoTags, id }) => (repoTags.length > 0 ? repoTags : [id])));
}

export async function save(
  context: Context,
  request: api.SaveRequest,
  call: Call,
  send: Send,
): Promise<void> {
  const { images, path, force } = request;
  const progress = new ProgressSender(send);
  const { onProgress } = progress;
  const options = { path: path!, force: force === true, signal: call.signal, onProgress };
  await context.images.save(images!, options);
  await progress.end([]);
}

const { LayerState: states } = isulad.v1;
const stateNumbers: Record<LayerState, isulad.v1.LayerState> = {
  waiting: states.LAYER_WAITING,
  moving: states.LAYER_MOVING,
  done: states.LAYER_DONE,
  present: states.LAYER_PRESENT,
};

/** Sends progress at the client's pace: newer progress of an image replaces unsent older progress. */
class ProgressSender {
  readonly #send: Send;
  readonly #waiting = new Map<string, ImageProgress>();
  #last: ImageProgress | undefined;
  #sending: Promise<void> | undefined;

  constructor(send: Send) {
    this.#send = send;
  }

  readonly onProgress = (progress: ImageProgress): void => {
    this.#last = progress;
    this.#waiting.set(progress.image, progress);
    this.#sending ??= this.#sendAll().finally(() => (this.#sending = undefined));
  };

  async #sendAll(): Promise<void> {
    for (const [image, progress] of this.#waiting) {
      this.#waiting.delete(image);
      await this.#send(message(progress));
    }
  }

  /** Sends the last progress again, with the names or ids of the finished images. */
  async end(images: string[]): Promise<void> {
    await this.#sending;
    const last = this.#last;
    await this.#send({ ...(last === undefined ? {} : message(last)), images });
  }
}

function message({ image, layers }: ImageProgress): api.ImageProgress {
  return {
    image,
    layers: layers.map(({ digest, state, doneBytes, totalBytes }) => ({
      digest,
      state: stateNumbers[state],
      done_bytes: toLong(doneBytes),
      total_bytes: toLong(totalBytes),
    })),
  };
}

/** Removes images that no container uses as its root or as a volume, except for pinned ones. */
export async function pruneImages(
  { images, containers }: Pick<Context, "images" | "containers">,
  request: api.PruneImagesRequest,
): Promise<api.PruneImagesResponse> {
  const used = usedImages(containers.list());
  const unused = images.list().filter((image) => !used.has(image.id) && !images.pinned(image));
  const response = {
    images: unused.map((image) => imageMessage(image, false)),
    freed_bytes: toLong(images.freedBy(new Set(unused.map(({ id }) => id)))),
  };
  if (request.dry_run !== true) for (const { id } of unused) await images.remove(id);
  return response;
}

function usedImages(containers: Container[]): Set<string> {
  return new Set(
    containers.flatMap(({ image, config }) => [
      image.id,
      ...(config.mounts ?? []).map((mount) => mount.image?.image_ref ?? ""),
    ]),
  );
}

/** Sends the result of each endpoint as soon as it is known. */
export async function checkRegistry(
  context: Context,
  request: api.CheckRegistryRequest,
  call: Call,
  send: (check: api.EndpointCheck) => Promise<void>,
): Promise<void> {
  const { image, username, password } = request;
  const auth = username ? { username, password } : undefined;
  for await (const check of context.images.checkRegistry(image!, { auth, signal: call.signal })) {
    const { elapsedMs, ...rest } = check;
    await send({ ...rest, elapsed_ms: toLong(elapsedMs) });
  }
}

/** Compares layers on disk with what was unpacked. */
export async function verifyImages(
  context: Context,
  request: api.VerifyImagesRequest,
  call: Call,
  send: (layer: api.VerifiedLayer) => Promise<void>,
): Promise<void> {
  const options = { repair: request.repair === true, signal: call.signal };
  for await (const check of context.images.verify(request.image ?? "", options)) {
    const { chainId, images, state, differences, differencesCount, note } = check;
    const differences_count = toLong(differencesCount);
    await send({ chain_id: chainId, images, state, differences, differences_count, note });
  }
}
