// Tests the registry mirror for other nodes: whom it serves, which images, and by which answers.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import * as fs from "node:fs";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../../src/base/log.ts";
import { addOrigin, parseOrigins, type ImageOrigin } from "../../../src/image/image_origin.ts";
import type { MirrorParts } from "../../../src/image/mirror_content.ts";
import { serveImages, type MirrorOptions } from "../../../src/image/mirror_server.ts";
import { fetchImage } from "../../../src/image/pull.ts";
import type { ImageRecord } from "../../../src/image/records.ts";
import { readBlob } from "../../../src/registry/distribution.ts";
import { openPullSession } from "../../../src/registry/pull_session.ts";
import { parseReference } from "../../../src/registry/reference.ts";
import { Authority } from "../../certificates.ts";
import { failure, until } from "../../expect.ts";
import { makeImage, makeIndex, makeLayer, type Blob } from "../../image_maker.ts";
import { freePort } from "../../registry.ts";
import { FakeRegistry } from "../../registry/fake_registry.ts";
import { capturedLog, registryOptions } from "../fakes.ts";

const layer = makeLayer([{ name: "f", data: "x".repeat(1000) }]);
const image = makeImage([layer]);
const index = makeIndex([image]);
const repository = "registry.test/team/app";
const base64 = (bytes: Uint8Array) => Buffer.from(bytes).toString("base64");

function origin(o: Partial<ImageOrigin> = {}): ImageOrigin {
  const manifests = Object.fromEntries(
    [index, image.manifest].map(({ digest, bytes }) => [digest, base64(bytes)]),
  );
  const plain = { repository, tags: ["1"], digest: index.digest, isPrivate: false };
  return { ...plain, manifests, ...o };
}

let folder: string;
let using: AsyncDisposableStack;
beforeEach(() => {
  folder = fs.mkdtempSync(join(tmpdir(), "isulad-mirror-"));
  fs.writeFileSync(join(folder, "blob"), layer.bytes);
  using = new AsyncDisposableStack();
});
afterEach(async () => {
  await using.disposeAsync();
  fs.rmSync(folder, { recursive: true });
});

const record = {
  id: image.config.digest,
  repoTags: [`${repository}:1`],
  repoDigests: [`${repository}@${index.digest}`],
} as ImageRecord;

function parts(origins: ImageOrigin[], o: Partial<ImageRecord> = {}): MirrorParts {
  return {
    records: {
      list: () => [{ ...record, ...o }],
      configOf: async () => Buffer.from(image.config.bytes),
      originsOf: async () => origins,
    },
    layers: { blobPath: (digest) => (digest === layer.digest ? join(folder, "blob") : undefined) },
  };
}

const rules = { clients: ["127.0.0.0/8"], repositories: ["*"], allowsPrivate: false };

async function serve(from = parts([origin()]), o: Partial<MirrorOptions> = {}): Promise<string> {
  const address = `127.0.0.1:${await freePort()}`;
  const options = { address, tls: undefined, rules, log: silentLog(), ...o };
  using.use(await serveImages(from, options));
  return address;
}

const slow = { headMs: 10_000, stallMs: 10_000, bytesPerMsMin: 1 };

const ns = "?ns=registry.test";
const blobPath = `team/app/blobs/${layer.digest}${ns}`;

/** Status and body of GET /v2/PATH. */
async function get(host: string, path: string, init: RequestInit = {}) {
  const response = await fetch(`http://${host}/v2/${path}`, init);
  return {
    status: response.status,
    headers: response.headers,
    body: Buffer.from(await response.arrayBuffer()),
  };
}

