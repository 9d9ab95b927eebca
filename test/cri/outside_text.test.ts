// Tests malformed text from registries, plugins, images and clients: each call ends with a status, and
// clients can read each list.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import { failure } from "../expect.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";
import { busyboxImage, makeImage, makeLayer } from "../image_maker.ts";
import { configure, daemon, useNetworks, writeList, writePlugin } from "./network_fixture.ts";

useNetworks();
const timeoutMs = 60_000;
let registry: FakeRegistry;

beforeAll(async () => {
  registry = await FakeRegistry.start();
});
afterAll(() => registry[Symbol.asyncDispose]());

const name = () => `${registry.host}/a/b:1`;

const refusedPull = (message: string) =>
  refused(message, () => daemon.client.PullImage({ image: { image: name() } }, { timeoutMs }));

/** What a client reads of a refused pull whose registry says `message`, a JSON string. */
async function refused(message: string, pull: () => Promise<unknown>) {
  registry.intercept = (_request, response, url) => {
    if (!url.pathname.includes("/manifests/")) return false;
    response.writeHead(403, { "content-type": "application/json" });
    response.end(`{"errors":[{"code":"DENIED","message":${message}}]}`);
    return true;
  };
  const error = await failure(pull());
  registry.intercept = () => false;
  return error;
}

describe("a registry's error", () => {
  test("with a lone surrogate refuses the pull", async () => {
    const error = await refusedPull(String.raw`"not for \ud800 you"`);
    expect(error).toMatchObject({ code: "PERMISSION_DENIED" });
    expect(error.message).toContain("not for \ufffd you");
  });

  test("that is cut amid a surrogate pair refuses the pull", async () => {
    for (const begin of ["", "x", "xy", "xyz"]) {
      const error = await refusedPull(JSON.stringify(begin + "😀".repeat(5_000)));
      expect(error.code).toBe("PERMISSION_DENIED");
      expect(error.message).toContain(`${begin}😀`);
      expect(error.message.isWellFormed()).toBe(true);
      expect(Buffer.byteLength(error.message)).toBeLessThan(1_000);
    }
  });

  test("with control characters reaches no terminal as such", async () => {
    const error = await refusedPull(JSON.stringify("a\0b\u001B[2Jc\u009Bd"));
    expect(error.code).toBe("PERMISSION_DENIED");
    expect(error.message).toMatch(/a.b.\[2Jc.d/);
    expect(error.message).not.toMatch(/\p{Cc}/u);
  });
});

test("a registry's error with a lone surrogate ends a Pull, which streams", async () => {
  const pull = () => Array.fromAsync(daemon.client.Pull({ image: name() }, { timeoutMs }));
  const error = await refused(String.raw`"not for \ud800 you"`, pull);
  expect(error.code).toBe("PERMISSION_DENIED");
});

describe("a CNI plugin's error", () => {
  const says = async (script: string) => {
    writeList("says", [writePlugin("says", `[ $CNI_COMMAND != ADD ] || { ${script}; exit 1; }`)]);
    await configure({});
    const run = daemon.client.RunPodSandbox({ config: daemon.podConfig() }, { timeoutMs });
    return failure(run);
  };

  test("with a lone surrogate fails RunPodSandbox", async () => {
    const error = await says(String.raw`echo '{"code":7,"msg":"no \udc00 cable"}'`);
    expect(error.code).toBe("INTERNAL");
    expect(error.message).toContain("no \ufffd cable");
  });

  test("of a megabyte of emoji fails RunPodSandbox with a bounded message", async () => {
    writeFileSync(join(daemon.dir, "said"), JSON.stringify({ code: 7, msg: "😀".repeat(200_000) }));
    const error = await says(`cat ${daemon.dir}/said`);
    expect(error.code).toBe("INTERNAL");
    expect(error.message).toContain("😀");
    expect(Buffer.byteLength(encodeURI(error.message))).toBeLessThan(8_200);
    expect(Math.max(...daemon.log.split("\n").map((line) => line.length))).toBeLessThan(20_000);
  });
});

describe("an image with ill-formed strings", () => {
  const settings = { User: "\ud800", Env: ["A=\udc00"], Labels: { "\ud800": "\udfff" } };
  const check = async () => {
    const { images } = await daemon.client.ListImages({}, { timeoutMs });
    const mine = images.find(({ username }) => username !== "");
    expect(mine).toMatchObject({ username: "\ufffd" });
    const status = await daemon.client.ImageStatus({ image: { image: mine!.id! }, verbose: true });
    expect(status.image).toEqual(mine);
    return mine!.id!;
  };
  const remove = async (id: string) => {
    await daemon.client.RemoveImage({ image: { image: id } }, { timeoutMs });
    const { images } = await daemon.client.ListImages({});
    expect(images.find((image) => image.id === id)).toBeUndefined();
  };

  test("is listed, shown and removed", async () => {
    registry.put("a/b", "1", makeImage([makeLayer([{ name: "f" }])], settings));
    await daemon.client.PullImage({ image: { image: name() } }, { timeoutMs });
    await remove(await check());
  });

  test("is listed and removed when an earlier build stored it unchanged", async () => {
    const image = busyboxImage({ User: "me" });
    await daemon.loadImage(image, "localhost/ill:1");
    const record = join(daemon.dir, "graph/images", `${image.config.digest.slice(7)}.json`);
    const text = readFileSync(record, "utf8").replace(/"User":"me"/, String.raw`"User":"\ud800"`);
    expect(text).toContain(String.raw`\ud800`);
    await daemon.stop();
    writeFileSync(record, text);
    await daemon.start();
    await remove(await check());
  });
});

describe("a request", () => {
  /** A StopPodSandbox whose pod_sandbox_id has these bytes. */
  function stop(bytes: Buffer): Promise<grpc.ServiceError | null> {
    const channel = new grpc.Client(`unix:${daemon.socket}`, grpc.credentials.createInsecure());
    const body = Buffer.concat([Buffer.from([0x0a, bytes.length]), bytes]);
    const deadline = Date.now() + timeoutMs;
    return new Promise<grpc.ServiceError | null>((resolve) =>
      channel.makeUnaryRequest(
        "/runtime.v1.RuntimeService/StopPodSandbox",
        (message: Buffer) => message,
        (answer) => answer,
        body,
        { deadline },
        (error) => resolve(error),
      ),
    ).finally(() => channel.close());
  }

  test("with a string that is not UTF-8 is refused", async () => {
    for (const bytes of [[0xed, 0xa0, 0x80], [0xff], [0xc3]]) {
      const error = await stop(Buffer.from(bytes));
      expect(error?.code).toBe(grpc.status.INVALID_ARGUMENT);
      expect(error?.details).toContain("StopPodSandbox");
    }
  });
});
