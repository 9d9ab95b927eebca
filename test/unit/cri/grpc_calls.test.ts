// Tests the boundary to gRPC: whatever a handler, an encoder or grpc-js throws, each call ends with a status
// that can be sent, and failures are logged once a minute, with a count.
import { describe, expect, test } from "bun:test";
import { EventEmitter } from "node:events";
import * as grpc from "@grpc/grpc-js";
import { observeActivities } from "../../../src/base/activity.ts";
import { codeOf, CriError, grpcCodes } from "../../../src/base/errors.ts";
import { encodedBytesMax, statusText } from "../../../src/base/status_text.ts";
import { answerStream, answerUnary, type Method, type Rpc } from "../../../src/cri/grpc_calls.ts";
import type { Context } from "../../../src/cri/context.ts";
import { FailureLog } from "../../../src/cri/failure_log.ts";
import { Encoded } from "../../../src/cri/encoded_lists.ts";
import { runtime } from "../../../src/proto/messages.js";
import { until } from "../../expect.ts";
import { fuzzSeed, random } from "../../random.ts";
import { capturedLog } from "../fakes.ts";

const { VersionRequest: request, VersionResponse: response } = runtime.v1;
const method: Method = { request, response, stream: false };

function fixture() {
  const { log, lines } = capturedLog("debug");
  const calls = { count: 0, running: 0 };
  const nothing = { listed: () => undefined };
  const context = {
    health: { noteFailure: () => {} },
    config: { maxSendBytes: 16 << 20 },
    log,
    calls,
    sandboxes: nothing,
    containers: nothing,
  } as unknown as Context;
  return { lines, calls, context, failures: new FailureLog(log, 50) };
}

type Answer = { failed: grpc.ServiceError | null; bytes?: Buffer | null | undefined };

/** The answer of a unary call. refusing: so often grpc-js throws when it is to send. */
async function unary(handler: Rpc<never>["handler"] | (() => unknown), refusing = 0) {
  const parts = fixture();
  const rpc = { ...parts, name: "StopContainer", method, handler: handler as never };
  const counted: string[] = [];
  using _ = observeActivities((_call, _endedMs, error) => {
    counted.push(error === undefined ? "OK" : codeOf(error));
  });
  const call = Object.assign(new EventEmitter(), {
    request: Buffer.alloc(0),
    getDeadline: () => 0,
    metadata: new grpc.Metadata(),
  });
  let left = refusing;
  const answer = await new Promise<Answer>((resolve) => {
    answerUnary(rpc)(call as never, (failed, bytes) => {
      if (left-- > 0) throw new URIError("URI malformed");
      resolve({ failed: failed as grpc.ServiceError | null, bytes });
    });
  });
  return { ...parts, counted, ...answer };
}

const throwing = (error: unknown) => () => {
  throw error;
};
const itself = {
  get message(): string {
    throw new Error("no message");
  },
};

