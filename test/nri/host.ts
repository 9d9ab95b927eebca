// Makes an NRI plugin set without a daemon, for fuzzers and benchmarks.
import { silentLog } from "../../src/base/log.ts";
import { UpdateApplier, type NriBackend } from "../../src/nri/apply_updates.ts";
import { PluginSet } from "../../src/nri/plugin_set.ts";

/** Returns a plugin set, not yet started, for external plugins only; containers cannot be changed. */
export function pluginSet(socketPath: string, state: NriBackend["state"]): PluginSet {
  const log = silentLog();
  const backend: NriBackend = {
    state,
    isLive: () => false,
    update: () => Promise.reject(new Error("there are no containers")),
    evict: () => Promise.reject(new Error("there are no containers")),
  };
  const config = {
    support: true,
    disableConnections: false,
    socketPath,
    pluginPath: "/none",
    pluginConfigPath: "/none",
    registrationTimeoutMs: 5000,
    requestTimeoutMs: 2000,
    synchronizeTimeoutMs: 30_000,
    requiredPlugins: [],
  };
  return new PluginSet({ config, log, backend, updates: new UpdateApplier(backend, log) });
}
