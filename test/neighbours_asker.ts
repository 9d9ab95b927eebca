// Measures how late answers of Version are, every 10 ms, at a daemon and at a bare server, in a process of its own:
// `bun neighbours_asker.ts SOCKET SOCKET`. For each line on its standard input, it prints a line of JSON: the Answers of
// both since the line before, once all have come.
import { createInterface } from "node:readline";
import { connect } from "../src/cli/client.ts";

/** Of one server, in ms. */
export type Answers = { count: number; failed: number; p50: number; p999: number; max: number };

const everyMs = 10;
/** A daemon that has not answered after this time counts with it, and as failed. */
const timeoutMs = 60_000;

/** ordered: in increasing order. */
export function quantile(ordered: readonly number[], share: number): number {
  return ordered[Math.min(ordered.length - 1, Math.floor(ordered.length * share))] ?? Number.NaN;
}

class Asked {
  readonly #client;
  #times: number[] = [];
  #failed = 0;
  #open = new Set<Promise<void>>();

  constructor(socket: string) {
    this.#client = connect(`unix://${socket}`);
  }

  ask(): void {
    const [times, start] = [this.#times, performance.now()];
    const call = this.#client
      .Version({}, { timeoutMs })
      .catch(() => this.#failed++)
      .then(() => {
        times.push(performance.now() - start);
        this.#open.delete(call);
      });
    this.#open.add(call);
  }

  /** Returns what was asked since the last time; waits for the answers. */
  async window(): Promise<Answers> {
    const [times, open] = [this.#times, this.#open];
    [this.#times, this.#open] = [[], new Set()];
    await Promise.all(open);
    const ordered = times.toSorted((a, b) => a - b);
    const failed = this.#failed;
    this.#failed = 0;
    return {
      count: ordered.length,
      failed,
      p50: quantile(ordered, 0.5),
      p999: quantile(ordered, 0.999),
      max: ordered.at(-1) ?? Number.NaN,
    };
  }
}

if (import.meta.main) {
  const [daemon, bare] = process.argv.slice(2).map((socket) => new Asked(socket));
  let turn = 0;
  setInterval(() => {
    // By turns the first: the second one waits until the first call is encoded.
    for (const one of turn++ % 2 === 0 ? [daemon!, bare!] : [bare!, daemon!]) one.ask();
  }, everyMs);
  const lines = createInterface(process.stdin);
  const answer = async () => {
    const [ofDaemon, ofBare] = await Promise.all([daemon!.window(), bare!.window()]);
    process.stdout.write(`${JSON.stringify({ daemon: ofDaemon, bare: ofBare })}\n`);
  };
  lines.on("line", () => void answer());
  lines.on("close", () => process.exit());
}
