// Tests that thousands of cancelled calls on one connection do not disturb the other calls on it.
import { afterAll, beforeAll, expect, test } from "bun:test";
import * as grpc from "@grpc/grpc-js";
import { testMs } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";
import { makeImage, makeLayer } from "../image_maker.ts";

let daemon: Daemon;
let registry: FakeRegistry;

beforeAll(async () => {
  daemon = await startDaemon({ image: false, network: false });
  registry = await FakeRegistry.start();
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
});

/** A call on the channel, as bytes; and its cancellation. */
function call(channel: grpc.Client, path: string, request = Buffer.alloc(0)) {
  const same = (bytes: Buffer) => bytes;
  const { promise, resolve } = Promise.withResolvers<grpc.ServiceError | null>();
  const options = { deadline: Date.now() + 300_000 };
  const done = (error: grpc.ServiceError | null) => resolve(error);
  const sent = channel.makeUnaryRequest(path, same, same, request, options, done);
  return { ended: promise, cancel: () => sent.cancel() };
}

test(
  "4,000 cancelled calls on one connection do not disturb the others on it",
  async () => {
    registry.put("a/b", "1", makeImage([makeLayer([{ name: "f" }])]));
    const held = Promise.withResolvers<void>();
    const asked = Promise.withResolvers<void>();
    registry.intercept = (_request, response, url) => {
      if (!url.pathname.endsWith("/manifests/1")) return false;
      asked.resolve();
      const manifest = registry.file(url.pathname)!;
      void held.promise.then(() => {
        response.writeHead(200, { "content-type": manifest.mediaType }).end(manifest.bytes);
      });
      return true;
    };
    const image = `${registry.host}/a/b:1`;
    using channel = Object.assign(
      new grpc.Client(`unix:${daemon.socket}`, grpc.credentials.createInsecure()),
      { [Symbol.dispose]: () => channel.close() },
    );
    const spec = Buffer.concat([Buffer.from([0x0a, image.length]), Buffer.from(image)]);
    const request = Buffer.concat([Buffer.from([0x0a, spec.length]), spec]);
    const long = call(channel, "/runtime.v1.ImageService/PullImage", request);
    await asked.promise;
    const codes = new Map<number | undefined, number>();
    for (let round = 0; round < 40; round++) {
      const calls = Array.from({ length: 100 }, () =>
        call(channel, "/runtime.v1.RuntimeService/Status"),
      );
      await new Promise((resolve) => setImmediate(resolve)); // their requests go out
      for (const { cancel } of calls) cancel();
      for (const { ended } of calls) {
        const code = (await ended)?.code ?? 0;
        codes.set(code, (codes.get(code) ?? 0) + 1);
      }
    }
    expect(
      [...codes.keys()].filter((code) => code !== 0 && code !== grpc.status.CANCELLED),
    ).toEqual([]);
    expect(codes.get(grpc.status.CANCELLED)).toBeGreaterThan(2_000);
    held.resolve();
    expect(await long.ended).toBeNull();
    expect((await call(channel, "/runtime.v1.RuntimeService/Version").ended)?.code).toBeUndefined();
  },
  testMs(300_000),
);
