// Tests the fallback to plain HTTP where no registry speaks TLS, and to mirrors that hosts.toml lists after
// the registry. Needs root, for the ports 80 and 443.
import { afterAll, afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomInt } from "node:crypto";
import * as fs from "node:fs";
import { createServer as createTlsServer, type Server as TlsServer } from "node:https";
import { createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RegistryAuth } from "../../src/registry/credentials.ts";
import type { RegistryOptions } from "../../src/registry/resolve_endpoints.ts";
import { Authority } from "../certificates.ts";
import { failure } from "../expect.ts";
import { makeImage, makeLayer } from "../image_maker.ts";
import { FakeRegistry } from "./fake_registry.ts";
import { openFixture, within } from "../image/fixture.ts";

const image = makeImage([makeLayer([{ name: "f", data: "x" }])]);
const dir = fs.mkdtempSync(join(tmpdir(), "isulad-fallback-"));
afterAll(() => fs.rmSync(dir, { recursive: true }));

/** A loopback address that no other test listens on. */
const address = `127.${randomInt(1, 255)}.${randomInt(256)}.${randomInt(1, 255)}`;
const certificate = new Authority(dir).sign("server", `IP:${address}`);

let plain: FakeRegistry;
let stack: AsyncDisposableStack;
beforeEach(async () => {
  stack = new AsyncDisposableStack();
  plain = stack.use(await FakeRegistry.start({ host: address, port: 80 }));
  plain.put("a/b", "1", image);
});
afterEach(async () => await stack.disposeAsync());

async function listen(server: Server | TlsServer): Promise<void> {
  await new Promise<void>((resolve) => server.listen(443, address, resolve));
  stack.defer(() => new Promise<void>((resolve) => void server.close(() => resolve())));
}

/** Listens on port 443 with this answer; returns the paths requested. */
async function listenWithTls(
  status: number,
  headers: Record<string, string>,
  body: string,
): Promise<string[]> {
  const paths: string[] = [];
  const server = createTlsServer(certificate, (request, response) => {
    paths.push(request.url ?? "");
    response.writeHead(status, { ...headers, connection: "close" }).end(body);
  });
  await listen(server);
  return paths;
}

async function pull(
  registry: Partial<RegistryOptions>,
  name = `${address}/a/b:1`,
  auth?: RegistryAuth,
) {
  await using fixture = await openFixture(registry);
  return await fixture.store.pull(name, { auth, signal: within() });
}

function hostsToml(text: string, host = address): string {
  const configPath = fs.mkdtempSync(join(dir, "certs-"));
  fs.mkdirSync(join(configPath, host));
  fs.writeFileSync(join(configPath, host, "hosts.toml"), text);
  return configPath;
}

