// Creates an image's volumes (Volumes in its config): each becomes a writable directory of the container,
// with a copy of the image's content at that path, and is removed with the container. They share the limit of the
// container's writable layer, and count as part of it.
import { chmod, chown, lstat, mkdir } from "node:fs/promises";
import { join, posix } from "node:path";
import { CriError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { quoted } from "../base/text.ts";
import { failureOutput, run } from "../sys/run.ts";
import { RootLookup } from "./path_in_root.ts";

const volumesMax = 256;
/** Volumes, nested or reached by symlinks, that may have a copy of the same content: 256 copies would fill a disk. */
const copiesMax = 8;
/** The runtime's own mounts, and the root. */
const reserved = /^\/(proc|sys|dev)?$|^\/(proc|sys)\//;

export type VolumeOptions = {
  /** Its id, for the log. */
  container: string;
  /** The container's folder; volumes are created in its subfolder "volumes". */
  folder: string;
  rootfs: string;
  /** From the image: hostile input. */
  paths: string[];
  /** Destinations of the container's mounts, which replace volumes. */
  destinations: string[];
  /** The root of the container's user namespace. */
  owner?: { uid: number; gid: number };
  /** Calls `fill`, which writes into the folder, with the folder under the container's limit on disk. */
  limited?: (folder: string, fill: () => Promise<void>) => Promise<void>;
  signal: AbortSignal;
  log: Log;
};

/** The folder of a container's volumes; containerFolder: as in VolumeOptions. */
export function volumesFolder(containerFolder: string): string {
  return join(containerFolder, "volumes");
}

/** @throws CriError FAILED_PRECONDITION for invalid volumes, DEADLINE_EXCEEDED for a copy that takes too long. */
export async function makeVolumes(
  options: VolumeOptions,
): Promise<{ path: string; source: string }[]> {
  const paths = new Set(options.paths.map(normal));
  if (paths.size > volumesMax) {
    throw broken(`${paths.size} volumes exceed the limit of ${volumesMax}`);
  }
  for (const destination of options.destinations) paths.delete(normal(destination));
  if (paths.size === 0) return [];
  const lookup = new RootLookup(options.rootfs, options.signal);
  const mounted = await mountPoints(options, lookup);
  const wanted: Wanted[] = [];
  /** Images for systemd have /sys/fs/cgroup as a volume. */
  const leftOut: string[] = [];
  for (const path of paths) {
    if (path.includes("\0")) throw broken(`volume ${quoted(path)} has a NUL byte`);
    lookup.charge(path);
    const found = await lookup.follow(path);
    if (reserved.test(path) || reserved.test(found?.at ?? "")) {
      leftOut.push(path);
      continue;
    }
    if (mounted.has(found?.at)) continue; // it would cover the mount
    const source = join(volumesFolder(options.folder), String(wanted.length));
    wanted.push({ path, source, image: found?.file });
  }
  checkCopies(wanted);
  if (wanted.length > 0) await fillVolumes(options, wanted);
  if (leftOut.length > 0) {
    const message = "volumes of the image are left out: they would cover mounts of the runtime";
    options.log.info(message, { container: options.container, volumes: leftOut.join(" ") });
  }
  return wanted.map(({ path, source }) => ({ path, source }));
}

/** image: the folder that is copied; undefined: the image has none. */
type Wanted = { path: string; source: string; image: string | undefined };

function checkCopies(wanted: Wanted[]): void {
  const folders = wanted.flatMap(({ image }) => (image === undefined ? [] : [`${image}/`]));
  for (const folder of folders) {
    const copies = folders.filter((above) => folder.startsWith(above)).length;
    if (copies <= copiesMax) continue;
    throw broken(`${copies} of its volumes would copy the same folder, over ${copiesMax}`);
  }
}

/** The image may have links to where the container's mounts are: /var/run is often one to /run. */
async function mountPoints(
  { destinations }: VolumeOptions,
  lookup: RootLookup,
): Promise<Set<string | undefined>> {
  const found = new Set<string | undefined>();
  for (const path of destinations) found.add((await lookup.follow(path))?.at);
  return found;
}

async function fillVolumes(options: VolumeOptions, wanted: Wanted[]): Promise<void> {
  const folder = volumesFolder(options.folder);
  await mkdir(folder, { recursive: true, mode: 0o711 });
  const fill = async () => {
    for (const volume of wanted) await makeVolume(options, volume);
  };
  await (options.limited?.(folder, fill) ?? fill());
}

async function makeVolume(options: VolumeOptions, { path, source, image }: Wanted): Promise<void> {
  await mkdir(source, { mode: 0o755 });
  if (image === undefined) {
    if (options.owner !== undefined) await chown(source, options.owner.uid, options.owner.gid);
    return;
  }
  const info = await lstat(image);
  if (!info.isDirectory()) throw broken(`volume ${path} is not a directory`);
  const argv = ["cp", "-a", "--", `${image}/.`, `${source}/`];
  const result = await run(argv, { signal: options.signal, isExpendable: true });
  if (result.exitCode !== 0) {
    const reason = failureOutput(result);
    throw new CriError("INTERNAL", `cannot copy the image's ${path} to a volume: ${reason}`);
  }
  await chown(source, info.uid, info.gid);
  await chmod(source, info.mode & 0o7777);
}

function normal(path: string): string {
  const full = posix.join("/", path);
  return full.length > 1 && full.endsWith("/") ? full.slice(0, -1) : full;
}

function broken(reason: string): CriError {
  return new CriError("FAILED_PRECONDITION", `cannot use the image: ${reason}`);
}
