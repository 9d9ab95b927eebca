// Reload of isulad.v1: answers with what the daemon's reload has applied.
import type { ReloadResponse } from "../proto/types.ts";
import type { Context } from "./context.ts";

/** @throws CriError INVALID_ARGUMENT with every mistake of the files; the old values stay in force. */
export async function reloadConfig(context: Context): Promise<ReloadResponse> {
  return await context.reload();
}
