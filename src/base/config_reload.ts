// Applies a new configuration to a running daemon: the live keys change in place, the others need a restart.
import type { Config } from "./config.ts";
import type { Key } from "./config_key.ts";
import { daemonKeys, tlsServerNames } from "./config_keys.ts";
import { nriKeys } from "./config_nri_keys.ts";
import { jsonText } from "./json.ts";

/** Names of the keys whose values differ. */
export type ConfigChange = { applied: string[]; restart: string[] };

/** Copies the changed values of live keys into `current`, which everything reads at each use. */
export function applyLive(current: Config, next: Config): ConfigChange {
  const change: ConfigChange = { applied: [], restart: [] };
  const { nri: currentNri, ...currentRest } = current;
  const { nri: nextNri, ...nextRest } = next;
  const fixed = heldBack(current, next);
  const all = [
    { keys: daemonKeys, from: nextRest, old: currentRest, to: current },
    { keys: nriKeys, from: nextNri, old: currentNri, to: current.nri },
  ] as { keys: Record<string, Key>; from: Values; old: Values; to: Values }[];
  for (const { keys, from, old, to } of all) {
    for (const [field, { key, live }] of Object.entries(keys)) {
      if (!(field in from) || jsonText(from[field]) === jsonText(old[field])) continue;
      const isLive = live && !fixed.includes(key);
      (isLive ? change.applied : change.restart).push(key);
      if (isLive) to[field] = from[field];
    }
  }
  return change;
}

/** Returns the live keys that wait for a restart this time: a listener cannot begin or stop using TLS. */
function heldBack(current: Config, next: Config): string[] {
  // Exchanging a certificate is live; adding or removing one is not.
  const certificates = tlsServerNames.flatMap((server) => {
    const [cert, key] = [`${server}TlsCert`, `${server}TlsKey`] as const;
    const isTlsSwitch = (current[cert] === "") !== (next[cert] === "");
    return isTlsSwitch ? [daemonKeys[cert].key, daemonKeys[key].key] : [];
  });
  // Until it restarts with TLS, the mirror would send private images in plain text.
  const isPlain = current.serveBlobsTlsCert === "" && next.serveBlobsPrivate;
  return isPlain ? [...certificates, daemonKeys.serveBlobsPrivate.key] : certificates;
}

type Values = Record<string, unknown>;
