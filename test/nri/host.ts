// Plugins and nothing else: what a fuzzer and a benchmark need of the NRI host, without a daemon.
import { silentLog } from "../../src/base/log.ts";
import { UpdateApplier, type NriBackend } from "../../src/nri/apply_updates.ts";
import { PluginSet } from "../../src/nri/plugin_set.ts";

/** External plugins alone, told of what `state` returns; nothing can be done to a container. Not started. */
export function pluginSet(socketPath: string, state: NriBackend["state"]): PluginSet {
  const log = silentLog();
  const world: NriBackend = {
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
  return new PluginSet({ config, log, world, changes: new UpdateApplier(world, log) });
}
