// TLS before the stream server: node's, which hands the plain bytes on over loopback.
import { readFileSync } from "node:fs";
import { createConnection, type AddressInfo, type Socket } from "node:net";
import { createServer } from "node:tls";
import { CriError, messageOf } from "../base/errors.ts";
import { Lobby } from "../base/lobby.ts";
import type { Log } from "../base/log.ts";

/** Paths of PEM files. */
export type TlsFiles = { cert: string; key: string };
export type TlsFront = Disposable & { port: number };

/** For a client's handshake, and how many may be doing that; what comes then is the stream server's. */
const handshakeMs = 20_000;
/** Many more than node takes of the listener's queue at once (512): all have a turn before they can be out. */
const handshakesMax = 4096;

/**
 * Listens on 127.0.0.1 (port 0: one that is free) and connects its clients to another port there.
 * @throws CriError FAILED_PRECONDITION when the files cannot be used or the port is taken.
 */
export async function startTlsFront(
  files: TlsFiles,
  { port, to, log }: { port: number; to: number; log: Log },
): Promise<TlsFront> {
  const clients = new Set<Socket>();
  const unproven = new Lobby<Socket>({
    peersMax: handshakesMax,
    deadlineMs: handshakeMs,
    graceMs: 0,
    expel: (client) => client.destroy(),
  });
  try {
    const options = { cert: readFileSync(files.cert), key: readFileSync(files.key) };
    const server = createServer(options, (client) => {
      unproven.leave(client);
      const inner = createConnection({ host: "127.0.0.1", port: to, noDelay: true });
      join(client, inner, log);
      clients.add(client);
      client.once("close", () => clients.delete(client));
    });
    server.on("connection", (client) => {
      unproven.enter(client);
      client.once("close", () => unproven.leave(client));
    });
    server.on("tlsClientError", (error, client) => {
      log.debug("no TLS", { error: error.message });
      client.destroy();
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(port, "127.0.0.1", resolve);
    });
    return {
      port: (server.address() as AddressInfo).port,
      [Symbol.dispose]: () => {
        server.close();
        unproven[Symbol.dispose]();
        for (const client of clients) client.destroy();
      },
    };
  } catch (cause) {
    const message = `cannot serve streams with TLS (${files.cert}, ${files.key}): ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

/** One's end is the other's: neither SPDY nor WebSocket half-closes a connection. */
function join(client: Socket, inner: Socket, log: Log): void {
  client.pipe(inner);
  inner.pipe(client);
  for (const [one, other] of [
    [client, inner],
    [inner, client],
  ] as const) {
    one.on("error", (error) => log.debug("a TLS stream ended", { error: error.message }));
    one.once("close", () => other.destroy());
  }
}
