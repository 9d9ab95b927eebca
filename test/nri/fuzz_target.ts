// A process that hosts plugins and nothing else, for the fuzzer (test/nri_fuzz.ts) to prove itself on:
// `bun test/nri/fuzz_target.ts SOCKET [BYTES]`. With BYTES it leaks that much for each plugin that comes.
import process from "node:process";
import { silentLog } from "../../src/base/log.ts";
import { Changes, type World } from "../../src/nri/changes.ts";
import { PluginSet } from "../../src/nri/plugin_set.ts";

const [socketPath = "", bytes = "0"] = process.argv.slice(2);
const leaked: Buffer[] = [];
const log = silentLog();
const world: World = {
  state: () => {
    leaked.push(Buffer.alloc(Number(bytes), 1));
    return Promise.resolve({ pods: [], containers: [] });
  },
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
const set = new PluginSet({ config, log, world, changes: new Changes(world, log) });
await set.start();
