// Measures a daemon's lag: how much later than a bare server of the same executable it answers. The bare server and
// the client that asks both run beside it, each in its own process, so that a busy machine delays both alike.
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface, type Interface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import type { Answers } from "./neighbours_asker.ts";

/** The daemon's answers less those of the bare server, in ms, and both as they were. */
export type Lag = { p999: number; max: number; daemon: Answers; bare: Answers };

type Child = ChildProcessByStdio<Writable, Readable, null>;
const stdio: ["pipe", "pipe", "inherit"] = ["pipe", "pipe", "inherit"];

export class LagMeter implements Disposable {
  readonly #bare: Child;
  readonly #asker: Child;
  readonly #lines: Interface;
  readonly #ended: Promise<never>;

  private constructor(bare: Child, asker: Child) {
    [this.#bare, this.#asker] = [bare, asker];
    this.#lines = createInterface(asker.stdout);
    this.#ended = new Promise((_, reject) => {
      asker.once("exit", () => reject(new Error("the client that asks has ended")));
    });
    this.#ended.catch(() => {}); // window() reports it
  }

  /** program: the daemon's executable, whose engine runs the bare server; folder: for its socket. */
  static async start(socket: string, program: string, folder: string): Promise<LagMeter> {
    const bareSocket = join(folder, "bare.sock");
    const env = { ...process.env, BUN_BE_BUN: "1" };
    const bare = spawn(program, [scriptAt("neighbours_bare.ts"), bareSocket], { stdio, env });
    await new Promise<void>((resolve, reject) => {
      bare.stdout.once("data", () => resolve());
      bare.once("exit", () => reject(new Error("the bare server has ended")));
    });
    const argv = [scriptAt("neighbours_asker.ts"), socket, bareSocket];
    const meter = new LagMeter(bare, spawn(process.execPath, argv, { stdio }));
    await meter.window(); // connected
    return meter;
  }

  /** Returns the lag since the call before. */
  async window(): Promise<Lag> {
    const line = new Promise<string>((resolve) => this.#lines.once("line", resolve));
    this.#asker.stdin.write("\n");
    const { daemon, bare } = JSON.parse(await Promise.race([line, this.#ended])) as {
      daemon: Answers;
      bare: Answers;
    };
    return { p999: daemon.p999 - bare.p999, max: daemon.max - bare.max, daemon, bare };
  }

  [Symbol.dispose](): void {
    for (const child of [this.#asker, this.#bare]) child.kill("SIGKILL");
  }
}

function scriptAt(name: string): string {
  return join(import.meta.dirname, name);
}
