// Tests fetches from registries on loopback that misbehave, with delays of a millisecond.
import type { ServerResponse } from "node:http";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { fetchBlob, fetchManifest, readBlob } from "../../../src/registry/distribution.ts";
import { httpRequest, readAll } from "../../../src/registry/http_request.ts";
import { failure, until } from "../../expect.ts";
import { blob, makeImage, makeLayer, mediaTypes } from "../../image_maker.ts";
import { FakeRegistry, sendFile, type Handler } from "../../registry/fake_registry.ts";
import { pullSession, upstream } from "../fakes.ts";

/** No byte is like its neighbours: bytes that go to a wrong place show. */
const data = Buffer.from(Array.from({ length: 1000 }, (_, at) => at % 251));
const image = makeImage([makeLayer([{ name: "f", data }], "none")]);
const layer = image.layers[0]!;
const layerBytes = Buffer.from(layer.bytes);
const { signal } = new AbortController();

let fake: FakeRegistry;
let other: FakeRegistry;
beforeEach(async () => {
  [fake, other] = [await FakeRegistry.start(), await FakeRegistry.start()];
  fake.put("a/b", "1", image);
});
afterEach(async () => {
  for (const one of [fake, other]) await one[Symbol.asyncDispose]();
});

function session(progressTimeoutMs = 30_000) {
  const upstreams = [upstream(`${fake.url}/v2`, { isOrigin: false }), upstream(`${other.url}/v2`)];
  return pullSession(upstreams, { firstBackoffMs: 1, progressTimeoutMs });
}

/** Bytes that read() has been given. */
let received = 0;
async function read(o = session()): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  received = 0;
  for await (const chunk of readBlob(o, layer, { signal })) {
    chunks.push(chunk);
    received += chunk.length;
  }
  return Buffer.concat(chunks);
}
const codeOfFailure = async (call: Promise<unknown>) => (await failure(call)).code;

/** Answers requests for a path that contains `part`. */
function answer(part: string, how: Handler): void {
  fake.intercept = (request, response, url) =>
    url.pathname.includes(part) && how(request, response, url);
}

/** Sends a body bit by bit, and never its end. */
function trickle(response: ServerResponse, body: Uint8Array, { bytes = 1 } = {}): true {
  response.writeHead(200, { "content-length": body.length }).flushHeaders();
  let at = 0;
  const send = () =>
    response.write(body.subarray(at, (at = Math.min(at + bytes, body.length - 1))));
  const timer = setInterval(send, 50);
  response.on("close", () => clearInterval(timer));
  return true;
}

