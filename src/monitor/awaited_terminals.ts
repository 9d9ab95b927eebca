// Receives terminals that outlived a monitor. A terminal hangs up with its last descriptor, so the daemon
// keeps one of each and gives it to the next monitor. (With both killed, the container's program gets
// SIGHUP.)
//
// Decision: node:net sends no descriptors, so each passes through a socket of its own, on which the receiver
// listens before it requests the descriptor: neither side ever blocks in a system call.
import type { Descriptor } from "../sys/descriptor.ts";
import { DescriptorInbox } from "../sys/unix_socket.ts";

/** Delay of a container's exit for the terminal that holds its last output. */
const dueMs = 2_000;

/** In a new monitor: the terminals that the daemon is expected to return. */
export class AwaitedTerminals {
  readonly #folder: string;
  readonly #due = new Map<string, PromiseWithResolvers<void>>();
  readonly #mailboxes = new Map<string, DescriptorInbox>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  expect(id: string): void {
    const due = Promise.withResolvers<void>();
    this.#due.set(id, due);
    setTimeout(() => due.resolve(), dueMs);
  }

  /** Waits until the terminal has arrived, or is overdue. */
  async arrived(id: string): Promise<void> {
    await this.#due.get(id)?.promise;
    this.#due.delete(id);
  }

  listen(id: string): string {
    this.#mailboxes.get(id)?.[Symbol.dispose]();
    const mailbox = new DescriptorInbox(this.#folder);
    this.#mailboxes.set(id, mailbox);
    return mailbox.path;
  }

  /** @throws when it was not sent. */
  take(id: string): Descriptor {
    const mailbox = this.#mailboxes.get(id);
    if (mailbox === undefined) throw new Error(`no terminal of ${id} is awaited`);
    using _ = mailbox;
    this.#mailboxes.delete(id);
    return mailbox.take();
  }

  received(id: string): void {
    this.#due.get(id)?.resolve();
  }
}
