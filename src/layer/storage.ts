// How this node makes roots of layers: found out by trying when the store is opened.
import { CriError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { hasNativeLayer } from "./layer_file.ts";
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
  const found = await overlayProblem(folder);
  if (found === undefined) return { driver: "overlay2" };
  const { problem, isKnown } = found;
  if (!isKnown) return untried(folder, driver, { problem, log });
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

/** A full disk must not change the driver: images that came before could not be used, or those after. */
async function untried(
  folder: string,
  driver: StorageOptions["driver"],
  { problem, log }: { problem: string; log: Log },
): Promise<Pick<Storage, "driver" | "problem">> {
  const wasNative = driver === "auto" && (await hasNativeLayer(folder));
  const kept = wasNative ? "native" : "overlay2";
  const message = `there is no room to find out whether overlayfs works here: ${kept} is taken until the next start`;
  log.warn(message, { folder, problem });
  return wasNative ? { driver: kept, problem } : { driver: kept };
}
