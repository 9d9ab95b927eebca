// The volumes that an image names (Volumes in its config): each becomes a folder of the container's
// own, with what the image has at that place, that is writable and goes with the container.
import { chmod, chown, lstat, mkdir } from "node:fs/promises";
import { join, posix } from "node:path";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { failureOutput, run } from "../sys/run.ts";
import { resolveInRoot } from "./host.ts";

const volumesMax = 256;
/** Nothing that the kernel or the pod has there can be a volume. */
const taken = /^\/(proc|sys|dev)?$|^\/(proc|sys)\//;

export type VolumeOptions = {
  /** The container's; the volumes come to lie in "volumes" there. */
  folder: string;
  rootfs: string;
  /** The image's: hostile input. */
  paths: string[];
  /** Where the container has mounts: nothing is made for those. */
  destinations: string[];
  /** The root of the container's user namespace. */
  owner?: { uid: number; gid: number };
  signal: AbortSignal;
};

/**
 * Makes them. @throws CriError FAILED_PRECONDITION for an image whose volumes cannot be had,
 * DEADLINE_EXCEEDED when the copy takes longer than the signal allows.
 */
export async function makeVolumes(
  options: VolumeOptions,
): Promise<{ path: string; source: string }[]> {
  const paths = new Set(options.paths.map(normal));
  if (paths.size > volumesMax) {
    throw broken(`it names ${paths.size} volumes, over ${volumesMax}`);
  }
  for (const destination of options.destinations) paths.delete(normal(destination));
  const made: { path: string; source: string }[] = [];
  for (const path of paths) {
    if (taken.test(path) || path.includes("\0")) {
      throw broken(`its volume ${quoted(path)} would cover what is the system's`);
    }
    const source = join(options.folder, "volumes", String(made.length));
    await makeVolume(options, path, source);
    made.push({ path, source });
  }
  return made;
}

async function makeVolume(options: VolumeOptions, path: string, source: string): Promise<void> {
  await mkdir(join(options.folder, "volumes"), { recursive: true, mode: 0o711 });
  await mkdir(source, { mode: 0o755 });
  const image = await resolveInRoot(options.rootfs, path);
  if (image === undefined) {
    if (options.owner !== undefined) await chown(source, options.owner.uid, options.owner.gid);
    return;
  }
  const info = await lstat(image);
  if (!info.isDirectory()) throw broken(`its volume ${path} is no folder`);
  const argv = ["cp", "-a", "--", `${image}/.`, `${source}/`];
  const result = await run(argv, { signal: options.signal, isExpendable: true });
  if (result.exitCode !== 0) {
    const why = failureOutput(result);
    throw new CriError("INTERNAL", `cannot copy the image's ${path} to a volume: ${why}`);
  }
  await chown(source, info.uid, info.gid);
  await chmod(source, info.mode & 0o7777);
}

function normal(path: string): string {
  const full = posix.join("/", path);
  return full.length > 1 && full.endsWith("/") ? full.slice(0, -1) : full;
}

function broken(why: string): CriError {
  return new CriError("FAILED_PRECONDITION", `the image cannot be run: ${why}`);
}
