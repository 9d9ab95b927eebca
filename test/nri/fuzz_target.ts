// A process that hosts plugins and nothing else, for the fuzzer (test/nri_fuzz.ts) to prove itself on:
// `bun test/nri/fuzz_target.ts SOCKET [BYTES]`. With BYTES it leaks that much for each plugin that comes.
import process from "node:process";
import { pluginSet } from "./host.ts";

const [socketPath = "", bytes = "0"] = process.argv.slice(2);
const leaked: Buffer[] = [];
const set = pluginSet(socketPath, () => {
  leaked.push(Buffer.alloc(Number(bytes), 1));
  return Promise.resolve({ pods: [], containers: [] });
});
await set.start();
