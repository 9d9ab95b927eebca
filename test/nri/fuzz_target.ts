// Runs an NRI plugin set without a daemon, so that the fuzzer (test/nri_fuzz.ts) can be checked for finding
// leaks: `bun test/nri/fuzz_target.ts SOCKET [BYTES]` leaks BYTES for each connecting plugin.
import process from "node:process";
import { pluginSet } from "./host.ts";

const [socketPath = "", bytes = "0"] = process.argv.slice(2);
const leaked: Buffer[] = [];
const set = pluginSet(socketPath, () => {
  leaked.push(Buffer.alloc(Number(bytes), 1));
  return Promise.resolve({ pods: [], containers: [] });
});
await set.start();
