// Tests the search for the process that listens on a unix socket.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { listenerOf, listeningInodes } from "../../../src/sys/socket_listener.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-listener-"));
afterAll(() => rmSync(folder, { recursive: true }));

test("listenerOf() finds the process among those that it is given", async () => {
  const path = join(folder, "a b.sock");
  expect(listenerOf(path, [process.pid])).toBeUndefined();
  const server = createServer().listen(path);
  await new Promise((resolve) => server.once("listening", resolve));
  expect(listenerOf(path, [1, process.pid])).toBe(process.pid);
  expect(listenerOf(path, [])).toBeUndefined();
  expect(listenerOf(join(folder, "b.sock"), [process.pid])).toBeUndefined();
  server.close();
});

test("listeningInodes() takes listening sockets only, by their whole path", () => {
  const table = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 11 /run/s/a
0000000000000000: 00000003 00000000 00000000 0001 03 12 /run/s/a
0000000000000000: 00000002 00000000 00010000 0001 01 13 /other/run/s/a
0000000000000000: 00000002 00000000 00010000 0001 01 14
0000000000000000: 00000002 00000000 00010000 0001 01 15 /run/with blank
`;
  expect([...listeningInodes(table, "/run/s/a")]).toEqual(["socket:[11]"]);
  expect([...listeningInodes(table, "/run/with blank")]).toEqual(["socket:[15]"]);
});