describe("an insecure registry of plain HTTP", () => {
  const ways: [string, () => Partial<RegistryOptions>][] = [
    ["insecure-registries", () => ({ insecure: [address] })],
    [
      "hosts.toml",
      () => ({ configPath: hostsToml(`server = "http://${address}"\nskip_verify = true`) }),
    ],
  ];

  test.each(ways)(
    "of %s is found although port 443 accepts and stays silent",
    async (_, options) => {
      const sockets = new Set<{ destroy(): unknown }>();
      await listen(createServer((socket) => void sockets.add(socket.on("error", () => {}))));
      stack.defer(() => sockets.forEach((socket) => socket.destroy()));
      const limit = { progressTimeoutMs: 3000 };
      expect((await pull({ ...options(), ...limit })).id).toBe(image.config.digest);
    },
  );

  test.each<[number, Record<string, string>, string]>([
    [404, { "content-type": "text/html" }, "<h1>not found</h1>"],
    [200, { "content-type": "text/html" }, "<h1>welcome</h1>"],
    [401, { "www-authenticate": 'Basic realm="router"' }, ""],
    [403, {}, "forbidden"],
  ])("is found although a web server on port 443 answers %d", async (status, headers, body) => {
    const paths = await listenWithTls(status, headers, body);
    for (const [, options] of ways) {
      expect((await pull(options())).id).toBe(image.config.digest);
    }
    expect(paths).not.toEqual([]);
  });

  test("is not used where a registry spoke TLS", async () => {
    const unknown = '{"errors":[{"code":"MANIFEST_UNKNOWN","message":"unknown by TLS"}]}';
    await listenWithTls(404, { "content-type": "application/json" }, unknown);
    const error = await failure(pull({ insecure: [address] }));
    expect(error.code).toBe("NOT_FOUND");
    expect(error.message).toContain("unknown by TLS");
    expect(plain.requests).toEqual([]);
  });

  test("is not used where the certificate of the registry or mirror is not trusted", async () => {
    await listenWithTls(200, {}, "{}");
    fs.writeFileSync(join(dir, "other.pem"), new Authority(dir, "other").pem);
    const ca = `ca = "${join(dir, "other.pem")}"`;
    const registry = `server = "http://${address}"\n${ca}`;
    const error = await failure(pull({ configPath: hostsToml(registry) }));
    expect(error.code).toBe("UNAVAILABLE");
    expect(error.message).toContain("certificate");
    await using empty = await FakeRegistry.start();
    const mirror = `server = "${empty.url}"\n[host."http://${address}"]\n${ca}`;
    expect((await failure(pull({ configPath: hostsToml(mirror) }))).code).toBe("NOT_FOUND");
    expect(empty.requests).toHaveLength(1);
    expect(plain.requests).toEqual([]);
  });

  test("at port 80 is used without trying TLS", async () => {
    const paths = await listenWithTls(200, {}, "{}");
    const toml = `[host."http://${address}:80"]\nskip_verify = true`;
    const configPath = hostsToml(toml, "r.example");
    expect((await pull({ configPath }, "r.example/a/b:1")).id).toBe(image.config.digest);
    expect(paths).toEqual([]);
  });
});

test("the registry's plain address and cache in hosts.toml get its credentials", async () => {
  const auth = { username: "user", password: "pa:ss" };
  const basic = `Basic ${Buffer.from("user:pa:ss").toString("base64")}`;
  plain.intercept = (request, response) => {
    if (request.headers.authorization === basic) return false;
    response.writeHead(401, { "www-authenticate": 'Basic realm="x"' }).end();
    return true;
  };
  plain.put("cache/a/b", "2", image);
  // Of a registry that is not on loopback, https is the default server.
  const server = `server = "https://${address}"\n[host."http://${address}"]\n`;
  const cache = `[host."http://${address}/v2/cache"]\noverride_path = true\n`;
  const configPath = hostsToml(`${server}capabilities = ["resolve"]\n${cache}`);
  expect((await pull({ configPath }, undefined, auth)).id).toBe(image.config.digest);
  expect(plain.paths()).toContain(`/v2/cache/a/b/blobs/${image.config.digest}`);
  const wrong = await failure(pull({ configPath }, undefined, { ...auth, password: "wrong" }));
  expect(wrong.code).toBe("UNAUTHENTICATED");
});

describe("a registry that hosts.toml lists before a mirror", () => {
  let mirror: FakeRegistry;
  const configPath = () =>
    hostsToml(`[host."${plain.url}"]\n[host."${mirror.url}"]\n`, plain.host.replace(":80", ""));
  beforeEach(async () => {
    mirror = stack.use(await FakeRegistry.start());
  });

  test("falls back to the mirror for a missing image or blob", async () => {
    mirror.put("a/c", "1", image);
    const name = `${address}/a/c:1`;
    expect((await pull({ configPath: configPath() }, name)).id).toBe(image.config.digest);
    plain.putManifest("a/c", "1", image.manifest);
    expect((await pull({ configPath: configPath() }, name)).id).toBe(image.config.digest);
    expect(mirror.requests.every(({ headers }) => !headers.authorization)).toBe(true);
  });

  test("determines the error if neither has the image, after one request each", async () => {
    const error = await failure(pull({ configPath: configPath() }, `${address}/a/d:1`));
    expect(error.code).toBe("NOT_FOUND");
    expect(plain.requests).toHaveLength(1);
    expect(mirror.requests).toHaveLength(1);
  });
});
