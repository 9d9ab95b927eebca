// Reads config.json, the OCI specification in a container's bundle.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import { parseOciSpec, type OciSpec } from "../spec/oci.ts";
import type { Context } from "./context.ts";

/** id must be the full container id. */
export function specFile(context: Context, id: string): string {
  return join(context.containers.folderOf(id), "config.json");
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
