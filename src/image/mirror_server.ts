// Serves images to other nodes as a read-only registry mirror (OCI distribution protocol). Each connection is
// for one request. Loaded only where serve-blobs is set.
// Decision: a file is hashed before its first byte is sent, once for each version of the file. A client
// compares the digest, too, but only after it has fetched all of a damaged file.
import { createHash } from "node:crypto";
import { open, type FileHandle } from "node:fs/promises";
import { createServer, type Server, type Socket } from "node:net";
import { splitAddress } from "../base/config_values.ts";
import { algorithmOf } from "../base/digest.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import { Lobby } from "../base/lobby.ts";
import type { Log } from "../base/log.ts";
import { SingleFlight } from "../base/single_flight.ts";
import { inNetwork } from "../registry/ip_network.ts";
import { headText, readHead, type Head } from "../sys/http_upgrade.ts";
import { listenWhenPresent } from "../sys/listen.ts";
import { wireOf } from "../sys/socket_wire.ts";
import { createTlsServer, type Renewable, type TlsFiles } from "../sys/tls_server.ts";
import {
  mirroredBlob,
  mirroredManifest,
  type MirrorContent,
  type MirrorParts,
  type MirrorRules,
} from "./mirror_content.ts";
import { MirrorError, parseMirrorRequest, parseRange, type ByteRange } from "./mirror_request.ts";

export type MirrorOptions = {
  /** "192.0.2.1:5010" */
  address: string;
  /** undefined: plain HTTP. */
  tls: TlsFiles | undefined;
  rules: MirrorRules & {
    /** Networks of the clients that are served. */
    readonly clients: readonly string[];
  };
  log: Log;
  /** Set by tests only. */
  deadlines?: Deadlines;
};

type Deadlines = {
  /** From the connection to the end of the request's head, with TLS's handshake. */
  headMs: number;
  /** For each part of an answer. */
  stallMs: number;
  /** The whole answer may take the time that it needs at this rate, plus stallMs. */
  bytesPerMsMin: number;
};
const usualDeadlines: Deadlines = { headMs: 10_000, stallMs: 30_000, bytesPerMsMin: 64 };
/** Above the 512 that node accepts at once: a client gets its turn before it can be expelled. */
const headsMax = 1024;
/** Answers at once, each with a buffer; further requests are refused with Retry-After. */
const answersMax = 64;
const answersMaxOfClient = 16;
const laterSeconds = 2;
/** A client that closes its own direction after the request gets the whole answer (RFC 9112, 9.6). */
const halfOpen = { allowHalfOpen: true };
const partBytes = 256 << 10;
/** Files whose digests are remembered. */
const verifiedMax = 4096;

/** tls: undefined for plain HTTP. */
export type ImageServer = AsyncDisposable & { tls: Renewable | undefined };

/**
 * Listens on the address, also if the node gets it only later.
 * @throws CriError FAILED_PRECONDITION if the address is in use, or the PEM files are unusable.
 */