describe("the mirror", () => {
  test.each<[string, string, Blob]>([
    ["a tag", `manifests/1`, index],
    ["an index", `manifests/${index.digest}`, index],
    ["a manifest", `manifests/${image.manifest.digest}`, image.manifest],
    ["a config", `blobs/${image.config.digest}`, image.config],
    ["a layer", `blobs/${layer.digest}`, layer],
    ["an escaped digest", `blobs/${layer.digest.replace(":", "%3A")}`, layer],
  ])("serves %s by GET and HEAD", async (_, path, { bytes, digest }) => {
    const host = await serve();
    const { status, headers, body } = await get(host, `team/app/${path}${ns}`);
    expect([status, base64(body)]).toEqual([200, base64(bytes)]);
    expect(headers.get("docker-content-digest")).toBe(digest);
    const head = await get(host, `team/app/${path}${ns}`, { method: "HEAD" });
    expect([head.status, head.headers.get("content-length")]).toEqual([200, `${bytes.length}`]);
  });

  test("states the media types of manifests, and its version at the root", async () => {
    const host = await serve();
    const { headers } = await get(host, `team/app/manifests/1${ns}`);
    expect(headers.get("content-type")).toBe(index.mediaType);
    for (const path of ["", "?x"]) expect((await get(host, path)).status).toBe(200);
    expect((await get(host, "")).headers.get("docker-distribution-api-version")).toBe(
      "registry/2.0",
    );
  });

  test("serves a part of a layer", async () => {
    const host = await serve();
    const part = (range: string) => get(host, blobPath, { headers: { range } });
    const all = Buffer.from(layer.bytes);
    const { status, headers, body } = await part("bytes=10-19");
    expect([status, base64(body)]).toEqual([206, base64(all.subarray(10, 20))]);
    expect(headers.get("content-range")).toBe(`bytes 10-19/${layer.size}`);
    expect(base64((await part("bytes=10-")).body)).toBe(base64(all.subarray(10)));
    expect((await part(`bytes=${layer.size}-`)).status).toBe(416);
    const head = await get(host, blobPath, { method: "HEAD", headers: { range: "bytes=10-19" } });
    expect([head.status, head.headers.get("content-length")]).toEqual([200, `${layer.size}`]);
  });

  test("serves a pull by digest and by tag, whose layer arrives whole", async () => {
    const host = await serve();
    const hosts = join(folder, "registry.test");
    fs.mkdirSync(hosts);
    fs.writeFileSync(join(hosts, "hosts.toml"), `[host."http://${host}"]\n`);
    const registry = { ...registryOptions, configPath: folder };
    const signal = AbortSignal.timeout(20_000);
    for (const ref of [`${repository}:1`, `${repository}@${index.digest}`]) {
      const pulled = await fetchImage(parseReference(ref), { registry, auth: undefined, signal });
      expect(pulled.id).toBe(image.config.digest);
    }
    const session = await openPullSession(parseReference(repository), registry, {
      auth: undefined,
      signal,
    });
    const chunks = await Array.fromAsync(readBlob(session, layer, { signal }));
    expect(base64(Buffer.concat(chunks))).toBe(base64(layer.bytes));
  });

  test.each<[string, string, MirrorParts | undefined, object]>([
    ["pulled with credentials", blobPath, parts([origin({ isPrivate: true })]), {}],
    ["of a repository that is not listed", blobPath, undefined, { repositories: ["other/*"] }],
    ["of another registry", `team/app/blobs/${layer.digest}?ns=other.test`, undefined, {}],
    ["of docker.io, without ns", `team/app/blobs/${layer.digest}`, undefined, {}],
    ["of another repository", `team/other/blobs/${layer.digest}${ns}`, undefined, {}],
    ["whose tag moved", `team/app/manifests/1${ns}`, parts([origin()], { repoTags: [] }), {}],
    ["with an unknown tag", `team/app/manifests/2${ns}`, undefined, {}],
    ["removed meanwhile", blobPath, parts([origin()], { repoDigests: [] }), {}],
    [
      "with a damaged manifest",
      blobPath,
      parts([origin({ manifests: { [index.digest]: "eA==" } })]),
      {},
    ],
  ])("has no content of an image %s", async (_, path, from, more) => {
    const host = await serve(from ?? parts([origin()]), { rules: { ...rules, ...more } });
    const { status, body } = await get(host, path);
    expect(status).toBe(404);
    expect(Buffer.from(body).toString()).toContain("this node serves no ");
  });

  test("serves images pulled with credentials where it is allowed", async () => {
    const more = { rules: { ...rules, allowsPrivate: true } };
    const host = await serve(parts([origin({ isPrivate: true })]), more);
    expect((await get(host, blobPath)).status).toBe(200);
  });

  test("sends nothing of a damaged layer, and notices damage that comes later", async () => {
    const { log, lines } = capturedLog("warn");
    const host = await serve(undefined, { log });
    expect((await get(host, blobPath)).status).toBe(200);
    const damaged = Buffer.from(layer.bytes);
    damaged[5]! ^= 1;
    fs.writeFileSync(join(folder, "blob"), damaged);
    const { status, body } = await get(host, blobPath, { headers: { range: "bytes=10-" } });
    expect(status).toBe(404);
    expect(lines.join("")).toContain("a kept layer is not served");
    expect(Buffer.from(body).toString()).toContain("is damaged: remove the image");
  });

  test("disconnects clients of other networks", async () => {
    const host = await serve(undefined, { rules: { ...rules, clients: ["10.0.0.0/8"] } });
    expect(await get(host, "").catch(() => "disconnected")).toBe("disconnected");
  });

  test("asks the 17th request of a client to come later, and cuts off those that take nothing", async () => {
    const from = bigLayer(64 << 20); // more than the sockets' buffers hold
    // All at once, and with time to spare: on a busy machine the first would be cut off before the last has asked.
    const host = await serve(from.parts, { deadlines: { ...slow, stallMs: 2_000 } });
    const takeNothing = async () => {
      const socket = await openTo(host);
      const request = `GET /v2/${from.path} HTTP/1.1\r\n\r\n`;
      await new Promise((resolve) => socket.once("data", resolve).write(request));
      socket.pause();
    };
    await Promise.all(Array.from({ length: 16 }, takeNothing));
    const { status, headers } = await get(host, "");
    expect([status, headers.get("retry-after")]).toEqual([429, "2"]);
    await until("there is room again", async () => (await get(host, "")).status === 200);
  }, 120_000);

  test("cuts off a client that takes each part in time, but the whole too slowly", async () => {
    const from = bigLayer(64 << 20);
    const deadlines = { headMs: 10_000, stallMs: 1000, bytesPerMsMin: 64 << 10 }; // 2 s for all
    const host = await serve(from.parts, { deadlines });
    const socket = await openTo(host);
    let bytes = 0;
    socket.on("data", (chunk: Buffer) => {
      bytes += chunk.length;
      socket.pause();
      setTimeout(() => socket.resume(), 50); // 64 KiB at most
    });
    const closed = new Promise((resolve) => socket.once("close", resolve));
    socket.write(`GET /v2/${from.path} HTTP/1.1\r\n\r\n`);
    await closed;
    expect(bytes).toBeWithin(1, 64 << 20);
  }, 120_000);

  test("counts what it still does for clients that have disconnected", async () => {
    const from = parts([origin()]);
    const held = Promise.withResolvers<void>();
    let asked = 0;
    from.records.originsOf = async () => {
      asked++;
      await held.promise;
      return [origin()];
    };
    const host = await serve(from);
    for (let count = 1; count <= 16; count++) {
      const socket = await openTo(host);
      socket.write(`GET /v2/${blobPath} HTTP/1.1\r\n\r\n`);
      await until("it is at work", () => asked === count);
      socket.destroy();
    }
    expect((await get(host, "")).status).toBe(429);
    held.resolve();
    await until("there is room again", async () => (await get(host, "")).status === 200);
  }, 120_000);

  test("disconnects a client that sends no request", async () => {
    const host = await serve(undefined, { deadlines: { ...slow, headMs: 100 } });
    const socket = await openTo(host);
    await new Promise((resolve) => socket.once("close", resolve).resume());
  });

  test("serves a client whole that closes its own direction after the request", async () => {
    const from = bigLayer(8 << 20);
    const host = await serve(from.parts);
    const socket = await openTo(host);
    socket.end(`GET /v2/${from.path} HTTP/1.1\r\n\r\n`);
    const answer = Buffer.concat(await Array.fromAsync(socket as AsyncIterable<Buffer>));
    const body = answer.subarray(answer.indexOf("\r\n\r\n") + 4);
    expect(body.equals(from.bytes)).toBeTrue();
    const silent = await openTo(host);
    const closed = new Promise((resolve) => silent.once("close", resolve).resume());
    silent.end();
    await closed;
  });

  test("serves with TLS, a large layer whole", async () => {
    const authority = new Authority(folder);
    authority.sign("mirror", "IP:127.0.0.1");
    const tls = { cert: join(folder, "mirror.pem"), key: join(folder, "mirror.key") };
    const from = bigLayer(8 << 20);
    const host = await serve(from.parts, { tls });
    const init = { tls: { ca: authority.pem } } as RequestInit;
    const response = await fetch(`https://${host}/v2/${from.path}`, init);
    expect(Buffer.from(await response.arrayBuffer()).equals(from.bytes)).toBeTrue();
    const other = await serve(from.parts, { tls, rules: { ...rules, clients: [] } });
    const outside = fetch(`https://${other}/v2/`, init).then(() => "served");
    expect(await outside.catch(() => "disconnected")).toBe("disconnected");
  });

  test("gives later clients a renewed certificate", async () => {
    const authority = new Authority(folder);
    authority.sign("own", "IP:127.0.0.1");
    authority.sign("other", "IP:127.0.0.9");
    const filesOf = (name: string) => ({
      cert: join(folder, `${name}.pem`),
      key: join(folder, `${name}.key`),
    });
    const address = `127.0.0.1:${await freePort()}`;
    const options = { address, tls: filesOf("own"), rules, log: silentLog() };
    const { tls } = using.use(await serveImages(parts([]), options));
    const ask = () =>
      fetch(`https://${address}/v2/`, { tls: { ca: authority.pem } } as RequestInit).then(
        ({ status }) => status,
        () => "of another name",
      );
    expect(await ask()).toBe(200);
    tls!.renewal(filesOf("other"))!();
    expect(await ask()).toBe("of another name");
  });

  test("names the key when its address is in use or its certificate unusable", async () => {
    const address = await serve();
    for (const [more, reason] of [
      [{}, /EADDRINUSE.*change serve-blobs/],
      [{ tls: { cert: "/none", key: "/none" } }, /cannot serve blobs with TLS.*ENOENT/],
    ] as const) {
      const options = { address, tls: undefined, rules, log: silentLog(), ...more };
      const { code, message } = await failure(serveImages(parts([]), options));
      expect(code).toBe("FAILED_PRECONDITION");
      expect(message).toMatch(reason);
    }
  });
});

