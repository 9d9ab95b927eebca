// Calls that make something under a name: a second call with the same name, while the first is under
// way, gets the first one's result (a kubelet repeats a call whose answer it missed).
export class Running {
  readonly #calls = new Map<string, Promise<string>>();

  /** Runs `make`, or joins the call that runs for this name. */
  join(name: string, make: () => Promise<string>): Promise<string> {
    const running = this.#calls.get(name);
    if (running !== undefined) return running;
    const call = make().finally(() => this.#calls.delete(name));
    this.#calls.set(name, call);
    return call;
  }
}
