// Terminals that outlive a monitor. A terminal goes with its last descriptor, so the daemon keeps one
// of each, and gives it to the next monitor when one was killed. (Both killed: the container's program
// meets a hang-up, as when a person's terminal is closed.)
//
// Decision: node:net sends no descriptors, so each passes through a socket of its own, on which the
// receiver listens before the sender is asked: no side ever waits in a system call.
import type { Descriptor } from "../sys/descriptor.ts";
import { Mailbox } from "../sys/unix_socket.ts";

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
