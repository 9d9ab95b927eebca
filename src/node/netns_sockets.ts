// TCP sockets of a pod's network namespace. A socket belongs for ever to the namespace it was made in, so
// a short-lived child makes some there and sends them here (the daemon itself never enters one); this
// process then connects them as any other.
import { ownProgram } from "../base/build.ts";
import { CriError } from "../base/errors.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { failureOutput, run } from "../sys/run.ts";
import { lacksFamily, tcpSocket, type Family } from "../sys/tcp.ts";
import { DescriptorInbox, sendDescriptors } from "../sys/unix_socket.ts";

/** Of each family at a time; a message takes 12 descriptors. */
const batch = 5;
const childMs = 10_000;

export class NetnsSockets implements Disposable {
  readonly #netns: string | undefined;
  readonly #folder: string;
  readonly #spare: Record<Family, Descriptor[]> = { IPv4: [], IPv6: [] };
  #filling: Promise<void> | undefined;
  #hasIPv6 = true;
  #closed = false;

  /**
   * netns: the namespace's file; undefined: the host's.
   * folder: for a socket of the child's.
   */
  constructor(options: { netns: string | undefined; folder: string }) {
    this.#netns = options.netns;
    this.#folder = options.folder;
  }

  /** One that is not connected, the caller's to close; undefined: no such addresses there. */
  async take(family: Family): Promise<Descriptor | undefined> {
    if (this.#netns === undefined) return makeSocket(family);
    while (this.#spare[family].length === 0) {
      if (this.#closed || (family === "IPv6" && !this.#hasIPv6)) return undefined;
      this.#filling ??= this.#fill(this.#netns).finally(() => (this.#filling = undefined));
      await this.#filling;
    }
    return this.#spare[family].pop();
  }

  async #fill(netns: string): Promise<void> {
    using mailbox = new DescriptorInbox(this.#folder);
    const argv = [...ownProgram(), "netns-sockets", mailbox.path];
    const result = await run(["nsenter", `--net=${netns}`, "--", ...argv], {
      signal: AbortSignal.timeout(childMs),
      isExpendable: true,
    });
    if (result.exitCode !== 0) {
      const why = failureOutput(result);
      throw new CriError("INTERNAL", `cannot enter the pod's network ${netns}: ${why}`);
    }
    const sockets = mailbox.takeAll();
    this.#hasIPv6 = sockets.length > batch;
    this.#spare.IPv4.push(...sockets.slice(0, batch));
    this.#spare.IPv6.push(...sockets.slice(batch));
    if (this.#closed) this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    this.#closed = true;
    for (const spare of Object.values(this.#spare)) {
      for (const socket of spare.splice(0)) socket.close();
    }
  }
}

/** The child: sends as many of each family as there are to be to who listens at path. */
export function netnsSocketsMain([path = ""]: string[]): number {
  const make = (family: Family) => Array.from({ length: batch }, () => makeSocket(family));
  const sockets = [...make("IPv4"), ...make("IPv6")].filter((socket) => socket !== undefined);
  sendDescriptors(path, sockets);
  return 0;
}

function makeSocket(family: Family): Descriptor | undefined {
  try {
    return tcpSocket(family);
  } catch (error) {
    if (lacksFamily(error)) return undefined;
    throw error;
  }
}
