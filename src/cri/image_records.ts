// Finds images and converts between image records and CRI messages.
import { CriError } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import type { ImageRecord, RegistryAuth } from "../image/store.ts";
import type { AuthConfig, Image } from "../proto/types.ts";
import { imageUserOf } from "../spec/users.ts";
import type { Context } from "./context.ts";

/** @throws CriError NOT_FOUND: creating a container never pulls. */
export function getImage({ images }: Pick<Context, "images">, reference: string): ImageRecord {
  const image = images.find(reference);
  if (image !== undefined) return image;
  throw new CriError("NOT_FOUND", `image ${reference} is not on this node: pull it first`);
}

export function imageMessage(image: ImageRecord, pinned: boolean): Image {
  const { uid, username } = imageUserOf(image.config.User ?? "");
  return {
    id: image.id,
    repo_tags: image.repoTags,
    repo_digests: image.repoDigests,
    size: toLong(image.sizeBytes),
    uid: uid === undefined ? undefined : { value: toLong(uid) },
    username: username ?? "",
    // Without a handler: a kubelet takes an image in use for unused unless ListContainers has the same one.
    spec: { image: image.id },
    pinned,
  };
}

export function registryAuth(auth: AuthConfig | null | undefined): RegistryAuth | undefined {
  if (!auth) return undefined;
  const { server_address, identity_token, registry_token, ...rest } = auth;
  return {
    ...rest,
    serverAddress: server_address,
    identityToken: identity_token,
    registryToken: registry_token,
  };
}
