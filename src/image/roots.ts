// The mounted roots of this node: containers', pause containers' and image volumes', and which layers
// they are mounted from.
import { mkdir } from "node:fs/promises";
import { resolve } from "node:path";
import { CriError } from "../base/errors.ts";
import { allowGroupTraversal } from "../sys/group_access.ts";
import type { CopyJob } from "../layer/job_copy.ts";
import type { UnpackPool } from "../layer/unpack_pool.ts";
import { shortId, type LayerStore } from "../layer/layer_store.ts";
import type { ImageRecord } from "./records.ts";
import { assertDiskSpace } from "../layer/disk_space.ts";
import { mountRootfs, unmountRootfs, type RootfsMaker, type RootfsParts } from "../layer/rootfs.ts";
import type { Storage } from "../layer/storage_driver.ts";

export type RootParts = Omit<RootfsParts, "trees" | "lower"> & { signal: AbortSignal };

export type RootsOptions = {
  /** The graph folder as it was given. */
  graph: string;
  /** As the kernel names it. */
  realGraph: string;
  layers: LayerStore;
  storage: Storage;
  /** Those that are mounted already (overlay.ts mountedOverlays). */
  mounts: Map<string, string[]>;
  startHelpers: () => UnpackPool;
};

export class Roots {
  readonly #options: RootsOptions;
  /** Container folder → short names of the layers it is mounted from. */
  readonly #mounts: Map<string, string[]>;

  constructor(options: RootsOptions) {
    this.#options = options;
    this.#mounts = options.mounts;
  }

  /** How many roots are mounted from a layer. */
  countOf(chainId: string): number {
    const name = shortId(chainId);
    return [...this.#mounts.values()].filter((lower) => lower.includes(name)).length;
  }

  /** Short names of the layers that some root is mounted from. */
  used(): Set<string> {
    return new Set([...this.#mounts.values()].flat());
  }

  /**
   * @returns the path of the mounted root. On failure what it made stays: unmount() takes it away.
   * @throws CriError FAILED_PRECONDITION when the image has gone, RESOURCE_EXHAUSTED without room for a
   * copy, INTERNAL with the kernel's reason.
   */
  async mount(image: ImageRecord, { dir, signal, ...parts }: RootParts): Promise<string> {
    const { layers } = this.#options;
    const absolute = this.#real(dir);
    const missing = image.layers.find((chainId) => !layers.has(chainId));
    if (missing !== undefined) {
      const message = `the image ${image.id} was removed meanwhile: pull it again`;
      throw new CriError("FAILED_PRECONDITION", message);
    }
    const lower = image.layers.map(shortId);
    this.#mounts.set(absolute, lower); // first: from now on the layers stay
    // The folder of a container or pod is there, and closed; an image volume's is made in it.
    await mkdir(absolute, { recursive: true, mode: 0o711 });
    if (parts.owner !== undefined) allowGroupTraversal(absolute, parts.owner.gid);
    const maker = this.#maker(image, signal);
    const root = await mountRootfs({ trees: layers.trees, lower, dir: absolute, ...parts }, maker);
    if (maker.copy !== undefined) this.#mounts.set(absolute, []); // a copy needs them no more
    return root;
  }

  /** Unmounts and removes what mount() made; false: there was nothing. */
  async unmount(dir: string): Promise<boolean> {
    const absolute = this.#real(dir);
    await unmountRootfs(absolute, this.#options.storage);
    return this.#mounts.delete(absolute);
  }

  #maker({ sizeBytes }: ImageRecord, signal: AbortSignal): RootfsMaker {
    const { storage, realGraph, startHelpers } = this.#options;
    const { driver, quota } = storage;
    if (driver === "overlay2") return { quota };
    const copy = async (job: CopyJob) => {
      await assertDiskSpace(realGraph, sizeBytes, "a copy of the image takes");
      await using helpers = startHelpers();
      await helpers.run(job, { signal });
    };
    return { copy, quota };
  }

  /** A container's folder as the kernel names it, whether it is there or not. */
  #real(dir: string): string {
    const { graph, realGraph } = this.#options;
    const [path, given] = [resolve(dir), resolve(graph)];
    return path.startsWith(`${given}/`) ? realGraph + path.slice(given.length) : path;
  }
}
