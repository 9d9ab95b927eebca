// Finds and reads config.json, the OCI specification in the bundle of a container.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import { parseOciSpec, type OciSpec } from "../spec/oci.ts";
import type { Context } from "./context.ts";

/** id must be the full container id. */
export function specFile(context: Context, id: string): string {
  return join(context.containers.folderOf(id), "config.json");
}

/** The file of a pod's own container (pause.ts), which not every pod has. */
export function podSpecFile(context: Context, podId: string): string {
  return join(context.sandboxes.folderOf(podId), "config.json");
}

/**
 * Returns undefined if the file is missing, damaged, or not written whole yet: a verbose status is answered without
 * it.
 */
export async function specIfReadable(path: string): Promise<OciSpec | undefined> {
  try {
    return parseOciSpec(await readFile(path, "utf8"));
  } catch {
    return undefined;
  }
}

/** @throws CriError DATA_LOSS if it cannot be read. */
export async function readSpec(context: Context, id: string): Promise<OciSpec> {
  const path = specFile(context, id);
  try {
    return parseOciSpec(await readFile(path, "utf8"));
  } catch (cause) {
    const message = `cannot read ${path}: ${messageOf(cause)}: remove container ${id} and create another`;
    throw new CriError("DATA_LOSS", message, { cause });
  }
}
