// Chooses the paths by which an overlay mount names its layers: the kernel shows them in the mount table, whose lines
// other programs bound.
import { CriError } from "../base/errors.ts";

/** An option of overlayfs that daemon.json sets, such as ["metacopy", "on"]. */
export type OverlayOption = readonly [key: string, value: string];

/** below: the layers, topmost first. */
export type Paths = { below: string[]; upper: string; work: string };

/**
 * named: the paths by name, which people recognize in the mount table. short: the same paths by descriptor, for those
 * that are too long or have special characters: 127 layers then fit into a page of options in any graph folder.
 */
export type Stack = {
  named: Paths;
  short: Paths;
  options: readonly OverlayOption[];
  readonly: boolean;
  label?: string | undefined;
};

/** Limit of one value for fsconfig(2). */
const valueBytesMax = 255;
/**
 * Half of what runc reads: while a line of the mount table is over 64 KiB, runc starts no container on the whole node
 * (Go's bufio.Scanner).
 */
const lineBytesMax = 32 << 10;
/** For the numbers and flags of a line. */
const restBytes = 512;

export function pathsOf({ below, upper, work }: Paths): string[] {
  return [...below, upper, work];
}

/** Returns the paths for options that are set one by one. @throws CriError FAILED_PRECONDITION for too long a line. */
export function pathsForTable(of: Stack, rootfs: string): Paths {
  const fits = (paths: Paths) => pathsOf(paths).every((path) => byteLength(path) <= valueBytesMax);
  const isShort = (paths: Paths) => lineBytes(of, paths, rootfs) < lineBytesMax;
  const found = [of.named, of.short].find((paths) => fits(paths) && isShort(paths));
  if (found !== undefined) return found;
  const layers = of.named.below.length;
  const message = `its ${layers} layers make a line of over ${lineBytesMax} bytes in the mount table, which programs do not read: build the image with fewer layers`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** An upper bound of the mount's line in /proc/self/mountinfo. */
function lineBytes({ options, label = "" }: Stack, paths: Paths, rootfs: string): number {
  const shown = [...pathsOf(paths).map((path) => `,lowerdir+=${path}`), label, rootfs];
  for (const [key, value] of options) shown.push(key, value);
  return shown.reduce((sum, text) => sum + shownBytes(text), restBytes);
}

/** The kernel shows special characters as four. */
function shownBytes(text: string): number {
  return byteLength(text) + 3 * (text.match(/[^\w/.:+=-]/g)?.length ?? 0);
}

function byteLength(text: string): number {
  return Buffer.byteLength(text);
}
