// Tests that a client certificate is shown to the registry that it is for, and to nobody else.
import { afterAll, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createServer } from "node:tls";
import { readAll } from "../../../src/registry/http_request.ts";
import { registryRequest } from "../../../src/registry/registry_request.ts";
import { Authority } from "../../certificates.ts";
import { pullSession, upstream } from "../fakes.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-client-"));
const authority = new Authority(dir);
const own = authority.sign("registry", "IP:127.0.0.1");
const client = authority.sign("client", "DNS:client.test", "/CN=node 7");
/** By server: the lines of its answer before the empty one, and the body. */
const answers: Record<string, (request: string) => [head: string, body: string]> = {};
let shown: [server: string, name: string | undefined][];

/** Asks each client for a certificate. Returns the server's port. */
async function listen(name: string): Promise<number> {
  const options = { ...own, ca: authority.pem, requestCert: true, rejectUnauthorized: false };
  const server = createServer(options, (socket) => {
    // Bun's HTTP server does not tell a client's certificate.
    socket.once("data", (request) => {
      shown.push([name, socket.getPeerCertificate().subject?.CN]);
      const [head, body] = answers[name]!(request.toString());
      const length = `content-length: ${body.length}`;
      socket.end(`HTTP/1.1 ${head}\r\nconnection: close\r\n${length}\r\n\r\n${body}`);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  return (server.address() as AddressInfo).port;
}
const registry = `https://127.0.0.1:${await listen("registry")}`;
const elsewhere = `https://127.0.0.1:${await listen("elsewhere")}`;
afterAll(() => rmSync(dir, { recursive: true }));
beforeEach(() => (shown = []));

async function request(): Promise<string> {
  const tls = { ca: [authority.pem], ...client, skipVerify: false };
  const at = upstream(`${registry}/v2`, { tls });
  const o = {
    path: "/blobs/1",
    headers: {},
    isVerified: true,
    signal: new AbortController().signal,
  };
  return (
    await readAll(await registryRequest(pullSession([at]), at, o), { bytesMax: 1000, what: "it" })
  ).toString();
}

test("a client certificate is not shown to a token service elsewhere", async () => {
  answers["registry"] = (request) =>
    /^authorization: Bearer t0k\r$/im.test(request)
      ? ["200 OK", "blob"]
      : [`401 Unauthorized\r\nwww-authenticate: Bearer realm="${elsewhere}/token"`, ""];
  answers["elsewhere"] = () => ["200 OK", '{"token":"t0k"}'];
  expect(await request()).toBe("blob");
  expect(shown).toEqual([
    ["registry", "node 7"],
    ["elsewhere", undefined],
    ["registry", "node 7"],
  ]);
});

test("a client certificate is not shown to a host that the registry redirects to", async () => {
  answers["registry"] = () => [`307 Temporary Redirect\r\nlocation: ${elsewhere}/blob`, ""];
  answers["elsewhere"] = () => ["200 OK", "blob"];
  expect(await request()).toBe("blob");
  expect(shown).toEqual([
    ["registry", "node 7"],
    ["elsewhere", undefined],
  ]);
});

test("a client certificate is not shown for a token that a host redirected to asks for", async () => {
  answers["registry"] = (request) =>
    request.startsWith("GET /token")
      ? ["200 OK", '{"token":"t0k"}']
      : [`307 Temporary Redirect\r\nlocation: ${elsewhere}/blob`, ""];
  answers["elsewhere"] = (request) =>
    /^authorization: Bearer t0k\r$/im.test(request)
      ? ["200 OK", "blob"]
      : [`401 Unauthorized\r\nwww-authenticate: Bearer realm="${registry}/token"`, ""];
  expect(await request()).toBe("blob");
  expect(shown).toEqual([
    ["registry", "node 7"],
    ["elsewhere", undefined],
    ["registry", undefined],
    ["registry", "node 7"],
    ["elsewhere", undefined],
  ]);
});