describe("a call", () => {
  test.each<[string, unknown, string]>([
    ["an error with a lone surrogate", new CriError("NOT_FOUND", "a\uD800b"), "a\uFFFDb"],
    ["an error whose message is no text", Object.assign(new Error(), { message: 1n }), "1"],
    ["an error that throws itself", Object.setPrototypeOf(itself, Error.prototype), "without a"],
    ["an object without a prototype", Object.create(null), "without a"],
    ["nothing", undefined, "undefined"],
    ["a text with a NUL", "a\0b", "a\uFFFDb"],
    ["an error over a header's bound", new Error("€\n".repeat(100_000)), "[…]"],
  ])("whose handler throws %s ends with a status", async (_, error, said) => {
    const { failed, counted, calls } = await unary(throwing(error));
    expect(failed?.details).toContain(said);
    expect(encodeURI(failed!.details).length).toBeLessThanOrEqual(encodedBytesMax);
    expect(failed?.code).toBe(error instanceof CriError ? grpcCodes.NOT_FOUND : grpcCodes.INTERNAL);
    expect({ counted, calls }).toMatchObject({
      counted: [error instanceof CriError ? "NOT_FOUND" : "INTERNAL"],
      calls: { running: 0 },
    });
  });

  test.each<[string, unknown]>([
    ["that cannot be written", { version: Symbol("no text") }],
    [
      "that throws",
      {
        get version() {
          throw new Error("gone");
        },
      },
    ],
    ["that is none", undefined],
  ])("with a response %s ends with INTERNAL", async (_, message) => {
    expect((await unary(() => message)).failed?.code).toBe(grpcCodes.INTERNAL);
  });

  test("with a response over what clients take ends with RESOURCE_EXHAUSTED", async () => {
    const { failed } = await unary(() => new Encoded([Buffer.alloc((16 << 20) + 1)]));
    expect(failed).toMatchObject({ code: grpcCodes.RESOURCE_EXHAUSTED });
    expect((await unary(() => new Encoded([Buffer.alloc(16 << 20)]))).failed).toBeNull();
  });

  test("whose response or status grpc-js refuses to send ends with INTERNAL", async () => {
    for (const handler of [() => ({ version: "1" }), throwing(new CriError("NOT_FOUND", "none"))]) {
      const { failed, lines } = await unary(handler, 1);
      expect(failed).toMatchObject({ code: grpcCodes.INTERNAL });
      expect(lines.join("")).toContain("could not be sent");
    }
  });

  test("with a lone surrogate in its response is answered in UTF-8", async () => {
    const { bytes } = await unary(() => ({ version: "a\uD800" }));
    expect(response.decode(bytes!).version).toBe("a\uFFFD");
  });

  test("that streams ends with a status when a message cannot be written", async () => {
    const parts = fixture();
    const handler = async (
      _context: Context,
      _request: object,
      _call: object,
      send: (m: object) => Promise<void>,
    ) => {
      await send({ version: "1" });
      await send({ version: Symbol("no text") });
    };
    const rpc = {
      ...parts,
      name: "StreamImages",
      method: { ...method, stream: true },
      handler: handler as never,
    };
    const sent: Buffer[] = [];
    const call = Object.assign(new EventEmitter(), {
      request: Buffer.alloc(0),
      getDeadline: () => 0,
      metadata: new grpc.Metadata(),
      write: (bytes: Buffer) => sent.push(bytes) > 0,
      end: () => {},
    });
    const failed = new Promise<grpc.ServiceError>((resolve) => call.once("error", resolve));
    answerStream(rpc)(call as never);
    expect(await failed).toMatchObject({ code: grpcCodes.INTERNAL });
    expect(sent.map((bytes) => response.decode(bytes).version)).toEqual(["1"]);
  });
});

test("a stream whose client has cancelled ends, even if its handler goes on sending", async () => {
  const parts = fixture();
  type Send = (message: object) => Promise<void>;
  const handler = async (_context: Context, _request: object, _call: object, send: Send) => {
    await send({ version: "1" });
    await send({ version: "2" });
  };
  const rpc = { ...parts, name: "VerifyImages", method: { ...method, stream: true } };
  const call = Object.assign(new EventEmitter(), {
    request: Buffer.alloc(0),
    getDeadline: () => 0,
    metadata: new grpc.Metadata(),
    cancelled: false,
    write: () => false, // as grpc-js once its buffer is full; after a cancellation it never drains
    end: () => call.emit("ended"),
  });
  const ended = new Promise<void>((resolve) => call.once("ended", resolve));
  answerStream({ ...rpc, handler })(call as never);
  expect(parts.calls.running).toBe(1);
  call.cancelled = true;
  call.emit("cancelled");
  await ended;
  expect(parts.calls.running).toBe(0);
});

