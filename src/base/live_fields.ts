// Gives parts of the daemon a view of the configuration that follows its reloads.
import type { Config } from "./config.ts";

type Names = Record<string, keyof Config>;
type View<N extends Names> = { readonly [Field in keyof N]: Config[N[Field]] };

/**
 * Returns an object whose fields always have the current values of the named fields of the configuration.
 * A copy of that object (a spread) would keep the values that it had when it was copied.
 */
export function liveFields<const N extends Names>(config: Config, names: N): View<N> {
  const view = {};
  for (const [field, name] of Object.entries(names)) {
    Object.defineProperty(view, field, { enumerable: true, get: () => config[name] });
  }
  return view as View<N>;
}
