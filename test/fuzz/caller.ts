// Sends requests as bytes, twice at once, cancelled or on connections that drop, and judges each answer:
// it comes in time, and every message of it would be accepted by a strict client.
import { createConnection, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { rmSync } from "node:fs";
import * as grpc from "@grpc/grpc-js";
import { type Chance, pick } from "./values.ts";
import { faultsOf, type Rpc } from "./wire.ts";

export type Answer = {
  /** gRPC's; "" while there is none. */
  code: string;
  details: string;
  messages: Buffer[];
  /** What a strict client would refuse, and what must not be in an answer. */
  faults: string[];
  /** No answer came within the time that each has. */
  isHung: boolean;
};

export type CallPlan = {
  /** Milliseconds until the client cancels; undefined: it waits. */
  cancelMs?: number;
  /** Milliseconds of the call's deadline. */
  deadlineMs?: number;
};

const channelsCount = 4;
/** An error's text is a header, percent-encoded: three times this ends a connection of Node's. */
const detailsBytesMax = 20 << 10;
/** The engine's own words, which tell of a mistake in the program. */
const engineWords =
  /is not a function|is not iterable|undefined is not|null is not|Cannot read prop|URI (error|malformed)|Maximum call stack|Invalid array length|Out of memory|Assertion failed/i;

export class Caller implements Disposable {
  readonly #target: string;
  readonly #hangMs: number;
  readonly #proxy: DroppingProxy;
  #steady: grpc.Client[] = [];
  #dropping: grpc.Client[] = [];

  constructor(socket: string, { hangMs }: { hangMs: number }) {
    this.#target = socket;
    this.#hangMs = hangMs;
    this.#proxy = new DroppingProxy(socket);
    this.#steady = Array.from({ length: channelsCount }, () => connect(socket));
    this.#dropping = [connect(this.#proxy.path)];
  }

  [Symbol.dispose](): void {
    for (const client of [...this.#steady, ...this.#dropping]) client.close();
    this.#proxy[Symbol.dispose]();
  }

  /** Drops every connection that is allowed to drop. */
  drop(): void {
    this.#proxy.drop();
  }

  /** Writes bytes that are no HTTP/2 to the daemon's socket. */
  scribble(chance: Chance): void {
    const socket = createConnection(this.#target);
    socket.on("error", () => {});
    const preface = chance(2) === 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    const noise = Buffer.from(Array.from({ length: chance(300) }, () => chance(256)));
    socket.end(Buffer.concat([Buffer.from(preface), noise]));
    setTimeout(() => socket.destroy(), 1_000).unref();
  }

  call(rpc: Rpc, bytes: Buffer, plan: CallPlan, chance: Chance): Promise<Answer> {
    const clients = chance(12) === 0 ? this.#dropping : this.#steady;
    return send(pick(chance, clients), rpc, bytes, plan, this.#hangMs);
  }
}

function connect(path: string): grpc.Client {
  return new grpc.Client(`unix:${path}`, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": 16 << 20,
    "grpc.enable_http_proxy": 0,
    "grpc.use_local_subchannel_pool": 1,
    "grpc.initial_reconnect_backoff_ms": 50,
    "grpc.max_reconnect_backoff_ms": 200,
  });
}

const same = (bytes: Buffer) => bytes;

function send(
  client: grpc.Client,
  rpc: Rpc,
  bytes: Buffer,
  { cancelMs, deadlineMs }: CallPlan,
  hangMs: number,
): Promise<Answer> {
  const answer: Answer = { code: "", details: "", messages: [], faults: [], isHung: false };
  const options = deadlineMs === undefined ? {} : { deadline: Date.now() + deadlineMs };
  const meta = new grpc.Metadata();
  const { promise, resolve } = Promise.withResolvers<Answer>();
  const call = client.makeServerStreamRequest(rpc.path, same, same, bytes, meta, options);
  const hung = setTimeout(() => {
    answer.isHung = true;
    call.cancel();
    resolve(answer);
  }, hangMs);
  const cancel = cancelMs === undefined ? undefined : setTimeout(() => call.cancel(), cancelMs);
  call.on("data", (message: Buffer) => {
    answer.messages.push(message);
    answer.faults.push(...faultsOf(rpc.response, message));
  });
  call.on("error", () => {}); // The status tells it.
  call.on("status", (status: grpc.StatusObject) => {
    clearTimeout(hung);
    clearTimeout(cancel);
    answer.code = grpc.status[status.code];
    answer.details = status.details;
    answer.faults.push(...faultsOfError(answer));
    resolve(answer);
  });
  return promise;
}

function faultsOfError({ code, details }: Answer): string[] {
  const faults: string[] = [];
  if (!details.isWellFormed()) faults.push("the error's text has lone surrogates");
  const length = Buffer.byteLength(details);
  if (length > detailsBytesMax) faults.push(`an error of ${length} bytes`);
  const isProgram = ["INTERNAL", "UNKNOWN"].includes(code);
  if (isProgram && engineWords.test(details)) faults.push(`${code} ${details.slice(0, 300)}`);
  return faults;
}

/** Passes bytes between a socket of its own and the daemon's until it is told to drop them all. */
class DroppingProxy implements Disposable {
  readonly path: string;
  readonly #server: Server;
  readonly #open = new Set<Socket>();

  constructor(target: string) {
    this.path = join(target, `../dropping-${process.pid}-${Date.now()}.sock`);
    this.#server = createServer((near) => {
      const far = createConnection(target);
      for (const [from, to] of [
        [near, far],
        [far, near],
      ] as const) {
        this.#open.add(from);
        from.on("error", () => {});
        from.on("close", () => {
          this.#open.delete(from);
          to.destroy();
        });
        from.pipe(to);
      }
    });
    this.#server.listen(this.path);
  }

  drop(): void {
    for (const socket of this.#open) socket.destroy();
  }

  [Symbol.dispose](): void {
    this.drop();
    this.#server.close();
    rmSync(this.path, { force: true });
  }
}
