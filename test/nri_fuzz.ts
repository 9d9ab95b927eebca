// Fuzzes NRI: `bun test/nri_fuzz.ts [--cases 1000000] [--seed 1] [--minutes 600]` sends mutated frames and
// messages to the NRI socket of a daemon, on connections whose valid calls must still be answered, and passes
// mutated answers through their processing in this process. Neither process may fail or grow. Progress is
// recorded in test/.cache/nri_fuzz.json; a run that was interrupted, or whose minutes ended, is resumed at
// its round with a new daemon and a new memory baseline.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { errnoOf } from "../src/base/errors.ts";
import { nri } from "../src/proto/nri.js";
import { growthOf } from "./growth.ts";
import { startDaemon } from "./harness.ts";
import { pssKib } from "./leaks.ts";
import { fuzzAnswer, mutate } from "./nri/fuzz_answers.ts";
import { Plugins } from "./nri/plugins.ts";
import { RawPlugin, runtimeService } from "./nri/raw_plugin.ts";
import { random } from "./random.ts";
import { frame, message, request } from "./sys/frames.ts";

const api = nri.pkg.api.v1alpha1;

export type FuzzPlan = { cases: number; perRound: number; seed: number };
export type FuzzRound = {
  round: number;
  cases: number;
  /** Connections whose valid calls were all answered. */
  connections: number;
  answers: { garbage: number; refused: number; applied: number };
  ms: number;
  /** Memory of the daemon with the socket. */
  pssKib: number;
  /** Memory of this process after garbage collection. */
  heapKib: number;
};

const parallel = 8;
/** Cases per connection: those that keep the framing valid, then those that may break it. */
const [messagesEach, framesEach] = [12, 4];
/** Tolerates heap fluctuation; a leak of 100 bytes per case is 95 MiB in a million. */
const growthKibMax = 12 * 1024;

const update = api.UpdateContainersRequest.encode({
  update: [
    {
      container_id: "c".repeat(64),
      linux: { resources: { cpu: { cpus: "0-1", mems: "0" }, unified: { "memory.high": "1" } } },
    },
  ],
  evict: [{ container_id: "c".repeat(64), reason: "r" }],
}).finish();
const register = api.RegisterPluginRequest.encode({
  plugin_name: "again",
  plugin_idx: "10",
}).finish();

/** Sends the frames and messages of a round, half of its cases. Returns the number of connections. */
async function fuzzSocket(path: string, cases: number, seed: number): Promise<number> {
  const connections = Math.ceil(cases / (messagesEach + framesEach));
  let index = 0;
  const worker = async () => {
    while (index < connections) {
      const own = index++;
      await oneConnection(path, random(seed + own)).catch((cause: unknown) => {
        throw new Error(`connection ${own} of seed ${seed}`, { cause });
      });
    }
  };
  await Promise.all(Array.from({ length: parallel }, worker));
  return connections;
}

async function oneConnection(path: string, next: () => number): Promise<void> {
  using plugin = new RawPlugin(path, {});
  const gone = plugin.ended.then(() => Promise.reject(new Error("the connection was closed")));
  gone.catch(() => {}); // it is closed in the end
  await Promise.race([gone, plugin.register(String(10 + Math.floor(next() * 90)), "fuzz")]);
  await Promise.race([gone, accepted(plugin)]);
  // Any message is answered, and the connection stays open.
  const calls = Array.from({ length: messagesEach }, () => {
    const method = next() < 0.9 ? "UpdateContainers" : "RegisterPlugin";
    const payload = Buffer.from(method === "RegisterPlugin" ? register : update);
    mutate(payload, next);
    return plugin.call(method, payload).catch(() => {});
  });
  await Promise.race([gone, Promise.all(calls)]);
  await Promise.race([gone, accepted(plugin)]);
  // Broken frames close it, or leave it waiting for the rest of a message.
  for (let count = 0; count < framesEach; count++) {
    const call = request(runtimeService, "UpdateContainers", update);
    const bytes = frame(2, message(1001 + 2 * count, 1, call));
    mutate(bytes, next);
    if (next() < 0.3) bytes.writeUInt32BE(Math.floor(next() * 2 ** 32), 4 * Math.floor(next() * 4));
    const length = next() < 0.1 ? Math.floor(next() * bytes.length) : bytes.length;
    plugin.socket.write(bytes.subarray(0, length));
  }
  plugin.socket.end();
  await plugin.ended;
}

