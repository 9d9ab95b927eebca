// Tests pulls from a registry that misbehaves: authorization, mirrors, broken transfers.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import type { RegistryAuth } from "../../src/registry/credentials.ts";
import { hostPlatforms } from "../../src/image/platform.ts";
import { parseReference } from "../../src/registry/reference.ts";
import { fetchManifest } from "../../src/registry/distribution.ts";
import { openPullSession } from "../../src/registry/pull_session.ts";
import { failure } from "../expect.ts";
import {
  blob,
  makeImage,
  makeIndex,
  makeLayer,
  mediaTypes,
  type TestImage,
} from "../image_maker.ts";
import { FakeRegistry, sendFile, withLayers } from "./fake_registry.ts";
import { openFixture, within, type Fixture } from "../image/fixture.ts";
import { registryOptions } from "../unit/fakes.ts";

let fake: FakeRegistry;
let mirror: FakeRegistry;
let fixture: Fixture;
let configPath: string;
let image: TestImage;
beforeEach(async () => {
  fake = await FakeRegistry.start();
  mirror = await FakeRegistry.start();
  configPath = fs.mkdtempSync("/tmp/isulad-certs-");
  fixture = await openFixture({ configPath });
  image = makeImage([makeLayer([{ name: "f", data: randomBytes(300_000) }])]);
  fake.put("a/b", "1", image);
});
afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
  await fake[Symbol.asyncDispose]();
  await mirror[Symbol.asyncDispose]();
  fs.rmSync(configPath, { recursive: true });
});

const pull = async (auth?: RegistryAuth, tag = ":1") =>
  await fixture.store.pull(`${fake.host}/a/b${tag}`, { auth, signal: within() });

function hostsToml(text: string): void {
  const folder = join(configPath, fake.host);
  fs.mkdirSync(folder);
  fs.writeFileSync(join(folder, "hosts.toml"), text);
}

const blobPath = () => `/v2/a/b/blobs/${image.layers[0]!.digest}`;

