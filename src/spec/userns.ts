// A pod's user namespace: what CRI asks for, checked.
import { CriError } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { runtime } from "../proto/messages.js";
import type { IDMapping, NamespaceOption } from "../proto/types.ts";
import type { OciIdMapping } from "./oci_types.ts";

const { NamespaceMode } = runtime.v1;

/** Ids of Linux are below 2^32-1, which means "none". */
const idEnd = 0xffff_ffff;

export type UserNamespace = { uidMappings: OciIdMapping[]; gidMappings: OciIdMapping[] };

const field = "namespace_options.userns_options";

type Options = NamespaceOption | null | undefined;

/**
 * The user namespace that a pod or container asks for; undefined: the node's.
 * @throws CriError INVALID_ARGUMENT for another mode than POD or NODE, and for mappings that do not
 * make a root: one for uids and an equal one for gids, from 0 of the pod up (cri-api, UserNamespace).
 */
export function userNamespace(options: Options): UserNamespace | undefined {
  const asked = options?.userns_options;
  if (!asked) return undefined;
  const [uids, gids] = [idMappings(asked.uids), idMappings(asked.gids)];
  switch (asked.mode ?? NamespaceMode.POD) {
    case NamespaceMode.NODE:
      if (uids.length + gids.length === 0) return undefined;
      throw invalid(`mode is NODE, and mappings are given: ${shown(uids)}, ${shown(gids)}`);
    case NamespaceMode.POD:
      checkMappings("uids", uids);
      checkMappings("gids", gids);
      if (shown(uids) === shown(gids)) return { uidMappings: uids, gidMappings: gids };
      throw invalid(`uids ${shown(uids)} and gids ${shown(gids)} differ`);
    default:
      throw new CriError(
        "INVALID_ARGUMENT",
        `${field}.mode ${shownMode(asked.mode)} must be POD or NODE`,
      );
  }
}

/**
 * Whether a pod can have one: what it shares with the node belongs to the node's own.
 * @throws CriError INVALID_ARGUMENT
 */
export function checkUserNamespace(options: Options): void {
  if (userNamespace(options) === undefined) return;
  for (const kind of ["pid", "ipc"] as const) {
    if (options?.[kind] !== NamespaceMode.NODE) continue;
    throw invalid(`mode is POD, and namespace_options.${kind} is NODE: no /proc or mqueue then`);
  }
}

/** The OCI form of CRI's id mappings. */
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
    throw invalid(`${kind} has ${mappings.length} mappings (${shown(mappings)}), and must have 1`);
  }
  if (first.containerID !== 0) throw invalid(`${kind} ${shown(mappings)} does not map id 0`);
  if (first.size === 0 || first.hostID + first.size > idEnd) {
    throw invalid(`${kind} ${shown(mappings)} is no range of ids below ${idEnd}`);
  }
}

/** As /proc/PID/uid_map has it. */
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

function invalid(message: string): CriError {
  return new CriError("INVALID_ARGUMENT", `${field}: ${message}`);
}
