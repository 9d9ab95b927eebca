// Reads and copies the extended attributes that layers keep.
import { lgetxattr, llistxattr, lsetxattr } from "../sys/path.ts";
import { isKept } from "./layer_manifest.ts";

/** Returns names and values; of a symlink its own. */
export function keptAttributes(path: string | Buffer): [name: string, value: Uint8Array][] {
  return llistxattr(path)
    .filter(isKept)
    .flatMap((name) => {
      const value = lgetxattr(path, name);
      return value === undefined ? [] : [[name, value]];
    });
}

/** Copies values as they are: ids in ACLs and capabilities are not shifted. */
export function copyAttributes(from: string | Buffer, to: string | Buffer): void {
  for (const [name, value] of keptAttributes(from)) lsetxattr(to, name, value);
}
