// Reads and writes whiteouts, by which a layer's tree hides files of the layers below. They have two forms:
//
//   overlay   the form of overlayfs: a removed name is the character device 0/0, and an opaque folder, which
//             hides its lower content, has the attribute trusted.overlay.opaque
//   native    for file systems that do not support these devices or attributes (such as overlayfs itself): a
//             removed name is the device 0/1, which no driver uses, and an opaque folder contains
//             such a device under the name that image layers use (OCI image-spec, layer.md)
//
// Either form is read; a process writes one form, chosen when it starts.
import * as fs from "node:fs";
import { lgetxattr, lsetxattr, mknod } from "../sys/path.ts";

export type WhiteoutForm = "overlay" | "native";
/** A Buffer for names that are not UTF-8. */
export type Path = string | Buffer;

export const opaqueMark = ".wh..wh..opq";

const S_IFCHR = 0o020000;
const opaqueAttribute = "trusted.overlay.opaque";
let writtenForm: WhiteoutForm = "overlay";

export function writeWhiteouts(form: WhiteoutForm): void {
  writtenForm = form;
}

export function markRemoved(path: Path): void {
  mknod(path, S_IFCHR, 0, writtenForm === "overlay" ? 0 : 1);
}

export function markOpaque(folder: Path): void {
  if (writtenForm === "native") markRemoved(markIn(folder));
  else lsetxattr(folder, opaqueAttribute, Buffer.from("y"));
}

/** True when a character device with these numbers would be read as a removed name. */
export function isWhiteoutDevice(major: number, minor: number): boolean {
  return major === 0 && minor <= 1;
}

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
