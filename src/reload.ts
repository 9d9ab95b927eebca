// Reloads the configuration: reads the files again, and applies what needs no restart. Loaded when it is used.
// Decision: every step that a bad file can make fail comes before the first change: a bad file then changes nothing.
import type { Config, LoadedConfig } from "./base/config.ts";
import { daemonKeys, findKey, tlsServerNames } from "./base/config_keys.ts";
import { applyLive, type ConfigChange } from "./base/config_reload.ts";
import { codeOf, CriError, messageOf } from "./base/errors.ts";
import type { Context } from "./cri/context.ts";
import { detectFeatures, openHandlers } from "./cri/runtime_handlers.ts";
import { pinnedPatterns } from "./image/pinned.ts";

export type Reloaded = ConfigChange & { files: string[]; warnings: string[] };

/**
 * Files that the configuration names (certificates, base specs) are read again even if their paths are the
 * same. @throws CriError INVALID_ARGUMENT for a bad configuration, FAILED_PRECONDITION for a bad certificate.
 */
export async function reload(context: Context, read: () => LoadedConfig): Promise<Reloaded> {
  try {
    return await apply(context, read);
  } catch (cause) {
    const message = `the configuration was not reloaded, the old values stay in force: ${messageOf(cause)}`;
    throw new CriError(codeOf(cause), message, { cause });
  }
}

async function apply(context: Context, read: () => LoadedConfig): Promise<Reloaded> {
  const { config, log } = context;
  const { config: next, files, warnings } = read();
  const { runtimes, defaultRuntime } = next;
  const handlers = openHandlers({ ...config, runtimes, defaultRuntime }, log);
  const renewals = renewalsOf(context, next);
  const { applied, restart } = applyLive(config, next);
  for (const { key, take } of renewals) {
    take();
    if (!applied.includes(key)) applied.push(key);
  }
  context.handlers = handlers;
  detectFeatures(handlers, log);
  context.images.pin(pinnedPatterns(config));
  warnings.push(...restartEffects(restart), ...(await relaunchPlugins(context)));
  for (const warning of warnings) log.warn(warning);
  if (restart.length > 0) {
    log.warn("these changed keys take effect after a restart", { keys: restart.join(" ") });
  }
  log.info("configuration reloaded", { files: files.join(" "), applied: applied.join(" ") });
  return { applied, restart, files, warnings };
}

/** Returns a warning for each changed key whose restart does more than give it effect. */
function restartEffects(changed: readonly string[]): string[] {
  return changed.flatMap((name) => {
    const key = findKey(name);
    const effect = key !== undefined && "restartEffect" in key ? key.restartEffect : undefined;
    return effect === undefined ? [] : [`"${name}" waits for a restart of the daemon: ${effect}`];
  });
}

/** Starts the NRI plugins of a new folder. If it cannot be read, returns a warning: the other values are in force. */
async function relaunchPlugins({ nri, config }: Context): Promise<string[]> {
  try {
    await nri?.relaunch();
    return [];
  } catch (error) {
    const effect =
      "the pre-installed NRI plugins of the folder before run on: correct it and reload again";
    return [`"plugin-path" ${config.nri.pluginPath}: ${messageOf(error)}: ${effect}`];
  }
}

/** Reads the certificates again. Returns the keys of those that have changed, and how to take each. */
function renewalsOf({ tlsServers }: Context, next: Config): { key: string; take: () => void }[] {
  return tlsServerNames.flatMap((name) => {
    const [cert, key] = [next[`${name}TlsCert`], next[`${name}TlsKey`]];
    const take = cert === "" ? undefined : tlsServers[name]?.renewal({ cert, key });
    return take === undefined ? [] : [{ key: daemonKeys[`${name}TlsCert`].key, take }];
  });
}
