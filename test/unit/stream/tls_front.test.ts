// Tests the TLS front of the stream server: its certificate, and what a renewal changes.
import { afterAll, beforeAll, expect, spyOn, test } from "bun:test";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect } from "node:tls";
import { silentLog } from "../../../src/base/log.ts";
import { startTlsFront, type TlsFront } from "../../../src/stream/tls_front.ts";
import { until } from "../../expect.ts";
import { Authority } from "../../certificates.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-tls-"));
const filesOf = (name: string) => ({
  cert: join(dir, `${name}.pem`),
  key: join(dir, `${name}.key`),
});
let front: TlsFront;

beforeAll(async () => {
  const authority = new Authority(dir);
  for (const name of ["one", "two"]) authority.sign(name, "IP:127.0.0.1");
  front = await startTlsFront(filesOf("one"), {
    address: "127.0.0.1",
    port: 0,
    to: 1,
    log: silentLog(),
    what: "streams",
  });
});
afterAll(() => {
  front[Symbol.dispose]();
  rmSync(dir, { recursive: true });
});

/** The name in the certificate that a new client gets. */
function served(): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const options = { port: front.port, host: "127.0.0.1", rejectUnauthorized: false };
    const client = connect(options, () => {
      resolve(client.getPeerCertificate().subject.CN);
      client.destroy();
    });
    client.once("error", reject);
  });
}

test("a renewed certificate is for later clients; an unusable one leaves the old one", async () => {
  expect(await served()).toBe("one");
  expect(front.renewal(filesOf("one"))).toBeUndefined();
  const take = front.renewal(filesOf("two"))!;
  expect(await served()).toBe("one");
  take();
  expect(await served()).toBe("two");
  writeFileSync(join(dir, "bad.pem"), "no certificate");
  const unusable = [
    filesOf("bad"),
    { cert: filesOf("bad").cert, key: filesOf("two").key },
    { cert: filesOf("one").cert, key: filesOf("two").key },
  ];
  for (const files of unusable) {
    expect(() => front.renewal(files)).toThrow(`cannot serve streams with TLS (${files.cert}, `);
    expect(await served()).toBe("two");
  }
  expect(front.renewal(filesOf("two"))).toBeUndefined();
});

test("a slow client, which goes on sending, gets all of what the server had sent when it ended", async () => {
  const text = Buffer.alloc(4 << 20, "x");
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.resume().end(text);
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  using relaying = await startTlsFront(filesOf("one"), {
    address: "127.0.0.1",
    port: 0,
    to: (server.address() as AddressInfo).port,
    log: silentLog(),
    what: "streams",
  });
  const client = connect({ port: relaying.port, host: "127.0.0.1", rejectUnauthorized: false });
  using begun = spyOn(globalThis, "setInterval");
  using cleared = spyOn(globalThis, "clearInterval");
  let received = 0;
  const ended = new Promise((resolve) => client.once("close", resolve));
  client.on("error", () => {});
  client.on("data", (chunk: Buffer) => {
    received += chunk.length;
    client.write("x");
    client.pause();
    setTimeout(() => client.resume(), 5);
  });
  await ended;
  server.close();
  expect(received).toBe(text.length);
  await until("no timer is left", () => cleared.mock.calls.length === begun.mock.calls.length);
  expect(begun).toHaveBeenCalled();
});
