// Runs the fuzzer of CRI calls (test/cri_fuzz.ts) briefly, and tests that it detects planted faults.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import { oneRound, sendCalls } from "./cri_fuzz.ts";
import { Caller } from "./fuzz/caller.ts";
import { Session } from "./fuzz/session.ts";
import { encode, faultsOf, Raw, rpcOf, rpcs, unknownField } from "./fuzz/wire.ts";
import { fuzzSeed } from "./random.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-fuzz-test-"));
const socket = join(dir, "s.sock");
let server: grpc.Server;
/** Handlers of the fake daemon by RPC; other RPCs get an empty answer. */
type Reply = (error: object | null, bytes?: Buffer) => void;
const plantedFaults = new Map<string, (reply: Reply) => void>();

beforeAll(async () => {
  server = new grpc.Server();
  const same = (bytes: Buffer) => bytes;
  for (const service of ["RuntimeService", "ImageService"]) {
    const own = rpcs.filter(({ path }) => path.includes(`.${service}/`));
    const definition = Object.fromEntries(
      own.map(({ name, path }) => [
        name,
        {
          path,
          requestStream: false,
          responseStream: false,
          requestSerialize: same,
          requestDeserialize: same,
          responseSerialize: same,
          responseDeserialize: same,
        },
      ]),
    );
    const handle = (name: string) => (_: unknown, reply: Reply) =>
      (plantedFaults.get(name) ?? ((answer: Reply) => answer(null, Buffer.alloc(0))))(reply);
    server.addService(
      definition,
      Object.fromEntries(own.map(({ name }) => [name, handle(name)])) as never,
    );
  }
  const credentials = grpc.ServerCredentials.createInsecure();
  await new Promise<void>((resolve, reject) => {
    server.bindAsync(`unix:${socket}`, credentials, (error) => (error ? reject(error) : resolve()));
  });
});
afterAll(() => {
  server.forceShutdown();
  rmSync(dir, { recursive: true, force: true });
});

async function problemsWith(rpc: string, fault: (reply: Reply) => void): Promise<string[]> {
  plantedFaults.clear();
  plantedFaults.set(rpc, fault);
  using caller = new Caller(socket, { hangMs: 3_000 });
  const world = {
    dir: join(dir, "a/b/c"),
    cgroupParent: "/fuzz",
    pods: ["p"],
    containers: ["c"],
    images: ["i"],
    handlers: [""],
    files: [join(dir, "a/b/c/file")],
  };
  const target = { caller, world, replenish: async () => {}, rpcs: [rpcOf(rpc), rpcOf("Version")] };
  const { problems } = await sendCalls(target, { seed: 1, round: 0, calls: 40 });
  return problems;
}

const image = rpcOf("ListImages").response;

test.each<[string, string, (reply: Reply) => void, RegExp]>([
  ["no call", "Version", (reply) => reply(null, Buffer.alloc(0)), /^$/],
  ["a call that is never answered", "Status", () => {}, /^Status: no answer; request /],
  [
    "a string with a lone surrogate",
    "ListImages",
    (reply) => {
      const username = new Raw(Buffer.from("eda080", "hex"));
      reply(null, encode(image, { images: [{ id: "i", username }] }));
    },
    /^ListImages: .*images\.username: a string that is not UTF-8: eda080/,
  ],
  [
    "a field that the message lacks",
    "ListImages",
    (reply) => reply(null, unknownField(99, Buffer.from("x"))),
    /^ListImages: ListImagesResponse: unknown field 99/,
  ],
  [
    "a cut message",
    "ListImages",
    (reply) => reply(null, encode(image, { images: [{ id: "i" }] }).subarray(0, 3)),
    /^ListImages: .*RangeError/,
  ],
  [
    "the engine's error",
    "ListPodSandbox",
    (reply) => reply({ code: grpc.status.INTERNAL, details: "undefined is not an object" }),
    /^ListPodSandbox: INTERNAL undefined is not an object/,
  ],
  [
    "an error without bounds",
    "PodSandboxStatus",
    (reply) => reply({ code: grpc.status.NOT_FOUND, details: "x".repeat(21_000) }),
    /^PodSandboxStatus: an error of 21000 bytes/,
  ],
])(
  "sees %s",
  async (_, rpc, fault, expected) => {
    const problems = await problemsWith(rpc, fault);
    const found = problems.filter((problem) => problem.startsWith(`${rpc}:`));
    expect(found[0] ?? "").toMatch(expected);
    expect(problems).toEqual(found);
  },
  120_000,
);

test("strict decoding finds what is not UTF-8 in maps, lists and packed messages", () => {
  const { request } = rpcOf("RunPodSandbox");
  const broken = (hex: string) => new Raw(Buffer.from(hex, "hex"));
  const faults = (config: object) => faultsOf(request, encode(request, { config } as never));
  expect(
    faults({ hostname: "é😀", labels: [["a", "b"]], port_mappings: [{ host_port: -1n }] }),
  ).toEqual([]);
  expect(faults({ labels: [["a", broken("c080")]] })).toHaveLength(1);
  expect(faults({ labels: [[broken("f09f98"), "a"]] })).toHaveLength(1);
  expect(faults({ dns_config: { servers: ["a", broken("ff"), "b"] } })).toHaveLength(1);
});

test(`the daemon survives hostile calls, registries, plugins and runtimes (seed ${fuzzSeed})`, async () => {
  await using session = await Session.open({ hangMs: 40_000 });
  const result = await oneRound(session, { seed: fuzzSeed, round: 0, calls: 400 });
  expect(result.problems).toEqual([]);
  expect(result.codes["OK"]).toBeGreaterThan(50);
}, 400_000);
