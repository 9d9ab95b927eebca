// Tests when the socket of a pod's shim is removed.
import { afterAll, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../../src/base/errors.ts";
import { ShimSockets } from "../../../src/monitor/shim_sockets.ts";
import { failure } from "../../expect.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-sockets-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const path = join(folder, "socket");
const used = new Set<string>();
let sockets: ShimSockets;
beforeEach(() => {
  used.clear();
  writeFileSync(path, "");
  sockets = new ShimSockets((one) => used.has(one));
});

describe("the socket of a shim", () => {
  test("is removed with the last container", () => {
    used.add(path);
    sockets.left(path);
    expect(existsSync(path)).toBe(true);
    used.clear();
    sockets.left(path);
    expect(existsSync(path)).toBe(false);
  });

  test("that the shim has removed itself is no error", () => {
    rmSync(path);
    expect(() => sockets.left(path)).not.toThrow();
  });

  test("stays while a shim is started, which may be the same pod's, and is removed if it is not", async () => {
    const started = Promise.withResolvers<void>();
    const failed = Promise.withResolvers<void>();
    const starts = [
      sockets.starting(() => started.promise),
      sockets.starting(() => failed.promise),
    ];
    sockets.left(path);
    started.resolve();
    await starts[0];
    expect(existsSync(path)).toBe(true);
    failed.reject(new CriError("UNKNOWN", "no shim"));
    expect((await failure(starts[1]!)).message).toBe("no shim");
    expect(existsSync(path)).toBe(false);
  });

  test("stays for the container that was started meanwhile", async () => {
    const started = Promise.withResolvers<void>();
    const start = sockets.starting(() => started.promise.then(() => used.add(path)));
    sockets.left(path);
    started.resolve();
    await start;
    expect(existsSync(path)).toBe(true);
  });
});
