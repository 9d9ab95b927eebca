// Tests listening on an address that the node does not have yet.
import { expect, test } from "bun:test";
import { EventEmitter } from "node:events";
import type { Server } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { listenWhenPresent } from "../../../src/sys/listen.ts";
import { capturedLog } from "../fakes.ts";

/** A server whose attempts to listen end with these error codes; "": it listens. */
function fakeServer(...codes: string[]) {
  const server = new EventEmitter() as EventEmitter & { listen(): void; attempts: number };
  server.attempts = 0;
  server.listen = () => {
    const code = codes[server.attempts++] ?? "";
    const error = Object.assign(new Error(`listen ${code}`), { code });
    setImmediate(() => (code === "" ? server.emit("listening") : server.emit("error", error)));
  };
  return server as unknown as Server & { attempts: number };
}

const place = { address: "192.0.2.1", port: 80 };
const absent = "EADDRNOTAVAIL";

function listen(server: Server) {
  const { log, lines } = capturedLog("info");
  const listening = listenWhenPresent(server, place, { what: "metrics", log, retryMs: 1 });
  return { listening, lines };
}

test("an address that is there says nothing", async () => {
  const { listening, lines } = listen(fakeServer(""));
  await listening;
  expect(lines).toEqual([]);
});

test("an absent address is tried again until it is there, with a line at begin and end", async () => {
  const server = fakeServer(absent, absent, absent, "EADDRINUSE", "EADDRINUSE", "");
  const { listening, lines } = listen(server);
  await listening;
  while (server.attempts < 6) await sleep(1);
  await sleep(5);
  expect(server.attempts).toBe(6);
  expect(lines).toHaveLength(3);
  expect(lines[0]).toMatch(/no metrics yet: the address is none of this node's, trying again/);
  expect(lines[0]).toContain("192.0.2.1:80");
  expect(lines[1]).toContain("listen EADDRINUSE");
  expect(lines[2]).toContain("serving metrics: the node has the address now");
});

test("a server that fails while it listens says so", async () => {
  const server = fakeServer("");
  const { listening, lines } = listen(server);
  await listening;
  server.emit("error", new Error("accept failed"));
  expect(lines).toEqual([expect.stringMatching(/serving metrics failed error="accept failed"/)]);
});

test("disposing ends the attempts", async () => {
  const server = fakeServer(...Array.from({ length: 1_000 }, () => absent));
  (await listen(server).listening)[Symbol.dispose]();
  const { attempts } = server;
  await sleep(10);
  expect(server.attempts).toBe(attempts);
});

test("any other failure is thrown", async () => {
  const error = await listen(fakeServer("EADDRINUSE")).listening.catch((error: unknown) => error);
  expect(error).toMatchObject({ code: "EADDRINUSE" });
});
