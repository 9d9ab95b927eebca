// How a layer's tree says that it hides what the layers below have. There are two forms:
//
//   overlay   as overlayfs wants it: a removed name is the character device 0/0, a folder whose lower
//             content is removed has the attribute trusted.overlay.opaque
//   native    where such devices or attributes cannot be made (on an overlayfs, without attributes): a
//             removed name is the device 0/1, which no driver ever has, and an opaque folder holds
//             one under the name that image layers have for it (OCI image-spec, layer.md)
//
// What is read may be in either form; what a process writes is in one, from its start on.
import * as fs from "node:fs";
import { lgetxattr, lsetxattr, mknod } from "../sys/path.ts";

export type WhiteoutForm = "overlay" | "native";
type Path = string | Buffer;

export const opaqueMark = ".wh..wh..opq";

const S_IFCHR = 0o020000;
const opaqueAttribute = "trusted.overlay.opaque";
let written: WhiteoutForm = "overlay";

/** The form that this process writes from now on. */
export function writeWhiteouts(form: WhiteoutForm): void {
  written = form;
}

export function markRemoved(path: Path): void {
  mknod(path, S_IFCHR, 0, written === "overlay" ? 0 : 1);
}

export function markOpaque(folder: Path): void {
  if (written === "native") markRemoved(markIn(folder));
  else lsetxattr(folder, opaqueAttribute, Buffer.from("y"));
}

/** Whether a device of these numbers would be taken for a removed name. */
export function meansRemoved(major: number, minor: number): boolean {
  return major === 0 && minor <= 1;
}

/** Of an entry of a layer's tree. */
export function isRemoved(stat: fs.Stats | fs.BigIntStats): boolean {
  return stat.isCharacterDevice() && stat.rdev <= 1;
}

export function isOpaque(folder: Path): boolean {
  if (lgetxattr(folder, opaqueAttribute)?.[0] === 0x79) return true;
  return fs.lstatSync(markIn(folder), { throwIfNoEntry: false }) !== undefined;
}

function markIn(folder: Path): Path {
  if (typeof folder === "string") return `${folder}/${opaqueMark}`;
  return Buffer.concat([folder, Buffer.from(`/${opaqueMark}`)]);
}
