// Calls that make something under a name: a second call with the same name, while the first is under
// way, gets the first one's result (a kubelet repeats a call whose answer it missed).
import { codeOf } from "../base/errors.ts";

export class Running {
  readonly #calls = new Map<string, Promise<string>>();

  /**
   * Runs `make`, or joins the call that runs for this name. When that one's caller has given up, and
   * what it made is undone, `make` runs for the caller that still waits.
   */
  async join(name: string, signal: AbortSignal, make: () => Promise<string>): Promise<string> {
    for (;;) {
      const running = this.#calls.get(name);
      if (running === undefined) break;
      try {
        return await running;
      } catch (error) {
        const givenUp = ["CANCELLED", "DEADLINE_EXCEEDED"].includes(codeOf(error));
        if (!givenUp || signal.aborted) throw error;
      }
    }
    const call = make().finally(() => this.#calls.delete(name));
    this.#calls.set(name, call);
    return call;
  }
}
