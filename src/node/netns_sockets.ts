// Provides TCP sockets in a pod's network namespace. A socket belongs forever to the namespace in which it
// was created, so a short-lived child creates some there and sends them to the daemon, which never enters a
// namespace but can connect them.
import { runningProgram } from "../base/build.ts";
import { CriError } from "../base/errors.ts";
import type { Descriptor } from "../sys/descriptor.ts";
import { failureOutput, run } from "../sys/run.ts";
import type { Family } from "../sys/socket_address.ts";
import { lacksFamily, tcpSocket } from "../sys/tcp.ts";
import { DescriptorInbox, sendDescriptors } from "../sys/unix_socket.ts";

/** Sockets of each family per child; a message carries at most 12 descriptors. */
const batch = 5;
const childMs = 10_000;

export class NetnsSockets implements Disposable {
  readonly #netns: string | undefined;
  readonly #folder: string;
  readonly #spare: Record<Family, Descriptor[]> = { IPv4: [], IPv6: [] };
  #filling: Promise<void> | undefined;
  #hasIPv6 = true;
  #closed = false;

  /** netns: the namespace's file; undefined: the host's. folder: for the socket on which the child sends. */
  constructor(options: { netns: string | undefined; folder: string }) {
    this.#netns = options.netns;
    this.#folder = options.folder;
  }

  /** Returns an unconnected socket, which the caller closes; undefined: the namespace lacks this family. */
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
    const argv = [...runningProgram().argv, "netns-sockets", mailbox.path];
    const result = await run(["nsenter", `--net=${netns}`, "--", ...argv], {
      signal: AbortSignal.timeout(childMs),
      isExpendable: true,
    });
    if (result.exitCode !== 0) {
      const reason = failureOutput(result);
      throw new CriError("INTERNAL", `cannot enter the network namespace ${netns}: ${reason}`);
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

/** Runs in the child: creates the sockets and sends them to the listener at path. */
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