describe("authorization", () => {
  /** Requires a token of its own token service, which requires a user and password. */
  function wantToken(o: { anonymous?: boolean } = {}): void {
    fake.intercept = (request, response, url) => {
      if (url.pathname === "/token") {
        const isKnown = request.headers.authorization === basicHeader;
        response.writeHead(isKnown || o.anonymous ? 200 : 401);
        response.end('{"token":"t0k"}');
        return true;
      }
      if (request.headers.authorization === "Bearer t0k") return false;
      const realm = `Bearer realm="${fake.url}/token",service="reg",scope="repository:a/b:pull"`;
      response.writeHead(401, { "www-authenticate": realm }).end();
      return true;
    };
  }
  const basicHeader = `Basic ${Buffer.from("user:pa:ss").toString("base64")}`;
  const user = { username: "user", password: "pa:ss" };

  test("by an anonymous token, requested once", async () => {
    wantToken({ anonymous: true });
    expect((await pull()).id).toBe(image.config.digest);
    const tokens = fake.requests.filter(({ url }) => url.startsWith("/token"));
    expect(tokens).toHaveLength(1);
    expect(tokens[0]!.headers.authorization).toBeUndefined();
    expect(tokens[0]!.url).toContain("service=reg");
    expect(decodeURIComponent(tokens[0]!.url)).toContain("scope=repository:a/b:pull");
  });

  test.each(["", "repository:other:pull"])(
    "by a token for this repository where the challenge has the scope %j",
    async (scope) => {
      fake.intercept = (request, response, url) => {
        if (url.pathname === "/token") {
          const isOurs = url.searchParams.getAll("scope").includes("repository:a/b:pull");
          response.end(JSON.stringify({ token: "", access_token: isOurs ? "t0k" : "other" }));
          return true;
        }
        if (request.headers.authorization === "Bearer t0k") return false;
        const challenge = `Bearer realm="${fake.url}/token",scope="${scope}"`;
        response.writeHead(401, { "www-authenticate": challenge }).end();
        return true;
      };
      expect((await pull()).id).toBe(image.config.digest);
    },
  );

  test.each<[string, RegistryAuth]>([
    ["user and password", user],
    ["auth in base64", { auth: Buffer.from("user:pa:ss").toString("base64") }],
    ["this registry's address", { ...user, serverAddress: "HOST" }],
  ])("by token with %s", async (_, auth) => {
    wantToken();
    const serverAddress = auth.serverAddress ? `https://${fake.host}/v1/` : undefined;
    expect((await pull({ ...auth, serverAddress })).id).toBe(image.config.digest);
  });

  test("by a registry token, and by an identity token as OAuth2 has it", async () => {
    wantToken();
    await pull({ registryToken: "t0k" });
    expect(fake.paths().some((path) => path.startsWith("/token"))).toBe(false);
    const inner = fake.intercept;
    let form = "";
    fake.intercept = (request, response, url) => {
      if (url.pathname !== "/token") return inner(request, response, url);
      request.on("data", (chunk: Buffer) => (form += chunk.toString()));
      request.on("end", () => response.end('{"access_token":"t0k"}'));
      return true;
    };
    await fixture.store.remove(image.config.digest);
    await pull({ identityToken: "id3nt" });
    expect(form).toContain("grant_type=refresh_token");
    expect(form).toContain("refresh_token=id3nt");
  });

  test("by Basic, and a wrong password is UNAUTHENTICATED", async () => {
    fake.intercept = (request, response) => {
      if (request.headers.authorization === basicHeader) return false;
      response.writeHead(401, { "www-authenticate": 'Basic realm="x"' }).end();
      return true;
    };
    expect((await failure(pull())).message).toContain("requires a user name and a password");
    const error = await failure(pull({ username: "user", password: "wrong" }));
    expect(error.code).toBe("UNAUTHENTICATED");
    expect(error.message).not.toContain("wrong");
    expect((await pull(user)).id).toBe(image.config.digest);
  });

  test("sends a password only to the registry it is for", async () => {
    wantToken();
    const auth = { ...user, serverAddress: "other.example" };
    expect((await failure(pull(auth))).code).toBe("UNAUTHENTICATED");
    expect(fake.requests.every(({ headers }) => headers.authorization === undefined)).toBe(true);
  });

  test("is not sent along with a redirect to another host", async () => {
    mirror.putBlob("x", image.layers[0]!.digest, image.layers[0]!);
    fake.intercept = (request, response, url) => {
      if (request.headers.authorization === undefined) {
        response.writeHead(401, { "www-authenticate": "Basic" }).end();
      } else if (url.pathname === blobPath()) {
        const location = `${mirror.url}/v2/x/blobs/${image.layers[0]!.digest}`;
        response.writeHead(307, { location }).end();
      } else return false;
      return true;
    };
    await pull(user);
    expect(mirror.requests).toHaveLength(1);
    expect(mirror.requests[0]!.headers.authorization).toBeUndefined();
  });
});

describe("mirrors of hosts.toml", () => {
  const toml = (more = "") => `server = "${fake.url}"\n[host."${mirror.url}"]\n${more}`;

  test("come first, get their own headers and the registry's name, but no password", async () => {
    mirror.put("a/b", "1", image);
    hostsToml(toml('[host.HOST.header]\n"X-Mine" = ["1", "2"]').replace("HOST", `"${mirror.url}"`));
    await pull({ username: "user", password: "pass" });
    expect(fake.requests).toEqual([]);
    expect(mirror.paths()[0]).toBe(`/v2/a/b/manifests/1?ns=${encodeURIComponent(fake.host)}`);
    expect(mirror.requests[0]!.headers["x-mine"]).toBe("1, 2");
    expect(mirror.requests.every(({ headers }) => !headers.authorization)).toBe(true);
  });

  test.each<[string, number]>([
    ["does not have the image", 404],
    ["requires a password", 401],
  ])("give way to the registry when one %s", async (_, status) => {
    mirror.intercept = (_request, response) => {
      response.writeHead(status, { "www-authenticate": "Basic" }).end();
      return true;
    };
    hostsToml(toml());
    expect((await pull()).id).toBe(image.config.digest);
  });

  test("may have no layers, damaged or truncated ones", async () => {
    hostsToml(toml());
    mirror.put("a/b", "1", image);
    const damaged = Buffer.from(image.layers[0]!.bytes);
    damaged[100]! ^= 1;
    for (const part of [
      blob(mediaTypes.layer, damaged),
      { ...image.layers[0]!, bytes: image.layers[0]!.bytes.subarray(0, 5000), size: 5000 },
      undefined,
    ]) {
      if (part !== undefined) mirror.putBlob("a/b", image.layers[0]!.digest, part);
      else
        mirror.intercept = (_r, response, { pathname }) => {
          if (pathname !== blobPath()) return false;
          response.writeHead(404).end();
          return true;
        };
      expect((await pull()).id).toBe(image.config.digest);
      await fixture.store.remove(image.config.digest);
      expect(fixture.remains()).toEqual([]);
    }
  }, 120_000);

  test("without the resolve capability serve digests only", async () => {
    hostsToml(toml('capabilities = ["pull"]'));
    mirror.put("a/b", "1", image);
    await pull();
    expect(mirror.paths().some((path) => path.includes("/manifests/1"))).toBe(false);
    expect(mirror.paths().some((path) => path.includes("/blobs/"))).toBe(true);
    await pull(undefined, `@${image.manifest.digest}`);
    expect(mirror.paths().some((path) => path.includes("/manifests/sha256"))).toBe(true);
  });

  test("in an invalid file fail with FAILED_PRECONDITION and its name", async () => {
    hostsToml("server = 7");
    const error = await failure(pull());
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("hosts.toml");
  });
});

