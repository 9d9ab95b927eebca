// The specification in a container's bundle: config.json, what the OCI runtime makes the container of.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { CriError, messageOf } from "../base/errors.ts";
import { parseOciSpec, type OciSpec } from "../spec/oci.ts";
import type { Context } from "./context.ts";

/** Its path; id: the container's whole id. */
export function specFile(context: Context, id: string): string {
  return join(context.containers.folderOf(id), "config.json");
}

/** @throws CriError DATA_LOSS for one that cannot be read. */
export async function readSpec(context: Context, id: string): Promise<OciSpec> {
  const path = specFile(context, id);
  try {
    return parseOciSpec(await readFile(path, "utf8"));
  } catch (cause) {
    const message = `cannot read ${path}: ${messageOf(cause)}: remove container ${id}, and create another`;
    throw new CriError("DATA_LOSS", message, { cause });
  }
}
