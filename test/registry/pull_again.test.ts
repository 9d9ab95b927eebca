// Tests pulls of an image that the node has: they ask the registry for the digest only.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import type { RegistryAuth } from "../../src/registry/credentials.ts";
import { failure } from "../expect.ts";
import { makeImage, makeLayer, type TestImage } from "../image_maker.ts";
import { openFixture, within, type Fixture } from "../image/fixture.ts";
import { FakeRegistry } from "./fake_registry.ts";

let fake: FakeRegistry;
let fixture: Fixture;
let image: TestImage;
beforeEach(async () => {
  fake = await FakeRegistry.start();
  fixture = await openFixture();
  image = randomImage();
  fake.put("a/b", "1", image);
  fake.intercept = claimDigests;
});
afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
  await fake[Symbol.asyncDispose]();
});

function randomImage(): TestImage {
  return makeImage([makeLayer([{ name: "f", data: randomBytes(100) }])]);
}

/** As registries do. */
const claimDigests: FakeRegistry["intercept"] = (_, response, { pathname }) => {
  const manifest = pathname.includes("/manifests/") ? fake.file(pathname) : undefined;
  if (manifest !== undefined) response.setHeader("docker-content-digest", manifest.digest);
  return false;
};

/** Returns the requests of one pull, such as "HEAD manifests/1". */
async function requestsOf(name = ":1", auth?: RegistryAuth): Promise<string[]> {
  fake.requests.length = 0;
  await pull(name, auth);
  return fake.requests.map(({ method, url }) => `${method} ${url.replace("/v2/a/b/", "")}`);
}
const pull = (name = ":1", auth?: RegistryAuth) =>
  fixture.store.pull(`${fake.host}/a/b${name}`, { auth, signal: within() });

const whole = () => [
  "GET manifests/1",
  `GET blobs/${image.config.digest}`,
  `GET blobs/${image.layers[0]!.digest}`,
];
/** With the layers that the node has. */
const withoutLayers = () => ["HEAD manifests/1", ...whole().slice(0, 2)];

describe("a pull of an image that the node has", () => {
  test("is one HEAD request, which Docker Hub does not count, and the latest pull", async () => {
    expect(await requestsOf()).toEqual(whole());
    const [before] = fixture.store.list();
    expect(await requestsOf()).toEqual(["HEAD manifests/1"]);
    const [after] = fixture.store.list();
    expect(after).toEqual({ ...before!, pulledAtNs: after!.pulledAtNs });
    expect(after!.pulledAtNs).toBeGreaterThan(before!.pulledAtNs);
    const digest = `@${image.manifest.digest}`;
    expect(await requestsOf(digest)).toEqual([`HEAD manifests/${image.manifest.digest}`]);
    await fixture.reopen();
    expect(await requestsOf()).toEqual(["HEAD manifests/1"]);
  });

  test("is whole where its tag moved, its config is lost, or it was removed", async () => {
    await pull();
    const moved = randomImage();
    fake.put("a/b", "1", moved);
    const requests = await requestsOf();
    expect(requests.slice(0, 2)).toEqual(["HEAD manifests/1", "GET manifests/1"]);
    expect(fixture.store.find(`${fake.host}/a/b:1`)?.id).toBe(moved.config.digest);
    fake.put("a/b", "1", image);
    await pull();
    fs.rmSync(join(fixture.graph, "images", `${image.config.digest.slice(7)}.config`));
    expect(await requestsOf()).toEqual(withoutLayers());
    expect(await requestsOf()).toEqual(["HEAD manifests/1"]);
    await fixture.store.remove(image.config.digest);
    expect(await requestsOf()).toEqual(whole());
  });

  test("is whole where it is removed while the registry answers", async () => {
    await pull();
    fake.intercept = (request, response, url) => {
      if (request.method !== "HEAD") return false;
      const { digest } = fake.file(url.pathname)!;
      const answer = () => response.writeHead(200, { "docker-content-digest": digest }).end();
      void fixture.store.remove(image.config.digest).then(answer);
      return true;
    };
    expect(await requestsOf()).toEqual(["HEAD manifests/1", ...whole()]);
  });

  test("under a tag that was not pulled before begins with GET", async () => {
    await pull();
    fake.putManifest("a/b", "2", image.manifest);
    expect((await requestsOf(":2"))[0]).toBe("GET manifests/2");
    expect(await requestsOf(":2")).toEqual(["HEAD manifests/2"]);
    expect(fixture.store.list()[0]!.repoTags).toEqual([`${fake.host}/a/b:1`, `${fake.host}/a/b:2`]);
  });

  test.each<[string, FakeRegistry["intercept"]]>([
    ["answers HEAD without a digest", () => false],
    [
      "refuses HEAD",
      (request, response) => {
        if (request.method === "HEAD") response.writeHead(405).end();
        return request.method === "HEAD";
      },
    ],
    [
      "fails at HEAD",
      (request, response) => {
        if (request.method === "HEAD") response.writeHead(500).end();
        return request.method === "HEAD";
      },
    ],
  ])("is a GET at a registry that %s", async (_, intercept) => {
    await pull();
    fake.intercept = intercept;
    expect(await requestsOf()).toEqual(withoutLayers());
  });

  test("needs the registry's consent to its credentials", async () => {
    const user = { username: "user", password: "pa:ss" };
    const basic = `Basic ${Buffer.from("user:pa:ss").toString("base64")}`;
    fake.intercept = (request, response, url) => {
      if (request.headers.authorization === basic) return claimDigests(request, response, url);
      response.writeHead(401, { "www-authenticate": "Basic" }).end();
      return true;
    };
    await pull(":1", user);
    expect(await requestsOf(":1", user)).toEqual(["HEAD manifests/1", "HEAD manifests/1"]);
    const wrong = await failure(pull(":1", { ...user, password: "wrong" }));
    expect(wrong.code).toBe("UNAUTHENTICATED");
  });
});

describe("a node that serves its blobs", () => {
  const origins = () => join(fixture.graph, "images", `${image.config.digest.slice(7)}.origins`);
  const kept = () => JSON.parse(fs.readFileSync(origins(), "utf8")).origins[0];

  test("keeps an image's origin up to date without its manifest", async () => {
    await fixture[Symbol.asyncDispose]();
    fixture = await openFixture({}, { keepsBlobs: true });
    await pull(":1", { username: "user" });
    const before = kept();
    expect(before.isPrivate).toBe(true);
    expect(await requestsOf()).toEqual(["HEAD manifests/1"]);
    expect(kept()).toEqual({ ...before, isPrivate: false });
    fs.rmSync(origins());
    expect(await requestsOf()).toEqual(withoutLayers());
    expect(kept()).toEqual({ ...before, isPrivate: false });
  });
});
