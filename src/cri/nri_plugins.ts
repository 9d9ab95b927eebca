// NriPlugins and ListNriChanges of isulad.v1.
import { CriError, messageOf } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import type {
  ListNriChangesRequest,
  ListNriChangesResponse,
  NriPluginsResponse,
} from "../proto/types.ts";
import type { Context } from "./context.ts";

/** @throws CriError FAILED_PRECONDITION if NRI is off. */
export function nriPlugins({ nri }: Context): NriPluginsResponse {
  if (nri === undefined) throw nriIsOff();
  return {
    plugins: nri.plugins().map(({ id, kind, version, events, calls, lastError }) => ({
      id,
      kind,
      version,
      events,
      calls: calls.map(([method, { count, failed, totalMs, maxMs }]) => ({
        method,
        count: toLong(count),
        failed: toLong(failed),
        total_ms: totalMs,
        max_ms: maxMs,
      })),
      last_error: lastError,
    })),
  };
}

export function nriIsOff(): CriError {
  const message = "NRI is off: set nri-support in daemon.json and restart";
  return new CriError("FAILED_PRECONDITION", message);
}

/** @throws CriError NOT_FOUND, FAILED_PRECONDITION if there is none and NRI is off, DATA_LOSS. */
export async function listNriChanges(
  context: Pick<Context, "containers" | "nri">,
  { container_id }: ListNriChangesRequest,
): Promise<ListNriChangesResponse> {
  const { id } = context.containers.get(container_id ?? "");
  const { readChanges } = await import("../nri/container_changes.ts"); // not needed where NRI is off
  const read = () => readChanges(context.containers.folderOf(id));
  const { changes, dropped } = orDataLoss(read);
  if (changes.length === 0 && context.nri === undefined) throw nriIsOff();
  return {
    changes: changes.map(({ atMs, plugin, event, fields, more }) => ({
      at: toLong(BigInt(atMs) * 1_000_000n),
      plugin,
      event,
      fields,
      more_fields: toLong(more),
    })),
    dropped: toLong(dropped),
  };
}

function orDataLoss<T>(read: () => T): T {
  try {
    return read();
  } catch (cause) {
    throw new CriError("DATA_LOSS", `${messageOf(cause)}: replace the container`, { cause });
  }
}
