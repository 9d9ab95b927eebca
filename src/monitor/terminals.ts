// Terminals that outlive a monitor. A terminal goes with its last descriptor, so the daemon keeps one
// of each, and gives it to the next monitor when one was killed. (Both killed: the container's program
// meets a hang-up, as when a person's terminal is closed.)
//
// Decision: node:net sends no descriptors, so each passes through a socket of its own, on which the
// receiver listens before the sender is asked: no side ever waits in a system call.
import type { Descriptor } from "../sys/descriptor.ts";
import { Mailbox, sendDescriptors } from "../sys/unix_socket.ts";
import type { Calls } from "./protocol.ts";

/** How long the end of a container waits for the terminal with its last output. */
const dueMs = 2_000;

/** In a new monitor: terminals that the daemon is expected to give back. */
export class AwaitedTerminals {
  readonly #folder: string;
  readonly #due = new Map<string, PromiseWithResolvers<void>>();
  readonly #mailboxes = new Map<string, Mailbox>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  expect(id: string): void {
    const due = Promise.withResolvers<void>();
    this.#due.set(id, due);
    setTimeout(() => due.resolve(), dueMs);
  }

  /** Until it has come, or will not come. */
  async arrived(id: string): Promise<void> {
    await this.#due.get(id)?.promise;
    this.#due.delete(id);
  }

  listen(id: string): string {
    this.#mailboxes.get(id)?.[Symbol.dispose]();
    const mailbox = new Mailbox(this.#folder);
    this.#mailboxes.set(id, mailbox);
    return mailbox.path;
  }

  /** @throws when nobody has sent it. */
  take(id: string): Descriptor {
    const mailbox = this.#mailboxes.get(id);
    if (mailbox === undefined) throw new Error(`no terminal of ${id} is awaited`);
    using _ = mailbox;
    this.#mailboxes.delete(id);
    return mailbox.take();
  }

  came(id: string): void {
    this.#due.get(id)?.resolve();
  }
}

type MonitorCall = <Name extends "lendTerminal" | "awaitTerminal" | "takeTerminal">(
  call: Name,
  params: Calls[Name][0],
) => Promise<Calls[Name][1]>;

/** In the daemon: the terminals that it keeps for the next monitor. */
export class KeptTerminals {
  readonly #folder: string;
  /** undefined: the container had ended. */
  readonly #kept = new Map<string, Promise<Descriptor | undefined>>();

  /** folder: the monitor's. */
  constructor(folder: string) {
    this.#folder = folder;
  }

  /**
   * Asks the monitor for a descriptor of a terminal, once; it stays this object's. undefined: the container
   * has ended.
   */
  borrow(id: string, call: MonitorCall): Promise<Descriptor | undefined> {
    const kept = this.#kept.get(id);
    if (kept !== undefined) return kept;
    const asked = this.#ask(id, call);
    // Kept before it comes, so that an exit that is announced meanwhile releases it, too.
    this.#kept.set(id, asked);
    const forget = () => this.#kept.get(id) === asked && this.#kept.delete(id);
    asked.then((terminal) => terminal ?? forget(), forget);
    return asked;
  }

  async #ask(id: string, call: MonitorCall): Promise<Descriptor | undefined> {
    using mailbox = new Mailbox(this.#folder);
    await call("lendTerminal", { id, path: mailbox.path });
    return mailbox.takeIfSent();
  }

  /** Gives a terminal to a monitor that lacks it. */
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
    released?.then((terminal) => terminal?.close()).catch(() => {}); // told to who asked for it
  }
}
