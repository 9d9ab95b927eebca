// Mounts image volumes (KEP-4639): images whose files a container sees under a mount path. Each image is a
// read-only overlay in the container's folder, mounted as long as the container exists.
//
// Decision: one mount per container rather than per pod, which would need reference counting. An overlay of
// existing layers takes no disk space and less than a millisecond.
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { ImageRecord } from "../image/store.ts";
import { RootLookup } from "../node/path_in_root.ts";
import type { ContainerConfig, Mount } from "../proto/types.ts";
import { mountName } from "../spec/mounts.ts";
import type { Container } from "../state/container.ts";
import type { Context } from "./context.ts";
import { getImage } from "./image_records.ts";
import { rootfsOwner } from "./rootfs_owner.ts";

/**
 * Resolves each image mount's reference to the present image id, for ContainerStatus (KEP-5365).
 * @throws CriError NOT_FOUND for an image that is not on this node.
 */
export function withImageRefs(context: Context, config: ContainerConfig): ContainerConfig {
  const resolve = (mount: Mount): Mount => {
    if (!mount.image) return mount;
    const { id } = imageOf(context, mount, mount.image.image!);
    return { ...mount, image: { ...mount.image, image_ref: id } };
  };
  return { ...config, mounts: config.mounts?.map(resolve) };
}

function imageOf(context: Context, mount: Mount, reference: string): ImageRecord {
  try {
    return getImage(context, reference);
  } catch (error) {
    throw volumeError(mount, error);
  }
}

/** Kubelets recognize the error by its first word (cri-api, pkg/errors). */
function volumeError(mount: Mount, cause: unknown): CriError {
  const message = `ImageVolumeMountFailed: ${mountName(mount)}: ${messageOf(cause)}`;
  return new CriError(codeOf(cause), message, { cause });
}

/** Mounts all image volumes; returns the source folder of each, by index in config.mounts. */
export async function mountImageVolumes(
  context: Context,
  container: Container,
  signal: AbortSignal,
): Promise<Map<number, string>> {
  const { images, containers, sandboxes } = context;
  const owner = rootfsOwner(sandboxes.get(container.sandboxId));
  const label = container.selinux?.mount;
  const roots = new Map<string, RootLookup>();
  const folders = new Map<number, string>();
  for (const [index, mount] of (container.config.mounts ?? []).entries()) {
    if (!mount.image) continue;
    const image = imageOf(context, mount, mount.image.image_ref!);
    try {
      let root = roots.get(image.id);
      if (root === undefined) {
        const dir = join(volumesFolder(containers.folderOf(container.id)), String(roots.size));
        const mounting = images.mountRootfs(image, { dir, readonly: true, owner, label, signal });
        root = new RootLookup(await mounting, signal);
        roots.set(image.id, root);
      }
      folders.set(index, await root.folder(mount.image_sub_path ?? ""));
    } catch (error) {
      throw volumeError(mount, error);
    }
  }
  return folders;
}

/** Unmounts a container's image volumes and its root. Idempotent. */
export async function unmountImages(context: Context, id: string): Promise<void> {
  const folder = context.containers.folderOf(id);
  const volumes = volumesFolder(folder);
  for (const name of existsSync(volumes) ? readdirSync(volumes) : []) {
    await context.images.unmountRootfs(join(volumes, name));
  }
  await context.images.unmountRootfs(folder);
}

function volumesFolder(containerFolder: string): string {
  return join(containerFolder, "image-volumes");
}