describe("a manifest", () => {
  test("of several platforms gives this machine's image", async () => {
    const other = makeImage(image.layers, {}, { os: "linux", architecture: "riscv64" });
    const windows = makeImage(image.layers, {}, { ...image.platform, os: "windows" });
    const index = makeIndex([other, windows, image]);
    for (const one of [other, windows]) fake.put("a/b", one.manifest.digest, one);
    fake.putManifest("a/b", "multi", index);
    const pulled = await pull(undefined, ":multi");
    expect(pulled.id).toBe(image.config.digest);
    expect(pulled.repoDigests).toEqual([`${fake.host}/a/b@${index.digest}`]);
    const { architecture } = hostPlatforms()[1]!;
    const narrow = makeImage(image.layers, {}, { os: "linux", architecture });
    fake.put("a/b", narrow.manifest.digest, narrow);
    fake.putManifest("a/b", "narrow", makeIndex([other, narrow]));
    expect((await pull(undefined, ":narrow")).id).toBe(narrow.config.digest);
    fake.putManifest("a/b", "other", makeIndex([other]));
    const error = await failure(pull(undefined, ":other"));
    expect(error.code).toBe("NOT_FOUND");
    expect(error.message).toContain("linux/riscv64");
  });

  test("with another digest than requested is DATA_LOSS", async () => {
    const digest = `sha256:${"1".repeat(64)}`;
    fake.putManifest("a/b", digest, image.manifest);
    expect((await failure(pull(undefined, `@${digest}`))).code).toBe("DATA_LOSS");
  });

  test("that is invalid, too long or has bad layers is refused", async () => {
    const json = (value: unknown) => blob(mediaTypes.manifest, JSON.stringify(value));
    const many = Array.from({ length: 128 }, () => withLayers(image, []));
    for (const [tag, manifest] of Object.entries({
      text: blob(mediaTypes.manifest, "hello"),
      old: json({ schemaVersion: 1, fsLayers: [] }),
      both: json({ ...withLayers(image, []), manifests: [] }),
      fewer: json(withLayers(image, [])),
      traversal: json(withLayers(image, [{ digest: "sha256:../../x", size: 1 }])),
      negative: json(withLayers(image, [{ digest: image.layers[0]!.digest, size: -1 }])),
      layers: json(withLayers(image, many)),
      long: blob(mediaTypes.manifest, " ".repeat(5 << 20)),
    })) {
      fake.putManifest("a/b", tag, manifest);
      const error = await failure(pull(undefined, `:${tag}`));
      expect(["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"]).toContain(error.code);
    }
    expect(fixture.remains()).toEqual([]);
  });
});

