// Keeps a descriptor of each container's terminal in the daemon, and gives it to the next monitor when one
// was killed (monitor/awaited_terminals.ts).
import type { Descriptor } from "../sys/descriptor.ts";
import { DescriptorInbox, sendDescriptors } from "../sys/unix_socket.ts";
import type { Calls } from "../monitor/protocol.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

type MonitorCall = <Name extends "lendTerminal" | "awaitTerminal" | "takeTerminal">(
  call: Name,
  params: Calls[Name][0],
) => Promise<Calls[Name][1]>;

export class KeptTerminals {
  readonly #folder: string;
  /** The terminals by container; undefined: the container had ended. */
  readonly #kept = new Map<string, Promise<Descriptor | undefined>>();

  /** folder: the daemon's own, emptied here: a daemon that was killed has left its sockets behind. */
  constructor(folder: string) {
    this.#folder = folder;
    removeTreeNow(folder);
  }

  /**
   * Requests a terminal's descriptor from the monitor, once; this object keeps owning it. undefined: the
   * container has ended.
   */
  borrow(id: string, call: MonitorCall): Promise<Descriptor | undefined> {
    const kept = this.#kept.get(id);
    if (kept !== undefined) return kept;
    const requested = this.#request(id, call);
    // Kept before it arrives, so that an exit announced meanwhile releases it too.
    this.#kept.set(id, requested);
    const forget = () => this.#kept.get(id) === requested && this.#kept.delete(id);
    requested.then((terminal) => terminal ?? forget(), forget);
    return requested;
  }

  async #request(id: string, call: MonitorCall): Promise<Descriptor | undefined> {
    using mailbox = new DescriptorInbox(this.#folder);
    await call("lendTerminal", { id, path: mailbox.path });
    return mailbox.takeIfSent();
  }

  /** Gives a terminal to the monitor that replaced the one it came from. */
  async giveBack(id: string, call: MonitorCall): Promise<void> {
    if (!this.#kept.has(id)) return;
    const { path } = await call("awaitTerminal", { id });
    const terminal = await this.#kept.get(id); // it may have been released meanwhile
    if (terminal !== undefined) sendDescriptors(path, [terminal]);
    await call("takeTerminal", { id });
  }

  release(id: string): void {
    const released = this.#kept.get(id);
    this.#kept.delete(id);
    released?.then((terminal) => terminal?.close()).catch(() => {}); // borrow() rejects as well
  }
}
