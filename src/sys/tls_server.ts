// Makes TLS servers whose certificate can be renewed while they serve.
import { createSecureContext, createServer, type Server, type TLSSocket } from "node:tls";
import { CriError, messageOf } from "../base/errors.ts";
import { readSettings } from "../base/settings_file.ts";

/** Paths of PEM files. */
export type TlsFiles = { cert: string; key: string };
export type Renewable = {
  /**
   * Reads the files. Returns a function that gives the new certificate to later clients; undefined: it is the same.
   * @throws CriError FAILED_PRECONDITION for unusable files: the old certificate stays.
   */
  renewal: (files: TlsFiles) => (() => void) | undefined;
};

/** what: what is served, for messages. @throws CriError FAILED_PRECONDITION for unusable files. */
export function createTlsServer(
  files: TlsFiles,
  what: string,
  onClient: (socket: TLSSocket) => void,
): Renewable & { server: Server } {
  let pem = readPem(files, what);
  const server = createServer(pem, onClient);
  return {
    server,
    renewal: (files) => {
      const next = readPem(files, what);
      if (next.cert === pem.cert && next.key === pem.key) return undefined;
      return () => {
        server.setSecureContext(next);
        pem = next;
      };
    },
  };
}

function readPem({ cert, key }: TlsFiles, what: string): { cert: string; key: string } {
  try {
    const pem = { cert: textOf(cert), key: textOf(key) };
    createSecureContext(pem); // throws unless they belong together
    return pem;
  } catch (cause) {
    const message = `cannot serve ${what} with TLS (${cert}, ${key}): ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

function textOf(path: string): string {
  return readSettings(path, { fatal: false }); // comments may be of any encoding
}
