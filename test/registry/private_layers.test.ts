// Tests who may reuse a layer of a private image: pulls to which its registry gives it, too.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { failure } from "../expect.ts";
import { makeImage, makeLayer, type TestImage } from "../image_maker.ts";
import { openFixture, within, type Fixture } from "../image/fixture.ts";
import { FakeRegistry, type Handler } from "./fake_registry.ts";

let fake: FakeRegistry;
let fixture: Fixture;
/** Of a/private. */
let image: TestImage;
beforeEach(async () => {
  fake = await FakeRegistry.start();
  fixture = await openFixture();
  image = makeImage([layer(), layer(), layer()]);
  fake.put("a/private", "1", image);
  fake.intercept = guarded;
});
afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
  await fake[Symbol.asyncDispose]();
});

const layer = () => makeLayer([{ name: "f", data: randomBytes(100) }]);

/** Each repository but those under public/ needs the user that it is named after. */
const guarded: Handler = (request, response, { pathname }) => {
  const [, user] = /^\/v2\/(\w+)\//.exec(pathname)!;
  const asked = `Basic ${Buffer.from(`${user}:secret`).toString("base64")}`;
  if (user === "public" || request.headers.authorization === asked) return false;
  response.writeHead(401, { "www-authenticate": 'Basic realm="all"' }).end();
  return true;
};

type From = { registry?: FakeRegistry; anonymous?: boolean };

async function pull(name: string, { registry = fake, anonymous = false }: From = {}) {
  fake.requests.length = 0;
  const username = name.split("/", 1)[0]!;
  const auth = anonymous ? undefined : { username, password: "secret" };
  return await fixture.store.pull(`${registry.host}/${name}`, { auth, signal: within() });
}

/** Returns the requests for layers that the last pull made and that were answered, such as "HEAD 0". */
function layerRequests({ layers }: TestImage = image): string[] {
  const asked = fake.requests.filter(({ headers, url }) => {
    return headers.authorization !== undefined || url.startsWith("/v2/public/");
  });
  return asked.flatMap(({ method, url }) => {
    const index = layers.findIndex(({ digest }) => url.endsWith(`/blobs/${digest}`));
    return index < 0 ? [] : [`${method} ${index}`];
  });
}

/** An image of other content above the same layers. */
function sameBase(): TestImage {
  return makeImage([...image.layers, layer()]);
}

test("another repository gets them after a HEAD each, at the same time, which is remembered", async () => {
  await pull("a/private:1");
  const other = sameBase();
  fake.put("b/app", "1", other);
  let waiting: (() => void)[] = [];
  fake.intercept = (request, response, url) => {
    if (guarded(request, response, url)) return true;
    if (request.method !== "HEAD" || !url.pathname.includes("/blobs/")) return false;
    waiting.push(() => response.writeHead(200).end());
    if (waiting.length === 3) for (const answer of waiting) answer();
    return true;
  };
  await pull("b/app:1");
  expect(layerRequests().sort()).toEqual(["HEAD 0", "HEAD 1", "HEAD 2"]);
  await fixture.reopen();
  waiting = [];
  fake.put("b/app", "2", sameBase());
  await pull("b/app:2");
  expect(layerRequests()).toEqual([]);
  fake.put("a/private", "2", sameBase());
  await pull("a/private:2");
  expect(layerRequests()).toEqual([]);
});

test("a repository that lacks the blob does not get the layer, whatever its manifest names", async () => {
  await pull("a/private:1");
  fake.put("b/thief", "1", image);
  for (const { digest } of image.layers) {
    fake.putBlob("b/thief", digest, undefined as never); // only its digest is known
  }
  expect((await failure(pull("b/thief:1"))).code).toBe("NOT_FOUND");
  // A blob of its own under the diff ID of the private layer.
  const own = layer();
  const [, ...above] = image.layers;
  fake.put("b/thief", "2", makeImage([{ ...own, diffId: image.layers[0]!.diffId }, ...above]));
  const refused = await failure(pull("b/thief:2"));
  expect(refused.code).toBe("DATA_LOSS");
  expect(refused.message).toContain("of another, private image");
  expect(fixture.store.list()).toHaveLength(1);
});

test("another registry's word is no proof: it has to send the blob", async () => {
  await pull("a/private:1");
  await using another = await FakeRegistry.start();
  another.put("b/thief", "1", image);
  another.intercept = (request, response, { pathname }) => {
    if (!pathname.includes("/blobs/") || pathname.endsWith(image.config.digest)) return false;
    response.writeHead(request.method === "HEAD" ? 200 : 404).end();
    return true;
  };
  expect((await failure(pull("b/thief:1", { registry: another }))).code).toBe("NOT_FOUND");
  another.intercept = () => false;
  await pull("b/thief:1", { registry: another });
});

test("where HEAD is not known, the blob is downloaded; where nobody answers, the pull is refused", async () => {
  await pull("a/private:1");
  fake.put("b/app", "1", sameBase());
  const onHead = (act: Handler) => {
    fake.intercept = (request, response, url) =>
      guarded(request, response, url) ||
      (request.method === "HEAD" &&
        url.pathname.includes("/blobs/") &&
        act(request, response, url));
  };
  onHead((request) => {
    request.socket.destroy();
    return true;
  });
  const refused = await failure(pull("b/app:1"));
  expect(refused.code).toBe("UNAVAILABLE");
  expect(refused.message).toMatch(/which this pull gets only if its registry itself gives it/);
  onHead((_, response) => {
    response.writeHead(405).end();
    return true;
  });
  await pull("b/app:1");
  expect(layerRequests().filter((one) => one.startsWith("GET"))).toHaveLength(3);
});

test("a public layer is reused without a request, also one that was private before", async () => {
  fake.put("public/base", "1", image);
  await pull("public/base:1", { anonymous: true });
  const other = sameBase();
  fake.put("b/app", "1", other);
  await pull("b/app:1");
  expect(layerRequests()).toEqual([]);
  // The upper layer has only come with credentials so far.
  fake.put("public/app", "1", other);
  await pull("public/app:1", { anonymous: true });
  expect(layerRequests(other)).toEqual(["HEAD 3"]);
  fake.put("c/app", "1", makeImage([...other.layers, layer()]));
  await pull("c/app:1");
  expect(layerRequests(other)).toEqual([]);
});
