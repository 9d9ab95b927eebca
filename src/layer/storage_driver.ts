// Chooses the storage driver at the start: overlay2 if a trial overlay mount works, else native.
import { CriError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { hasNativeLayer } from "./layer_record.ts";
import { overlayProblem } from "./overlay.ts";
import type { OverlayOption } from "./overlay_paths.ts";
import { ContainerQuota } from "./container_quota.ts";

export type StorageDriver = "overlay2" | "native";

export type StorageOptions = {
  /** auto: overlay2 if it works, else native. */
  driver: StorageDriver | "auto";
  /** Limit of each container's writable layer; 0: none. */
  containerBytes: number;
  overlayOptions: readonly OverlayOption[];
};

export type Storage = {
  driver: StorageDriver;
  /** Why overlay2 does not work, when "auto" chose native. */
  problem?: string;
  quota?: ContainerQuota;
  overlayOptions: readonly OverlayOption[];
};

/**
 * folder: the one of the layers.
 * @throws CriError FAILED_PRECONDITION for a driver or a limit that the file system does not support.
 */
export async function openStorage(folder: string, o: StorageOptions, log: Log): Promise<Storage> {
  const { overlayOptions } = o;
  const storage = { ...(await chooseDriver(folder, o, log)), overlayOptions };
  if (o.containerBytes === 0) return storage;
  return { ...storage, quota: ContainerQuota.open(folder, o.containerBytes) };
}

async function chooseDriver(
  folder: string,
  { driver, overlayOptions }: StorageOptions,
  log: Log,
): Promise<Pick<Storage, "driver" | "problem">> {
  if (driver === "native") return { driver };
  const found = await overlayProblem(folder, overlayOptions);
  if (found === undefined) return { driver: "overlay2" };
  const { problem, isKnown } = found;
  if (!isKnown) return keepDriver(folder, driver, { problem, log });
  if (driver === "overlay2") {
    const message = `"storage-driver": "overlay2" does not work on the file system of ${folder} (${problem}): put "graph" on ext4, xfs or btrfs, or let "storage-driver" be "auto", which copies the image for each container there`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  log.warn("overlayfs does not work, each container gets a copy of its image", { folder, problem });
  return { driver: "native", problem };
}

/** Keeps the driver of the existing layers, which a full disk must not make unusable. */
async function keepDriver(
  folder: string,
  driver: StorageOptions["driver"],
  { problem, log }: { problem: string; log: Log },
): Promise<Pick<Storage, "driver" | "problem">> {
  const wasNative = driver === "auto" && (await hasNativeLayer(folder));
  const kept = wasNative ? "native" : "overlay2";
  const message = `no trial overlay mount is possible now, using ${kept} until the next start`;
  log.warn(message, { folder, problem });
  return wasNative ? { driver: kept, problem } : { driver: kept };
}