describe("fetchManifest", () => {
  test("takes the next upstream where one sends a byte now and then", async () => {
    answer("/manifests/", (_, response) => trickle(response, Buffer.alloc(1 << 20)));
    const alone = { ...session(200), upstreams: [upstream(`${fake.url}/v2`)] };
    const error = await failure(fetchManifest(alone, { tag: "1" }, signal));
    expect(error).toMatchObject({
      code: "DEADLINE_EXCEEDED",
      message: expect.stringContaining("sent only"),
    });
    other.put("a/b", "1", image);
    const { digest } = await fetchManifest(session(200), { tag: "1" }, signal);
    expect(digest).toBe(image.manifest.digest);
  });

  test.each([
    ["redirects and tokens took all the time", -1, 0],
    ["the document never comes to its end", 300, 1],
  ])("ends where %s", async (_, leftMs, requests) => {
    answer("/", (_, response) => trickle(response, Buffer.alloc(1 << 20), { bytes: 100 }));
    const accessAt = () => ({ headers: {}, tls: { skipVerify: false } });
    const limits = { timeoutMs: 60_000, endsAtMs: performance.now() + leftMs, signal };
    const read = async () => {
      const request = { url: `${fake.url}/v2/`, headers: {}, accessAt, ...limits };
      await readAll(await httpRequest(request), { bytesMax: 1 << 20, what: "it" });
    };
    expect(await failure(read())).toMatchObject({
      code: "DEADLINE_EXCEEDED",
      message: expect.stringContaining("took longer than 10 times pull-progress-timeout"),
    });
    expect(fake.requests).toHaveLength(requests);
  });

  const { bytes, digest } = image.manifest;

  test("by tag asks for all manifest types and names the registry that a mirror stands for", async () => {
    const found = await fetchManifest(session(), { tag: "1" }, signal);
    expect(found).toEqual({ bytes: Buffer.from(bytes), digest });
    expect(fake.paths()).toEqual(["/v2/a/b/manifests/1?ns=registry.test"]);
    expect(fake.requests[0]!.headers.accept).toContain(mediaTypes.index);
    // A web server that compresses would send other bytes than those of the digest.
    expect(fake.requests[0]!.headers["accept-encoding"]).toBe("identity");
  });

  test("verifies the digest requested, or else the one claimed", async () => {
    const wrong = `sha256:${"1".repeat(64)}`;
    fake.putManifest("a/b", wrong, image.manifest);
    expect(await codeOfFailure(fetchManifest(session(), { digest: wrong }, signal))).toBe(
      "NOT_FOUND",
    );
    other.putManifest("a/b", wrong, image.manifest);
    expect(await codeOfFailure(fetchManifest(session(), { digest: wrong }, signal))).toBe(
      "DATA_LOSS",
    );
    for (const [claimed, result] of [
      [wrong, "DATA_LOSS"],
      ["md5:1", digest],
      [digest, digest],
    ] as const) {
      answer("/manifests/", (_, response) => {
        response.writeHead(200, { "docker-content-digest": claimed }).end(bytes);
        return true;
      });
      const alone = { ...session(), upstreams: [upstream(`${fake.url}/v2`)] };
      const fetched = fetchManifest(alone, { tag: "1" }, signal);
      if (result === "DATA_LOSS") expect(await codeOfFailure(fetched)).toBe(result);
      else expect((await fetched).digest).toBe(result);
    }
  });

  test("refuses a web page and goes on with the next upstream", async () => {
    answer("/manifests/", (_, response) => {
      response.writeHead(200, { "content-type": "text/html" }).end("<h1>log in</h1>");
      return true;
    });
    other.put("a/b", "1", image);
    const of = session();
    expect((await fetchManifest(of, { tag: "1" }, signal)).digest).toBe(digest);
    expect(of.servedBy).toBe(other.host);
  });
});