export async function serveImages(
  parts: MirrorParts,
  options: MirrorOptions,
): Promise<ImageServer> {
  const mirror = new Mirror(parts, options);
  const { server, tls } = mirror.server();
  let listening: Disposable;
  try {
    const what = { what: "images to other nodes", log: options.log };
    listening = await listenWhenPresent(server, splitAddress(options.address), what);
  } catch (cause) {
    const message = `cannot serve blobs on ${options.address}: ${messageOf(cause)}: change serve-blobs`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
  return {
    tls,
    async [Symbol.asyncDispose]() {
      listening[Symbol.dispose]();
      const closed = new Promise((resolve) => server.close(resolve));
      mirror.close();
      await closed;
    },
  };
}

class Mirror {
  readonly #parts: MirrorParts;
  readonly #options: MirrorOptions;
  readonly #deadlines: Deadlines;
  readonly #waiting: Lobby<Socket>;
  /** Answers under way, with the address of their client. */
  readonly #answering = new Map<Socket, string>();
  readonly #files = new VerifiedFiles();

  constructor(parts: MirrorParts, options: MirrorOptions) {
    this.#parts = parts;
    this.#options = options;
    this.#deadlines = options.deadlines ?? usualDeadlines;
    this.#waiting = new Lobby<Socket>({
      peersMax: headsMax,
      deadlineMs: this.#deadlines.headMs,
      graceMs: 0,
      expel: (socket) => socket.destroy(),
    });
  }

  /** @throws CriError FAILED_PRECONDITION when the PEM files are unusable. */
  server(): { server: Server; tls: Renewable | undefined } {
    const { tls: files } = this.#options;
    const answer = (socket: Socket) => this.#serve(socket);
    if (files === undefined) {
      const admit = (socket: Socket) => this.#admit(socket) && answer(socket);
      const server = createServer(halfOpen, admit);
      return { server, tls: undefined };
    }
    const tls = createTlsServer(files, "blobs", answer);
    tls.server.on("connection", (socket: Socket) => this.#admit(socket));
    tls.server.on("tlsClientError", (_, socket) => socket.destroy());
    return { server: tls.server, tls };
  }

  close(): void {
    this.#waiting[Symbol.dispose]();
    for (const socket of this.#answering.keys()) socket.destroy();
  }

  /** Returns false, and disconnects, unless the client may be served. */
  #admit(socket: Socket): boolean {
    socket.on("error", () => {}); // reads and writes report it
    const { rules, log } = this.#options;
    const client = socket.remoteAddress ?? "";
    if (!rules.clients.some((network) => inNetwork(client, network))) {
      log.debug("a client outside of serve-blobs-clients was disconnected", { client });
      socket.destroy();
      return false;
    }
    this.#waiting.enter(socket);
    socket.once("close", () => this.#waiting.leave(socket));
    return true;
  }

  #serve(socket: Socket): void {
    const client = socket.remoteAddress ?? "";
    const request = { client, line: "" };
    this.#respond(socket, request)
      .catch((error: unknown) => {
        const { log } = this.#options;
        log.debug("an answer to another node failed", { ...request, error: messageOf(error) });
        socket.destroy();
      })
      // Only at the answer's end, even if the client disconnects before: a file that is being hashed stays open.
      .finally(() => this.#answering.delete(socket));
  }

  async #respond(socket: Socket, request: { client: string; line: string }): Promise<void> {
    const { head } = await readHead(wireOf(socket));
    request.line = head.line;
    this.#waiting.leave(socket);
    await using sender = new Sender(socket, this.#deadlines);
    try {
      this.#reserve(socket, request.client);
      await this.#answer(sender, head);
    } catch (error) {
      if (sender.hasBegun) throw error;
      if (codeOf(error) === "DATA_LOSS") {
        this.#options.log.warn("a kept layer is not served", { error: messageOf(error) });
      }
      await sender.refuse(asMirrorError(error), head.line.startsWith("HEAD "));
    }
  }

  /** @throws MirrorError when there are too many answers under way. */
  #reserve(socket: Socket, client: string): void {
    const own = [...this.#answering.values()].filter((other) => other === client).length;
    if (this.#answering.size >= answersMax || own >= answersMaxOfClient) {
      const headers: [string, string][] = [["Retry-After", String(laterSeconds)]];
      const kind = { status: "429 Too Many Requests", code: "TOOMANYREQUESTS", headers };
      throw new MirrorError(kind, "this node serves enough others already");
    }
    this.#answering.set(socket, client);
  }

  async #answer(sender: Sender, head: Head): Promise<void> {
    const { isHead, kind, repository, name } = parseMirrorRequest(head);
    if (kind === "version") {
      const type: [string, string] = ["Content-Type", "application/json"];
      return await sender.send({ headers: [type], bytes: Buffer.from("{}"), isHead });
    }
    const from = { parts: this.#parts, rules: this.#options.rules };
    const find = kind === "manifests" ? mirroredManifest : mirroredBlob;
    const content = await find(from, repository, name);
    const headers = headersOf(content);
    if ("bytes" in content) return await sender.send({ headers, bytes: content.bytes, isHead });
    await using file = await open(content.path);
    const { size } = await file.stat();
    const range = isHead ? undefined : parseRange(head.headers.get("range")?.[0], size);
    if (!isHead) await this.#files.verify(file, content);
    headers.push(["Accept-Ranges", "bytes"]);
    await sender.send({ headers, file, size, range, isHead });
  }
}

function headersOf({ mediaType, digest }: MirrorContent): [string, string][] {
  return [
    ["Content-Type", mediaType.replaceAll(/[^\x21-\x7e]/g, "")],
    ["Docker-Content-Digest", digest],
  ];
}

/** A damaged layer is as good as none: the client asks the next host at once. */
function asMirrorError(error: unknown): MirrorError {
  if (error instanceof MirrorError) return error;
  const isAbsent = ["NOT_FOUND", "DATA_LOSS"].includes(codeOf(error));
  const kind = isAbsent
    ? { status: "404 Not Found", code: "NAME_UNKNOWN" }
    : { status: "500 Internal Server Error", code: "UNKNOWN" };
  return new MirrorError(kind, messageOf(error));
}

type Answer = { headers: [string, string][]; isHead: boolean } & (
  | { bytes: Buffer }
  | { file: FileHandle; size: number; range: ByteRange | undefined }
);

/** Sends one answer, and ends the connection. Slow clients are cut off. */
class Sender implements AsyncDisposable {
  readonly #socket: Socket;
  readonly #deadlines: Deadlines;
  /** Of the whole answer, by performance.now(). */
  #endMs = Infinity;
  hasBegun = false;

  constructor(socket: Socket, deadlines: Deadlines) {
    this.#socket = socket;
    this.#deadlines = deadlines;
  }

  async send(answer: Answer): Promise<void> {
    const isPart = "range" in answer && answer.range !== undefined;
    const whole = "bytes" in answer ? answer.bytes.length : answer.size;
    const { from, to } = isPart ? answer.range! : { from: 0, to: whole };
    const headers = [...answer.headers];
    if (isPart) headers.push(["Content-Range", `bytes ${from}-${to - 1}/${whole}`]);
    await this.#sendHead(isPart ? "206 Partial Content" : "200 OK", headers, to - from);
    if (answer.isHead) return;
    if ("bytes" in answer) return await this.#write(answer.bytes);
    const buffer = Buffer.allocUnsafe(Math.min(partBytes, to - from));
    for (let at = from; at < to;) {
      const length = Math.min(buffer.length, to - at);
      const { bytesRead } = await answer.file.read(buffer, 0, length, at);
      if (bytesRead === 0) throw new Error("the file became shorter");
      await this.#write(buffer.subarray(0, bytesRead));
      at += bytesRead;
    }
  }

  async refuse({ status, code, message, headers }: MirrorError, isHead: boolean): Promise<void> {
    const body = Buffer.from(jsonText({ errors: [{ code, message }] }));
    const type: [string, string] = ["Content-Type", "application/json"];
    await this.#sendHead(status, [type, ...headers], body.length);
    if (!isHead) await this.#write(body);
  }

  async #sendHead(status: string, headers: [string, string][], length: number): Promise<void> {
    this.hasBegun = true;
    const { stallMs, bytesPerMsMin } = this.#deadlines;
    this.#endMs = performance.now() + stallMs + length / bytesPerMsMin;
    const head = headText(`HTTP/1.1 ${status}`, [
      ["Docker-Distribution-API-Version", "registry/2.0"],
      ...headers,
      ["Content-Length", String(length)],
      ["Connection", "close"],
    ]);
    await this.#write(head);
  }

  async #write(bytes: Uint8Array): Promise<void> {
    await this.#within(wireOf(this.#socket).send(bytes));
  }

  async #within(work: Promise<unknown>): Promise<void> {
    // A promise for each part: one for the whole answer would hold what each part's race adds to it.
    const closed = Promise.withResolvers<never>();
    const onClose = () => closed.reject(new Error("the client disconnected, or was too slow"));
    if (this.#socket.destroyed) onClose();
    this.#socket.once("close", onClose);
    const leftMs = Math.max(0, this.#endMs - performance.now());
    const deadlineMs = Math.min(this.#deadlines.stallMs, leftMs);
    const stalled = setTimeout(() => this.#socket.destroy(), deadlineMs);
    try {
      await Promise.race([work, closed.promise]);
    } finally {
      clearTimeout(stalled);
      this.#socket.off("close", onClose);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#within(new Promise<void>((resolve) => this.#socket.end(resolve))).catch(() => {});
    this.#socket.destroy();
  }
}

/** Verifies files against their digests, each version of a file once. */
class VerifiedFiles {
  /** Digest → version. */
  readonly #verified = new Map<string, string>();
  readonly #running = new SingleFlight<void>();

  /** @throws CriError DATA_LOSS. */
  async verify(file: FileHandle, { digest }: MirrorContent): Promise<void> {
    const { ino, size, mtimeNs, ctimeNs } = await file.stat({ bigint: true });
    const version = [ino, size, mtimeNs, ctimeNs].join(" ");
    if (this.#verified.get(digest) === version) return;
    await this.#running.join(`${digest} ${version}`, new AbortController().signal, async () => {
      if ((await digestOfFile(file, digest)) !== digest) {
        throw new CriError(
          "DATA_LOSS",
          `the kept ${digest} is damaged: remove the image and pull it again`,
        );
      }
      if (this.#verified.size >= verifiedMax) this.#verified.clear();
      this.#verified.set(digest, version);
    });
  }
}

async function digestOfFile(file: FileHandle, like: string): Promise<string> {
  const algorithm = algorithmOf(like);
  const hash = createHash(algorithm);
  const buffer = Buffer.allocUnsafe(partBytes);
  for (let at = 0; ;) {
    const { bytesRead } = await file.read(buffer, 0, buffer.length, at);
    if (bytesRead === 0) return `${algorithm}:${hash.digest("hex")}`;
    hash.update(buffer.subarray(0, bytesRead));
    at += bytesRead;
  }
}
