// Mounts root file systems of containers, pause containers and image volumes, and tracks which layers each
// is mounted from.
import { mkdir } from "node:fs/promises";
import { resolve } from "node:path";
import { CriError } from "../base/errors.ts";
import { allowGroupTraversal } from "../sys/group_access.ts";
import type { CopyJob } from "../layer/job_copy.ts";
import type { UnpackPool } from "../layer/unpack_pool.ts";
import type { LayerStore } from "../layer/layer_store.ts";
import type { ImageRecord } from "./records.ts";
import { assertDiskSpace } from "../layer/disk_space.ts";
import { mountRootfs, unmountRootfs, type RootfsMaker, type RootfsParts } from "../layer/rootfs.ts";
import type { Storage } from "../layer/storage_driver.ts";

export type RootfsMountOptions = Omit<RootfsParts, "trees" | "lower"> & { signal: AbortSignal };

export type RootfsMountsParts = {
  /** The graph folder as configured. */
  graph: string;
  /** Its real path. */
  realGraph: string;
  layers: LayerStore;
  storage: Storage;
  /** The mounts that the previous daemon has left (mountedOverlays() of layer/overlay.ts). */
  mounts: Map<string, string[]>;
  startHelpers: () => UnpackPool;
};

export class RootfsMounts {
  readonly #parts: RootfsMountsParts;
  /** Container folder → short names of the layers it is mounted from. */
  readonly #mounts: Map<string, string[]>;

  constructor(parts: RootfsMountsParts) {
    this.#parts = parts;
    this.#mounts = parts.mounts;
  }

  /** Returns how many roots are mounted from a layer. */
  countOf(chainId: string): number {
    const name = this.#parts.layers.nameOf(chainId);
    return [...this.#mounts.values()].filter((lower) => lower.includes(name)).length;
  }

  /** Returns the short names of all layers that roots are mounted from. */
  used(): Set<string> {
    return new Set([...this.#mounts.values()].flat());
  }

  /**
   * Returns the path of the mounted root. After a failure, unmount() must clean up.
   * @throws CriError FAILED_PRECONDITION if the image was removed, RESOURCE_EXHAUSTED without disk space for
   * a copy, INTERNAL with the kernel's reason.
   */
  async mount(image: ImageRecord, { dir, signal, ...parts }: RootfsMountOptions): Promise<string> {
    const { layers } = this.#parts;
    const absolute = this.#real(dir);
    if (!image.layers.every((chainId) => layers.has(chainId))) {
      const message = `the image ${image.id} was removed during the call: pull it again`;
      throw new CriError("FAILED_PRECONDITION", message);
    }
    const lower = image.layers.map((chainId) => layers.nameOf(chainId));
    this.#mounts.set(absolute, lower); // before the mount, so that GC keeps the layers
    // The folder exists for containers and pods, with a stricter mode; that of an image volume is created here.
    await mkdir(absolute, { recursive: true, mode: 0o711 });
    if (parts.owner !== undefined) allowGroupTraversal(absolute, parts.owner.gid);
    const maker = this.#maker(image, signal);
    const root = await mountRootfs({ trees: layers.trees, lower, dir: absolute, ...parts }, maker);
    if (maker.copy !== undefined) this.#mounts.set(absolute, []); // a copy does not need them
    return root;
  }

  /** Undoes mount(); returns false if nothing was mounted. */
  async unmount(dir: string): Promise<boolean> {
    const absolute = this.#real(dir);
    await unmountRootfs(absolute, this.#parts.storage);
    return this.#mounts.delete(absolute);
  }

  #maker({ sizeBytes }: ImageRecord, signal: AbortSignal): RootfsMaker {
    const { storage, realGraph, startHelpers } = this.#parts;
    const { driver, quota, overlayOptions } = storage;
    if (driver === "overlay2") return { quota, overlayOptions };
    const copy = async (job: CopyJob) => {
      await assertDiskSpace(realGraph, sizeBytes, "a copy of the image takes");
      await using helpers = startHelpers();
      await helpers.run(job, { signal });
    };
    return { copy, quota };
  }

  /** Returns the real path of a folder that may not exist. */
  #real(dir: string): string {
    const { graph, realGraph } = this.#parts;
    const [path, given] = [resolve(dir), resolve(graph)];
    return path.startsWith(`${given}/`) ? realGraph + path.slice(given.length) : path;
  }
}