test(`a status of any text can be sent, and has its beginning and end (seed ${fuzzSeed})`, () => {
  const next = random(fuzzSeed);
  const pieces = ["a", " ", "%", "é", "€", "\u{1F600}", "\uD800", "\uDFFF", "\0", "\n"];
  for (let round = 0; round < 300; round++) {
    const piece = () => pieces[Math.floor(next() * pieces.length)]!;
    const middle = Array.from({ length: Math.floor(next() * 30) }, piece).join("");
    const text = statusText(`first ${middle.repeat(Math.floor(next() * 2_000))} last`);
    expect(encodeURI(text).length).toBeLessThanOrEqual(encodedBytesMax);
    expect(text).toStartWith("first ");
    expect(text).toEndWith(" last");
    expect(text).not.toMatch(/[^\P{Cc}\n\t]/u);
  }
});

describe("the log of failed calls", () => {
  const config = { metadata: { name: "web", namespace: "shop" } };
  const add = (
    { failures, context }: ReturnType<typeof fixture>,
    call: string,
    request: object,
    error: unknown,
  ) => failures.add(context, { call, request, error });
  const failed = (lines: string[]) => lines.map((line) => line.replace(/^\S+ /, "").trim());

  test("names call, pod, image, code and reason of what changes something, at WARN", () => {
    const parts = fixture();
    const image = { image: "a/b:1" };
    add(
      parts,
      "PullImage",
      { image, sandbox_config: config },
      new CriError("NOT_FOUND", "no such tag"),
    );
    add(
      parts,
      "CreateContainer",
      {
        pod_sandbox_id: "f00",
        sandbox_config: config,
        config: { metadata: { name: "app" }, image },
      },
      new CriError("NOT_FOUND", "none"),
    );
    add(parts, "RunPodSandbox", { config }, new CriError("CANCELLED", "gone"));
    add(parts, "RunPodSandbox", { config }, new Error("a fault"));
    add(parts, "PodSandboxStatus", { pod_sandbox_id: "f00" }, new CriError("NOT_FOUND", "none"));
    const lines = failed(parts.lines);
    expect(lines[0]).toBe(
      'WARN  call failed call=PullImage pod=shop/web image=a/b:1 code=NOT_FOUND reason="no such tag"',
    );
    expect(lines[1]).toBe(
      "WARN  call failed call=CreateContainer pod=shop/web container=app image=a/b:1 code=NOT_FOUND reason=none",
    );
    expect(lines[2]).toStartWith(
      "INFO  call failed call=RunPodSandbox pod=shop/web code=CANCELLED",
    );
    expect(lines[3]).toMatch(
      /^ERROR call failed call=RunPodSandbox .*code=INTERNAL reason="a fault" stack=/,
    );
    expect(lines[4]).toStartWith("DEBUG call failed call=PodSandboxStatus pod=f00");
  });

  test("has equal failures once in a while, with how many more there were", async () => {
    const parts = fixture();
    for (let id = 0; id < 1_000; id++) {
      const why = `container ${"0123456789ab".repeat(4)}${id} has pid ${id}`;
      add(parts, "StopContainer", {}, new CriError("UNKNOWN", why));
    }
    add(parts, "StopContainer", {}, new CriError("UNKNOWN", "another reason"));
    expect(parts.lines).toHaveLength(2);
    await until("the count is logged", () => parts.lines.length === 3);
    expect(parts.lines[2]).toContain("call failed again");
    expect(parts.lines[2]).toContain("times=999");
  });

  test("remembers a bounded number of kinds", () => {
    const parts = fixture();
    for (let i = 0; i < 1_000; i++) {
      const word = i.toString(2).replaceAll("0", "a").replaceAll("1", "b");
      add(parts, "RemoveContainer", {}, new CriError("UNKNOWN", `reason ${word}`));
      add(parts, "RemoveContainer", {}, new CriError("UNKNOWN", `reason ${word}`));
    }
    const again = parts.lines.filter((line) => line.includes("again"));
    expect(again.length).toBe(1_000 - 256);
  });
});
