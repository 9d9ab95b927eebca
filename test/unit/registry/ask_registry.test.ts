// Tests what the doctor learns of a registry's certificate and clock, with servers of its own.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { askRegistry } from "../../../src/registry/ask_registry.ts";
import type { Endpoint } from "../../../src/registry/endpoint.ts";
import { Authority } from "../../certificates.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-ask-"));
afterAll(() => rmSync(dir, { recursive: true }));
const authority = new Authority(dir);
const timeoutMs = 10_000;

/** Serves until disposal, with a certificate for these names. */
async function serve(names: string, answer = true) {
  const server = createServer(authority.sign("registry", names), (_, response) => {
    if (answer) response.end("{}");
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const endpoint = (tls: Partial<Endpoint["tls"]>): Endpoint => ({
    url: `https://127.0.0.1:${port}/v2`,
    isOrigin: true,
    canPull: true,
    canResolve: true,
    headers: {},
    tls: { skipVerify: false, ...tls },
    from: "a test",
  });
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { endpoint, [Symbol.dispose]: close };
}

test("tells when the certificate ends, and the registry's time", async () => {
  using server = await serve("IP:127.0.0.1");
  const answer = await askRegistry(server.endpoint({ ca: [authority.pem] }), timeoutMs);
  expect(answer.problem).toBeUndefined();
  expect(Math.abs(answer.dateMs! - Date.now())).toBeLessThan(60_000);
  const days = (answer.certificateEndsMs! - Date.now()) / (24 * 3_600_000);
  expect(days).toBeGreaterThan(1.9);
  expect(days).toBeLessThan(2.1);
});

test.each([
  ["that is not trusted", "IP:127.0.0.1", false, /^its certificate is not trusted/],
  ["for another name", "DNS:registry.test", true, /^its certificate is for another name/],
])("tells of a certificate %s", async (_, names, isTrusted, problem) => {
  using server = await serve(names);
  const tls = isTrusted ? { ca: [authority.pem] } : {};
  expect((await askRegistry(server.endpoint(tls), timeoutMs)).problem).toMatch(problem);
});

test("asks for no certificate where none is verified", async () => {
  using server = await serve("DNS:registry.test");
  const answer = await askRegistry(server.endpoint({ skipVerify: true }), timeoutMs);
  expect(answer.problem).toBeUndefined();
  expect(answer.certificateEndsMs).toBeUndefined();
});

test("a registry that never answers is a problem", async () => {
  using server = await serve("IP:127.0.0.1", false);
  const answer = await askRegistry(server.endpoint({ ca: [authority.pem] }), 300);
  expect(answer.problem).toBe("no answer within 300 ms");
});
