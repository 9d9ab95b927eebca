// Terminates TLS in front of the servers of streams and metrics, with node's TLS server, and relays over loopback.
import { createConnection, type AddressInfo, type Socket } from "node:net";
import { CriError, messageOf } from "../base/errors.ts";
import { Lobby } from "../base/lobby.ts";
import type { Log } from "../base/log.ts";
import { whenStuck } from "../sys/linger.ts";
import { listenWhenPresent } from "../sys/listen.ts";
import { hostPort } from "../sys/socket_address.ts";
import { createTlsServer, type Renewable, type TlsFiles } from "../sys/tls_server.ts";

export type TlsFront = Disposable & Renewable & { port: number };

/** Time for a client's handshake; afterwards the limits of the server behind apply. */
const handshakeMs = 20_000;
/** Far above the 512 that node accepts at once: a client gets its turn before it can be expelled. */
const handshakesMax = 4096;

/**
 * Listens on an address (port 0: a free one), also on one that the node gets later, and relays its clients to the port
 * `to` of 127.0.0.1. what: what is served, for messages.
 * @throws CriError FAILED_PRECONDITION if the files are unusable or the port is in use.
 */
export async function startTlsFront(
  files: TlsFiles,
  options: { address: string; port: number; to: number; log: Log; what: string },
): Promise<TlsFront> {
  const { address, port, to, log, what } = options;
  const clients = new Set<Socket>();
  const handshaking = new Lobby<Socket>({
    peersMax: handshakesMax,
    deadlineMs: handshakeMs,
    graceMs: 0,
    expel: (client) => client.destroy(),
  });
  const { server, renewal } = createTlsServer(files, what, (client) => {
    handshaking.leave(client);
    const inner = createConnection({ host: "127.0.0.1", port: to, noDelay: true });
    relay(client, inner, log);
    clients.add(client);
    client.once("close", () => clients.delete(client));
  });
  server.on("connection", (client) => {
    handshaking.enter(client);
    client.once("close", () => handshaking.leave(client));
  });
  server.on("tlsClientError", (error, client) => {
    log.debug("a TLS handshake failed", { error: error.message });
    client.destroy();
  });
  let listening: Disposable;
  try {
    listening = await listenWhenPresent(server, { address, port }, { what, log });
  } catch (cause) {
    const message = `cannot serve ${what} on ${hostPort(address, port)}: ${messageOf(cause)}: set another address or port in daemon.json`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
  return {
    /** The bound port; while the node does not have the address, the given one (0 if any free port will do). */
    get port() {
      return (server.address() as AddressInfo | null)?.port ?? port;
    },
    renewal,
    [Symbol.dispose]: () => {
      listening[Symbol.dispose]();
      server.close();
      handshaking[Symbol.dispose]();
      for (const client of clients) client.destroy();
    },
  };
}

/** Ends both together: neither SPDY nor WebSocket half-closes a connection. */
function relay(client: Socket, inner: Socket, log: Log): void {
  client.pipe(inner);
  inner.pipe(client);
  for (const [one, other] of [
    [client, inner],
    [inner, client],
  ] as const) {
    one.on("error", (error) => log.debug("a TLS stream failed", { error: error.message }));
    one.once("close", () => end(other));
  }
}

/** Closes a connection when its peer has received everything and has closed, or takes no more. */
function end(socket: Socket): void {
  if (socket.destroyed) return;
  socket.unpipe().resume().end(); // a close with unread input would discard what the peer has not got
  const stuck = whenStuck(
    () => socket.writableLength,
    () => socket.destroy(),
  );
  socket.once("close", () => stuck[Symbol.dispose]());
}