/** Makes a valid call; retries while the plugin is not registered yet. */
async function accepted(plugin: RawPlugin): Promise<void> {
  for (;;) {
    try {
      await plugin.call("UpdateContainers", new Uint8Array());
      return;
    } catch (error) {
      if (!String(error).includes("not synchronized")) throw error;
      await sleep(1);
    }
  }
}

export async function* fuzz(
  target: { socket: string; pid: number },
  plan: FuzzPlan,
  from = 0,
): AsyncGenerator<FuzzRound> {
  for (let round = from; round * plan.perRound < plan.cases; round++) {
    const begin = performance.now();
    const seed = plan.seed * 1_000_003 + round * plan.perRound;
    const half = Math.ceil(plan.perRound / 2);
    const connections = await fuzzSocket(target.socket, half, seed);
    const answers = { garbage: 0, refused: 0, applied: 0 };
    const next = random(seed);
    for (let count = 0; count < half; count++) answers[fuzzAnswer(next)]++;
    Bun.gc(true);
    const cases = connections * (messagesEach + framesEach) + half;
    yield {
      round,
      cases,
      connections,
      answers,
      ms: performance.now() - begin,
      pssKib: pssKib(target.pid),
      heapKib: process.memoryUsage().heapUsed / 1024,
    };
  }
}

type Record = { plan: FuzzPlan; rounds: number; cases: number };

function readRecord(file: string, plan: FuzzPlan): Record {
  try {
    const record = JSON.parse(readFileSync(file, "utf8")) as Record;
    const isSame = JSON.stringify(record.plan) === JSON.stringify(plan);
    if (isSame && record.cases < plan.cases) return record;
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") throw error; // there is none yet
  }
  return { plan, rounds: 0, cases: 0 };
}

async function main(): Promise<number> {
  const options = {
    cases: { type: "string", default: "1000000" },
    seed: { type: "string", default: "1" },
    minutes: { type: "string", default: "600" },
  } as const;
  const { values } = parseArgs({ options });
  const end = performance.now() + Number(values.minutes) * 60_000;
  const plan = { cases: Number(values.cases), perRound: 20_000, seed: Number(values.seed) };
  const folder = join(import.meta.dirname, ".cache");
  const file = join(folder, "nri_fuzz.json");
  mkdirSync(folder, { recursive: true });
  const record = readRecord(file, plan);
  console.log(`seed ${plan.seed}, from round ${record.rounds}`);
  using plugins = new Plugins();
  const config = plugins.config({ "log-level": "ERROR" });
  await using daemon = await startDaemon({ config, network: false, image: false });
  const here: FuzzRound[] = [];
  const target = { socket: plugins.socket, pid: daemon.pid };
  for await (const result of fuzz(target, plan, record.rounds)) {
    here.push(result);
    record.rounds = result.round + 1;
    record.cases += result.cases;
    writeFileSync(file, JSON.stringify(record));
    const { garbage, refused, applied } = result.answers;
    console.log(
      `round ${result.round}: ${result.cases} cases, ${(result.ms / 1000).toFixed(1)} s, ` +
        `${result.connections} connections, answers: ${garbage} garbage, ${refused} refused, ` +
        `${applied} applied; daemon ${(result.pssKib / 1024).toFixed(1)} MiB, ` +
        `here ${(result.heapKib / 1024).toFixed(1)} MiB`,
    );
    if (performance.now() > end) break;
  }
  const grown = (["pssKib", "heapKib"] as const).map((of) => growthOf(here.map((one) => one[of])));
  console.log(
    `${record.cases} cases; grown by ${grown[0]} KiB in the daemon, ${grown[1]} KiB here`,
  );
  return grown.some((kib) => kib > growthKibMax) ? 1 : 0;
}

if (import.meta.main) process.exitCode = await main();