describe("readBlob", () => {
  const cutAt =
    (count: number): Handler =>
    (_, response) => {
      response.writeHead(200, { "content-length": layer.size });
      response.write(layer.bytes.subarray(0, count));
      // An end that overtakes the bytes would take them along.
      void until("the bytes are read", () => received >= count).finally(() => response.destroy());
      return true;
    };
  const once = (how: Handler): Handler => {
    let isFirst = true;
    return (...of) => isFirst && !(isFirst = false) && how(...of);
  };

  test("resumes a broken transfer with a range", async () => {
    answer("/blobs/", once(cutAt(600)));
    expect(await read()).toEqual(layerBytes);
    expect(fake.requests.map(({ headers }) => headers.range)).toEqual([undefined, "bytes=600-"]);
  });

  test("skips the bytes it has if the server ignores ranges", async () => {
    let count = 0;
    answer("/blobs/", (request, response, url) => {
      if (count++ === 0) return cutAt(600)(request, response, url);
      sendFile(response, layer);
      return true;
    });
    expect(await read()).toEqual(layerBytes);
  });

  test.each<[string, (range: string | undefined) => [number, number]]>([
    ["answers 206 without saying which range", () => [206, 600]],
    ["answers 206 with the whole", () => [206, 0]],
    ["answers 400 to a range", (range) => [range === undefined ? 200 : 400, 0]],
    ["answers 416 to a range", (range) => [range === undefined ? 200 : 416, 0]],
    ["answers 501 to a range", (range) => [range === undefined ? 200 : 501, 0]],
  ])("resumes at a server that %s", async (_, how) => {
    let count = 0;
    answer("/blobs/", (request, response, url) => {
      if (count++ === 0) return cutAt(600)(request, response, url);
      const [status, from] = how(request.headers.range);
      const bytes = status < 300 ? layerBytes.subarray(from) : Buffer.alloc(0);
      response.writeHead(status, { "content-length": bytes.length }).end(bytes);
      return true;
    });
    expect(await read()).toEqual(layerBytes);
    expect(count).toBeLessThanOrEqual(3);
  });

  test("goes back to the upstream that broke off when the next one offers another range", async () => {
    answer("/blobs/", once(cutAt(600)));
    other.intercept = (_, response) => {
      response.writeHead(206, { "content-range": "bytes 3-9/10" }).end("x");
      return true;
    };
    expect(await read()).toEqual(layerBytes);
    expect(other.requests).toHaveLength(1);
  });

  test.each<[string, Handler]>([
    [
      "another size",
      (_, response) => (response.writeHead(200, { "content-length": 3 }).end("abc"), true),
    ],
    [
      "a web page",
      (_, response) => {
        response.writeHead(200, { "content-type": "text/html", "transfer-encoding": "chunked" });
        response.end("<h1>log in</h1>");
        return true;
      },
    ],
  ])("goes on at the next upstream when one offers %s", async (_, how) => {
    answer("/blobs/", how);
    other.put("a/b", "1", image);
    expect(await read()).toEqual(layerBytes);
  });

  test.each([true, false])(
    "reads, and resumes, a blob whose size only the registry states, or nobody: %p",
    async (isStated) => {
      let count = 0;
      answer(layer.digest, ({ headers }, response) => {
        const from = Number(/^bytes=(\d+)-/.exec(headers.range ?? "")?.[1] ?? 0);
        const range = { "content-range": `bytes ${from}-${layer.size - 1}/${layer.size}` };
        const length = { "content-length": layer.size - from };
        response.writeHead(from > 0 ? 206 : 200, {
          ...(isStated && length),
          ...(from > 0 && range),
        });
        const to = ++count === 1 ? 700 : layer.size;
        response.write(layer.bytes.subarray(from, to), () =>
          count === 1 ? setTimeout(() => response.destroy(), 20) : response.end(),
        );
        return true;
      });
      const chunks: Uint8Array[] = [];
      const unsized = { digest: layer.digest };
      for await (const chunk of readBlob(session(), unsized, { signal })) chunks.push(chunk);
      expect(Buffer.concat(chunks)).toEqual(layerBytes);
      expect(count).toBe(2);
      const { config } = image;
      const small = await fetchBlob(
        session(),
        { digest: config.digest },
        { bytesMax: 9999, signal },
      );
      expect(small).toEqual(Buffer.from(config.bytes));
    },
  );

  test("refuses more bytes than the manifest says", async () => {
    answer("/blobs/", (_, response) => {
      response.writeHead(200, { "transfer-encoding": "chunked" });
      response.end(Buffer.concat([layer.bytes, Buffer.from("more")]));
      return true;
    });
    const error = await failure(read());
    expect(error.code).toBe("DATA_LOSS");
    expect(error.message).toContain("longer than it should be");
  });

  test.each<[string, (at: number) => Handler]>([
    ["breaks off each time, whatever range is requested", cutAt],
    [
      "falls silent after the headers",
      () => (_, response) => {
        response.writeHead(200, { "content-length": layer.size }).flushHeaders();
        return true;
      },
    ],
    [
      "falls silent in the middle",
      () => (_, response) => {
        response.writeHead(200, { "content-length": layer.size });
        response.write(layer.bytes.subarray(0, 600));
        return true;
      },
    ],
  ])("goes on at the next upstream when one %s", async (_, how) => {
    answer("/blobs/", how(600));
    other.put("a/b", "1", image);
    expect(await read(session(200))).toEqual(layerBytes);
    expect([fake.requests.length, other.requests.length]).toEqual([1, 1]);
  });

  test("goes back to a mirror that breaks off where the registry is busy, or lacks the blob", async () => {
    answer("/blobs/", once(cutAt(600)));
    other.intercept = (_, response) => (response.writeHead(503).end(), true);
    expect(await read()).toEqual(layerBytes);
    answer("/blobs/", once(cutAt(600)));
    other.intercept = (_, response) => (response.writeHead(404).end(), true);
    expect(await read()).toEqual(layerBytes);
    expect(other.requests).toHaveLength(2);
  });

  test("gives up when connections bring nothing", async () => {
    answer("/blobs/", (_, response) => {
      response.writeHead(200, { "transfer-encoding": "chunked" }).end();
      return true;
    });
    const error = await failure(read());
    expect(error.code).toBe("DATA_LOSS");
    expect(error.message).toContain("is cut off");
    expect(fake.requests).toHaveLength(5); // after the first one the other upstream is asked, and has nothing
  });

  test("fails with DEADLINE_EXCEEDED when the server falls silent", async () => {
    answer("/blobs/", (_, response) => {
      response.writeHead(200, { "content-length": layer.size }).flushHeaders();
      return true;
    });
    const error = await failure(read(session(300)));
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(error.message).toContain("sent nothing for 300 ms");
  });

  test("fails with DEADLINE_EXCEEDED when each connection brings a byte now and then", async () => {
    answer("/blobs/", (_, response) => trickle(response, layer.bytes));
    const error = await failure(read(session(200)));
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(error.message).toMatch(/sent only \d+ bytes in \d+ ms, fewer than \d+/);
    // The other upstream has nothing; few bytes are no reason to connect again and again.
    expect(fake.requests.length).toBeLessThanOrEqual(2);
  });

  test("goes on at the next upstream when one brings a byte now and then", async () => {
    answer("/blobs/", (_, response) => trickle(response, layer.bytes));
    other.put("a/b", "1", image);
    expect(await read(session(200))).toEqual(layerBytes);
    expect(other.requests).toHaveLength(1);
  });

  test("takes what a thin line brings", async () => {
    let sent = 0;
    answer("/blobs/", (_, response) => {
      response.writeHead(200, { "content-length": layer.size });
      const timer = setInterval(() => {
        response.write(layer.bytes.subarray(sent, (sent += 64)));
        if (sent < layer.size) return;
        clearInterval(timer);
        response.end();
      }, 30);
      return true;
    });
    expect(await read(session(1000))).toEqual(layerBytes);
    expect(fake.requests).toHaveLength(1);
  });

  test("ends with its signal while it waits for a busy registry", async () => {
    const cancel = new AbortController();
    const late = new DOMException("late", "TimeoutError");
    answer("/blobs/", (_, response) => {
      response.writeHead(429, { "retry-after": "100" }).end();
      setTimeout(() => cancel.abort(late), 500);
      return true;
    });
    const alone = { ...session(), upstreams: [upstream(`${fake.url}/v2`)] };
    const error = await failure(Array.fromAsync(readBlob(alone, layer, { signal: cancel.signal })));
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(error.message).toContain("waiting 100 s to retry");
  });
});

describe("fetchBlob", () => {
  test("verifies the digest", async () => {
    const { config } = image;
    const o = { bytesMax: 10_000, signal };
    expect(await fetchBlob(session(), config, o)).toEqual(Buffer.from(config.bytes));
    const changed = Buffer.from(config.bytes);
    changed[5]! ^= 1;
    fake.putBlob("a/b", config.digest, blob(config.mediaType, changed));
    other.putBlob("a/b", config.digest, config);
    expect(await fetchBlob(session(), config, o)).toEqual(Buffer.from(config.bytes));
  });

  test("refuses one over the limit without a request", async () => {
    const o = { bytesMax: 10, signal };
    expect(await codeOfFailure(fetchBlob(session(), image.config, o))).toBe("RESOURCE_EXHAUSTED");
    expect(fake.requests).toEqual([]);
  });
});
