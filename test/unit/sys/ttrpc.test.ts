// Tests the transport of NRI over real sockets; one of the ends may be a forger's.
import { afterAll, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { createConnection, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError } from "../../../src/base/errors.ts";
import { TtrpcConnection } from "../../../src/sys/ttrpc.ts";
import { NoAnswer } from "../../../src/sys/ttrpc_calls.ts";
import { ttrpcBodyMax } from "../../../src/sys/ttrpc_wire.ts";
import { until } from "../../expect.ts";
import { fuzzRounds, fuzzSeed, random } from "../../random.ts";
import { field, frame, message, onMessage, request } from "../../sys/frames.ts";

const path = join(tmpdir(), `isulad-ttrpc-${process.pid}.sock`);
const server: Server = createServer();
await new Promise<void>((resolve) => server.listen(path, resolve));
afterAll(() => {
  server.close();
  rmSync(path, { force: true });
});

async function pair(): Promise<[Socket, Socket]> {
  const accepted = new Promise<Socket>((resolve) => server.once("connection", resolve));
  const connected = createConnection(path);
  connected.on("error", () => {});
  return [connected, await accepted];
}

type Serve = (method: string, payload: Uint8Array) => Promise<Uint8Array>;
const echo: Serve = (_, payload) => Promise.resolve(payload);

function open(socket: Socket, serve: Serve = echo): TtrpcConnection & { ended: string[] } {
  const ended: string[] = [];
  const options = { service, serve, onClose: (why: string) => ended.push(why) };
  return Object.assign(new TtrpcConnection(socket, options), { ended });
}

const service = "runtime";

/** The bodies of what is answered. */
function answers(socket: Socket): Buffer[] {
  const found: Buffer[] = [];
  onMessage(socket, ({ body }) => found.push(body));
  return found;
}

test("a chunk of many requests is answered over several turns of the event loop", async () => {
  const [theirs, ours] = await pair();
  open(ours);
  let [answered, inTurn, most] = [0, 0, 0];
  const write = ours.write.bind(ours);
  ours.write = (bytes: Uint8Array | string) => {
    answered++;
    inTurn++;
    most = Math.max(most, inTurn);
    if (inTurn === 1) setImmediate(() => (inTurn = 0));
    return write(bytes);
  };
  const count = 60_000;
  const one = frame(2, message(1, 1, Buffer.alloc(0)));
  theirs.resume().write(Buffer.concat(Array.from({ length: count }, () => one)));
  await until("all are answered", () => answered === count);
  expect(most).toBeLessThan(5_000); // a chunk has over 10,000
});

test("a request is answered however its bytes are cut", async () => {
  const [theirs, ours] = await pair();
  const connection = open(ours);
  const found = answers(theirs);
  const whole = message(1, 1, request(service, "Hello", Buffer.from("payload")));
  const cuts = [
    [frame(2, whole)],
    [...whole].map((byte) => frame(2, Buffer.from([byte]))),
    [frame(2, whole.subarray(0, 10)), frame(2, Buffer.alloc(0)), frame(2, whole.subarray(10))],
    [frame(2, Buffer.concat([whole, whole.subarray(0, 3)])), frame(2, whole.subarray(3))],
  ];
  for (const pieces of cuts) {
    for (const byte of Buffer.concat(pieces)) theirs.write(Buffer.from([byte]));
    await sleep(1);
  }
  await until("all are answered", () => found.length === cuts.length + 1);
  for (const answer of found) expect(answer.toString("latin1")).toContain("payload");
  expect(connection.closed).toBeUndefined();
  connection.close("done");
});

test.each([
  ["a frame for connection 3", frame(3, Buffer.from("x")), "a frame for connection 3"],
  ["a frame over the limit", Buffer.from([0, 0, 0, 1, 0, 64, 0, 11]), "a frame of 4194315 bytes"],
  [
    "a message over the limit",
    frame(2, Buffer.from([0, 64, 0, 1, 0, 0, 0, 1, 1, 0])),
    "a message of 4194305 bytes",
  ],
  ["a response where requests go", frame(2, message(1, 2, Buffer.alloc(0))), "message of type 2"],
  ["a request where answers go", frame(1, message(1, 1, Buffer.alloc(0))), "message of type 1"],
  ["an answer to nothing", frame(1, message(77, 2, Buffer.alloc(0))), "stream 77"],
  ["no protobuf at all", frame(2, message(1, 1, Buffer.from([10, 200]))), "out of range"],
])("%s ends the connection with a reason", async (_, bytes, reason) => {
  const [theirs, ours] = await pair();
  const connection = open(ours);
  const call = connection.call("plugin", "Hang", Buffer.alloc(0), 10_000);
  theirs.write(bytes);
  const error = await call.catch((error: unknown) => error);
  expect(error).toBeInstanceOf(NoAnswer);
  expect(connection.closed).toContain(reason);
  expect(connection.ended).toEqual([connection.closed!]);
});

test("our own oversized message fails that call and keeps the connection", async () => {
  const [theirs, ours] = await pair();
  const connection = open(ours);
  theirs.resume();
  const big = connection.call("plugin", "Synchronize", Buffer.alloc(ttrpcBodyMax), 1000);
  const error = await big.catch((error: unknown) => error as CriError);
  expect(error).toMatchObject({ code: "RESOURCE_EXHAUSTED" });
  expect(String(error)).toContain("at most 4194304");
  expect(connection.closed).toBeUndefined();
  connection.close("done");
});

test("a call without an answer costs its deadline, and a late answer is nothing", async () => {
  const [theirs, ours] = await pair();
  const connection = open(ours);
  const error = await connection
    .call("plugin", "Hang", Buffer.alloc(0), 20)
    .catch((error: unknown) => error as NoAnswer);
  expect(error).toMatchObject({ code: "DEADLINE_EXCEEDED" });
  theirs.write(frame(1, message(1, 2, Buffer.alloc(0))));
  await sleep(20);
  expect(connection.closed).toBeUndefined();
  theirs.end();
  await until("the end is seen", () => connection.closed !== undefined);
  expect(connection.closed).toContain("closed it");
});

test("errors of the one who serves reach the caller with code and message", async () => {
  const [theirs, ours] = await pair();
  const found = answers(theirs);
  const connection = open(ours, () => Promise.reject(new CriError("NOT_FOUND", "no such thing")));
  theirs.write(frame(2, message(1, 1, request(service, "Any", Buffer.alloc(0)))));
  await until("it is answered", () => found.length === 1);
  expect(found[0]!).toEqual(
    field(10, Buffer.concat([Buffer.from([8, 5]), field(18, Buffer.from("no such thing"))])),
  );
  connection.close("done");
});

test("a peer that floods gets errors, and one that never reads is closed", async () => {
  const [theirs, ours] = await pair();
  let release = () => {};
  const held = new Promise<void>((resolve) => (release = resolve));
  const found = answers(theirs);
  const connection = open(ours, async (_, payload) => {
    await held;
    return payload;
  });
  const many = Array.from({ length: 100 }, (_, i) =>
    frame(2, message(2 * i + 1, 1, request(service, "Flood", Buffer.alloc(0)))),
  );
  theirs.write(Buffer.concat(many));
  await until("the rest is refused", () => found.length === 100 - 32);
  release();
  await until("the others are answered", () => found.length === 100);
  theirs.pause();
  for (let i = 0; i < 20; i++) {
    void connection.call("plugin", "Big", Buffer.alloc(3 << 20), 60_000).catch(() => {});
  }
  expect(connection.closed).toContain("unread");
});

test(
  `${fuzzRounds} mutated streams of frames: valid ones are answered, others end the connection (seed ${fuzzSeed})`,
  async () => {
    const next = random(fuzzSeed);
    const pick = (n: number) => Math.floor(next() * n);
    let [theirs, ours] = await pair();
    let connection = open(ours);
    let found = answers(theirs);
    let ended = 0;
    for (let round = 0; round < fuzzRounds; round++) {
      const body = request(service, "Fuzz", Buffer.from(String(round)));
      const bytes = frame(2, message(2 * round + 1, 1, body));
      for (let i = pick(4); i > 0; i--) bytes[pick(bytes.length)] = pick(256);
      theirs.write(bytes.subarray(0, next() < 0.1 ? pick(bytes.length) : bytes.length));
      if (round % 20 !== 19) continue;
      await sleep(0);
      if (connection.closed === undefined && next() < 0.5) continue;
      ended += connection.closed === undefined ? 0 : 1;
      connection.close("the next round");
      [theirs, ours] = await pair();
      connection = open(ours);
      found = answers(theirs);
      theirs.write(frame(2, message(1, 1, request(service, "Valid", Buffer.from("still here")))));
      const valid = found;
      await until(`it answers in round ${round}`, () => valid.length === 1);
      expect(valid[0]!.toString("latin1")).toContain("still here");
    }
    expect(ended).toBeGreaterThan(fuzzRounds / 200);
  },
  60_000 + fuzzRounds,
);
