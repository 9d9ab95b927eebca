// Tests responses in slices: whole for a client that reads, and never far ahead of one that does not.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { connect as connectHttp2 } from "node:http2";
import { connect as connectSocket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import { answerUnary, type Method } from "../../../src/cri/grpc_calls.ts";
import type { Context } from "../../../src/cri/context.ts";
import { FailureLog } from "../../../src/cri/failure_log.ts";
import { SlicedResponse } from "../../../src/base/sliced_response.ts";
import { runtime } from "../../../src/proto/messages.js";
import { until } from "../../expect.ts";
import { capturedLog } from "../fakes.ts";

const sliceBytes = 64 << 10;
const slices = 64;
const { VersionRequest: request, VersionResponse: response } = runtime.v1;
const method: Method = { request, response, stream: false };
const path = "/runtime.v1.RuntimeService/ExecSync";
const same = (bytes: Buffer) => bytes;

const dir = mkdtempSync(join(tmpdir(), "sliced-"));
const socket = join(dir, "socket");
const server = new grpc.Server();
/** Slices that each response has made. */
let taken: number[] = [];
let closed = 0;
let failing = false;

async function* patterned(response: number): AsyncGenerator<Uint8Array> {
  const slice = Buffer.alloc(sliceBytes); // the same for each
  for (let index = 0; index < slices; index++) {
    taken[response]!++;
    if (failing && index === 3) throw new Error("the disk has failed");
    yield slice.fill(index);
    await Promise.resolve();
  }
}

beforeAll(async () => {
  const { log } = capturedLog("debug");
  const nothing = { listed: () => undefined };
  const context = {
    health: { noteFailure: () => {} },
    config: { maxSendBytes: 16 << 20 },
    log,
    calls: { count: 0, running: 0 },
    sandboxes: nothing,
    containers: nothing,
  } as unknown as Context;
  const handler = () => {
    const index = taken.push(0) - 1;
    const close = () => Promise.resolve(void closed++);
    return new SlicedResponse(sliceBytes * slices, patterned(index), close);
  };
  const rpc = { context, failures: new FailureLog(log, 50), name: "Version", method, handler };
  const definition = {
    path,
    requestStream: false as const,
    responseStream: false as const,
    requestSerialize: same,
    requestDeserialize: same,
    responseSerialize: same,
    responseDeserialize: same,
  };
  server.addService({ ExecSync: definition }, { ExecSync: answerUnary(rpc) });
  await new Promise((resolve) => {
    server.bindAsync(`unix:${socket}`, grpc.ServerCredentials.createInsecure(), resolve);
  });
});
afterAll(() => {
  server.forceShutdown();
  rmSync(dir, { recursive: true });
});

function call(): Promise<Buffer> {
  const client = new grpc.Client(`unix:${socket}`, grpc.credentials.createInsecure(), {
    "grpc.max_receive_message_length": -1,
  });
  const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
  client.makeUnaryRequest(path, same, same, Buffer.alloc(0), (error, bytes) =>
    bytes === undefined ? reject(error) : resolve(bytes),
  );
  return promise.finally(() => client.close());
}

test("a client gets one message of all slices", async () => {
  const bytes = await call();
  const expected = Array.from({ length: slices }, (_, index) => Buffer.alloc(sliceBytes, index));
  expect(bytes.equals(Buffer.concat(expected))).toBeTrue();
  expect(closed).toBe(1);
});

test("for a client that does not read, no more is made than its window takes", async () => {
  [taken, closed] = [[], 0];
  const connection = connectSocket(socket);
  const session = connectHttp2("http://localhost", { createConnection: () => connection });
  session.on("error", () => {});
  const stream = session.request({
    ":method": "POST",
    ":path": path,
    "content-type": "application/grpc",
    te: "trailers",
  });
  stream.on("error", () => {});
  stream.end(Buffer.alloc(5));
  stream.pause();
  await until("its first slice is made", () => taken.length === 1);
  expect((await call()).length).toBe(sliceBytes * slices); // which takes its time
  expect(taken[1]).toBe(slices);
  expect(taken[0]).toBeLessThan(3);
  connection.destroy();
  await until("both responses are let go of", () => closed === 2);
  expect(taken[0]).toBeLessThan(4); // the one that was waiting may end
});

test("a response that fails on its way ends with the error", async () => {
  failing = true;
  const error = await call().catch((thrown: unknown) => thrown as grpc.ServiceError);
  failing = false;
  expect(error).toMatchObject({
    code: grpc.status.INTERNAL,
    details: expect.stringContaining("the disk has failed"),
  });
});