/** An image of one layer of this size. */
function bigLayer(size: number) {
  const bytes = Buffer.alloc(size, "mirror");
  const blob = makeLayer(bytes, "none");
  fs.writeFileSync(join(folder, "blob"), bytes);
  const { manifest } = makeImage([blob]);
  const manifests = { [manifest.digest]: base64(manifest.bytes) };
  const from = parts([origin({ manifests })]);
  from.layers.blobPath = () => join(folder, "blob");
  return { bytes, parts: from, path: `team/app/blobs/${blob.digest}${ns}` };
}

async function openTo(host: string): Promise<Socket> {
  const [address = "", port] = host.split(":");
  const socket = connect(Number(port), address);
  using.defer(() => void socket.destroy());
  await new Promise((resolve) => socket.once("connect", resolve));
  return socket;
}

describe("the origins of an image", () => {
  test("move tags to the latest pull, and keep others", () => {
    const other = origin({ repository: "other.test/app", tags: ["1"] });
    const first = origin({ digest: image.manifest.digest, tags: ["1", "2"] });
    const [added, ...rest] = addOrigin([other, first], origin());
    expect(added).toEqual(origin());
    expect(rest.map(({ tags }) => tags)).toEqual([["1"], ["2"]]);
  });

  test("are private until a pull needs no credentials, and never again", () => {
    const hidden = origin({ isPrivate: true });
    expect(addOrigin([], hidden)[0]?.isPrivate).toBeTrue();
    expect(addOrigin([hidden], origin())[0]?.isPrivate).toBeFalse();
    expect(addOrigin([origin()], hidden)[0]?.isPrivate).toBeFalse();
  });

  test("are bounded, and read back", () => {
    let origins: ImageOrigin[] = [];
    for (let count = 0; count < 20; count++) {
      origins = addOrigin(origins, origin({ digest: `sha256:${count}`, tags: [`${count}`] }));
    }
    expect(origins.map(({ tags }) => tags[0])).toEqual(
      Array.from({ length: 16 }, (_, count) => `${19 - count}`),
    );
    expect(parseOrigins(JSON.stringify({ version: 1, origins }))).toEqual(origins);
    expect(() => parseOrigins("{}")).toThrow();
  });

  test("have few large manifests, at least the latest pull's", () => {
    let origins: ImageOrigin[] = [];
    const manifests = (bytes: number) => ({ [image.manifest.digest]: "A".repeat(bytes) });
    for (let count = 0; count < 5; count++) {
      const one = { digest: `sha256:${count}`, manifests: manifests(3 << 20) };
      origins = addOrigin(origins, origin(one));
    }
    expect(origins.map(({ digest }) => digest)).toEqual(["sha256:4", "sha256:3"]);
    const huge = origin({ digest: "sha256:5", manifests: manifests(9 << 20) });
    expect(addOrigin(origins, huge)).toEqual([huge]);
  });
});

test("a pull is private where a registry or mirror would get credentials, a header or a certificate", async () => {
  await using registry = await FakeRegistry.start();
  registry.put("team/app", "1", image);
  const signal = AbortSignal.timeout(20_000);
  const pulled = async (auth?: { username: string; password: string }) => {
    const options = { registry: { ...registryOptions, configPath: folder }, auth, signal };
    const { origin: found } = await fetchImage(
      parseReference(`${registry.host}/team/app:1`),
      options,
    );
    return found!;
  };
  const { manifests, ...rest } = await pulled();
  expect(Object.keys(manifests)).toEqual([image.manifest.digest]);
  expect(rest).toEqual({
    repository: `${registry.host}/team/app`,
    tags: ["1"],
    digest: image.manifest.digest,
    isPrivate: false,
  });
  expect((await pulled({ username: "me", password: "x" })).isPrivate).toBeTrue();
  const hosts = join(folder, registry.host);
  fs.mkdirSync(hosts);
  const header = `[host."${registry.url}".header]\nAuthorization = "Basic eA=="\n`;
  fs.writeFileSync(join(hosts, "hosts.toml"), header);
  expect((await pulled()).isPrivate).toBeTrue();
});