describe("a transfer", () => {
  /** Lets the first `times` requests for the layer end in the way of `how`. */
  function breakLayer(times: number, how: (o: Parameters<FakeRegistry["intercept"]>) => void) {
    let count = 0;
    fake.intercept = (request, response, url) => {
      if (url.pathname !== blobPath() || count++ >= times) return false;
      how([request, response, url]);
      return true;
    };
  }
  const rangesOf = () =>
    fake.requests.filter(({ url }) => url === blobPath()).map(({ headers }) => headers.range);

  test("that breaks is resumed", async () => {
    const { bytes, size } = image.layers[0]!;
    breakLayer(1, ([, response]) => {
      response.writeHead(200, { "content-length": size });
      response.write(bytes.subarray(0, 100_000), () => setTimeout(() => response.destroy(), 500));
    });
    await pull();
    const [first, second] = rangesOf();
    expect(first).toBeUndefined();
    expect(second).toMatch(/^bytes=[1-9]\d*-$/);
  });

  test("that breaks at a registry without ranges skips what it has", async () => {
    const layer = image.layers[0]!;
    let count = 0;
    breakLayer(2, ([, response]) => {
      if (count++ > 0) return sendFile(response, layer);
      response.writeHead(200, { "content-length": layer.size });
      response.write(layer.bytes.subarray(0, 100_000), () =>
        setTimeout(() => response.destroy(), 50),
      );
    });
    expect((await pull()).id).toBe(image.config.digest);
  });

  test("that falls silent is resumed, and fails if it stays silent", async () => {
    await fixture[Symbol.asyncDispose]();
    fixture = await openFixture({ configPath, progressTimeoutMs: 1500 });
    const { bytes, size } = image.layers[0]!;
    const stall = ([, response]: Parameters<FakeRegistry["intercept"]>) => {
      response.writeHead(200, { "content-length": size });
      response.write(bytes.subarray(0, 50_000));
    };
    breakLayer(1, stall);
    await pull();
    await fixture.store.remove(image.config.digest);
    breakLayer(100, ([, response]) =>
      response.writeHead(200, { "content-length": size }).flushHeaders(),
    );
    const error = await failure(pull());
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(error.message).toContain("sent nothing for 1500 ms");
    expect(fixture.remains()).toEqual([]);
  });

  test("is retried after 503 and 429", async () => {
    let count = 0;
    fake.intercept = (_request, response) => {
      if (count++ >= 2) return false;
      response.writeHead(count === 1 ? 503 : 429, { "retry-after": "1" }).end();
      return true;
    };
    expect((await pull()).id).toBe(image.config.digest);
  }, 120_000);

  test("waits for a busy registry's Retry-After, and names the reason when cancelled", async () => {
    fake.intercept = (_request, response) => {
      response.writeHead(429, { "retry-after": "100" }).end();
      return true;
    };
    hostsToml(`server = "${fake.url}"`);
    const ref = parseReference(`${fake.host}/a/b:1`);
    const o = { auth: undefined, signal: within() };
    const session = await openPullSession(ref, { ...registryOptions, configPath }, o);
    const error = await failure(fetchManifest(session, ref, AbortSignal.timeout(3_000)));
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(error.message).toContain("waiting 100 s");
    expect(error.message).toContain(`${fake.host} answered 429`);
  });

  test("of more or other bytes than declared is DATA_LOSS and leaves nothing", async () => {
    const layer = image.layers[0]!;
    const longer = Buffer.concat([layer.bytes, Buffer.from("more")]);
    const other = Buffer.from(layer.bytes);
    other[200]! ^= 4;
    // It unpacks to the same files: only the digest tells it from the layer.
    const sameFiles = Buffer.from(layer.bytes);
    sameFiles[4]! ^= 1; // the first byte of gzip's modification time
    for (const bytes of [longer, other, sameFiles]) {
      fake.putBlob("a/b", layer.digest, blob(layer.mediaType, bytes));
      expect((await failure(pull())).code).toBe("DATA_LOSS");
      expect(fixture.remains()).toEqual([]);
    }
    fake.putBlob("a/b", image.config.digest, blob(mediaTypes.config, "{}"));
    expect((await failure(pull())).code).toBe("DATA_LOSS");
  });

  test("in a redirect loop fails", async () => {
    fake.intercept = (_request, response) => {
      response.writeHead(302, { location: fake.url }).end();
      return true;
    };
    expect((await failure(pull())).message).toContain("redirects more than 10 times");
  });

  test("follows a redirect whose body breaks", async () => {
    const path = "/v2/a/b/manifests/1";
    fake.intercept = (_request, response, url) => {
      if (url.pathname !== path || url.search === "?moved") return false;
      const head = `location: ${path}?moved\r\ncontent-length: 1000`;
      response.socket!.end(`HTTP/1.1 307 Temporary Redirect\r\n${head}\r\n\r\nx`);
      return true;
    };
    for (let tries = 0; tries < 5; tries++) await pull();
    expect(fake.paths()).toContain(`${path}?moved`);
  });
});
