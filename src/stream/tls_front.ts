// Terminates TLS in front of the servers of streams and metrics, with node's TLS server, and relays over loopback.
import { readFileSync } from "node:fs";
import { createConnection, type AddressInfo, type Socket } from "node:net";
import { createServer } from "node:tls";
import { CriError, messageOf } from "../base/errors.ts";
import { Lobby } from "../base/lobby.ts";
import type { Log } from "../base/log.ts";

/** Paths of PEM files. */
export type TlsFiles = { cert: string; key: string };
export type TlsFront = Disposable & {
  port: number;
  /** Reads the files for later clients. Returns true if they changed. @throws CriError FAILED_PRECONDITION. */
  renew(files: TlsFiles): boolean;
};
type Pem = { cert: Buffer; key: Buffer };

/** Time for a client's handshake; afterwards the limits of the server behind apply. */
const handshakeMs = 20_000;
/** Far above the 512 that node accepts at once: a client gets its turn before it can be expelled. */
const handshakesMax = 4096;

/**
 * Listens on an address (port 0: a free one) and relays its clients to the port `to` of 127.0.0.1. what: what is
 * served, for messages.
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
  try {
    let pem = readPem(files);
    const server = createServer(pem, (client) => {
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
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(port, address, resolve);
    });
    return {
      port: (server.address() as AddressInfo).port,
      renew: (files) => {
        try {
          const next = readPem(files);
          if (next.cert.equals(pem.cert) && next.key.equals(pem.key)) return false;
          server.setSecureContext(next);
          pem = next;
          return true;
        } catch (cause) {
          throw unusable(what, files, cause);
        }
      },
      [Symbol.dispose]: () => {
        server.close();
        handshaking[Symbol.dispose]();
        for (const client of clients) client.destroy();
      },
    };
  } catch (cause) {
    throw unusable(what, files, cause);
  }
}

function readPem(files: TlsFiles): Pem {
  return { cert: readFileSync(files.cert), key: readFileSync(files.key) };
}

function unusable(what: string, { cert, key }: TlsFiles, cause: unknown): CriError {
  const message = `cannot serve ${what} with TLS (${cert}, ${key}): ${messageOf(cause)}`;
  return new CriError("FAILED_PRECONDITION", message, { cause });
}

/** Closes both together: neither SPDY nor WebSocket half-closes a connection. */
function relay(client: Socket, inner: Socket, log: Log): void {
  client.pipe(inner);
  inner.pipe(client);
  for (const [one, other] of [
    [client, inner],
    [inner, client],
  ] as const) {
    one.on("error", (error) => log.debug("a TLS stream failed", { error: error.message }));
    one.once("close", () => other.destroy());
  }
}
