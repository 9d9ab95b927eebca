// Validates the user namespace options of pods and containers.
import { jsonText } from "../base/json.ts";
import { runtime } from "../proto/messages.js";
import type { IDMapping, NamespaceOption } from "../proto/types.ts";
import type { OciIdMapping } from "./oci_types.ts";
import { invalid } from "./refusals.ts";

const { NamespaceMode } = runtime.v1;

/** Linux ids are below 2^32-1, which means "none". */
const idEnd = 0xffff_ffff;

export type UserNamespace = { uidMappings: OciIdMapping[]; gidMappings: OciIdMapping[] };

const field = "namespace_options.userns_options";

/**
 * Returns the requested user namespace; undefined: the host's.
 * @throws CriError INVALID_ARGUMENT for a mode other than POD or NODE, or unless there is exactly one uid
 * mapping and one gid mapping of the same length that start at container id 0 (cri-api, UserNamespace). On the node the
 * two may start at different ids.
 */
export function userNamespace(
  options: NamespaceOption | null | undefined,
): UserNamespace | undefined {
  const requested = options?.userns_options;
  if (!requested) return undefined;
  const [uids, gids] = [idMappings(requested.uids), idMappings(requested.gids)];
  switch (requested.mode ?? NamespaceMode.POD) {
    case NamespaceMode.NODE:
      if (uids.length + gids.length === 0) return undefined;
      throw wrong(`mode is NODE, but mappings are given: ${shown(uids)}, ${shown(gids)}`);
    case NamespaceMode.POD:
      checkMappings("uids", uids);
      checkMappings("gids", gids);
      if (uids[0]!.size === gids[0]!.size) return { uidMappings: uids, gidMappings: gids };
      throw wrong(`uids ${shown(uids)} and gids ${shown(gids)} differ in length`);
    default:
      throw invalid(`${field}.mode ${shownMode(requested.mode)} must be POD or NODE`);
  }
}

/** Converts CRI's id mappings to OCI's. */
export function idMappings(mappings: readonly IDMapping[] | null | undefined): OciIdMapping[] {
  return (mappings ?? []).map((mapping) => ({
    containerID: mapping.container_id ?? 0,
    hostID: mapping.host_id ?? 0,
    size: mapping.length ?? 0,
  }));
}

function checkMappings(kind: string, mappings: OciIdMapping[]): void {
  const [first] = mappings;
  if (first === undefined || mappings.length > 1) {
    throw wrong(`${kind} has ${mappings.length} mappings (${shown(mappings)}), but needs 1`);
  }
  if (first.containerID !== 0) throw wrong(`${kind} ${shown(mappings)} does not map id 0`);
  if (first.size === 0 || first.hostID + first.size > idEnd) {
    throw wrong(`${kind} ${shown(mappings)} is not a range of ids below ${idEnd}`);
  }
}

/** Formats mappings like /proc/PID/uid_map. */
export function idMapText(mappings: OciIdMapping[]): string {
  return mappings
    .map(({ containerID, hostID, size }) => `${containerID} ${hostID} ${size}`)
    .join("\n");
}

function shownMode(mode: number | null | undefined): string {
  return (NamespaceMode as Record<number, string | undefined>)[mode ?? 0] ?? String(mode);
}

function shown(mappings: OciIdMapping[]): string {
  return jsonText(idMapText(mappings.slice(0, 4)));
}

function wrong(message: string): Error {
  return invalid(`${field}: ${message}`);
}
