// How this node makes roots of layers: found out by trying when the store is opened.
import { CriError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { overlayProblem } from "./overlay.ts";
import { LayerQuota } from "./quota.ts";

export type StorageDriver = "overlay2" | "native";

export type StorageOptions = {
  /** auto: overlay2 where that works, else native. */
  driver: StorageDriver | "auto";
  /** What each container may write into its own layer; 0: as much as there is. */
  containerBytes: number;
};

export type Storage = {
  driver: StorageDriver;
  /** Why it is not overlay2, where that was not asked for. */
  problem?: string;
  quota?: LayerQuota;
};

/**
 * folder: that of the layers.
 * @throws CriError FAILED_PRECONDITION for a driver or a limit that the file system cannot have.
 */
export async function openStorage(folder: string, o: StorageOptions, log: Log): Promise<Storage> {
  const storage = await chosen(folder, o.driver, log);
  if (o.containerBytes === 0) return storage;
  return { ...storage, quota: LayerQuota.open(folder, o.containerBytes) };
}

async function chosen(
  folder: string,
  driver: StorageOptions["driver"],
  log: Log,
): Promise<Pick<Storage, "driver" | "problem">> {
  if (driver === "native") return { driver };
  const problem = await overlayProblem(folder);
  if (problem === undefined) return { driver: "overlay2" };
  if (driver === "overlay2") {
    const message = `"storage-driver": "overlay2" does not work on the file system of ${folder} (${problem}): put "graph" on ext4, xfs or btrfs, or let "storage-driver" be "auto", which copies the image for each container there`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  log.warn("overlayfs does not work here: each container gets a copy of its image", {
    folder,
    problem,
  });
  return { driver: "native", problem };
}
