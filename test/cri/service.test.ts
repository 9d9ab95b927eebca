// Tests notifications to the service manager, over a socket in place of systemd's.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { closeSync, mkdtempSync, readFileSync, renameSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { check, libc, O_CLOEXEC, O_NONBLOCK } from "../../src/sys/libc.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { AddedText } from "../log_text.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-notify-"));
const socket = join(folder, "notify");
const [AF_UNIX, SOCK_DGRAM] = [1, 2];
const fd = check("socket", "", AF_UNIX, SOCK_DGRAM | O_CLOEXEC | O_NONBLOCK, 0);
const told: string[] = [];
const given = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
const before = given.map((name) => process.env[name]);

let daemon: Daemon;
beforeAll(async () => {
  const address = new Uint8Array(110);
  address[0] = AF_UNIX;
  address.set(Buffer.from(socket), 2);
  check("bind", socket, fd, address, address.length);
  delete process.env["WATCHDOG_PID"];
  process.env["NOTIFY_SOCKET"] = socket;
  process.env["WATCHDOG_USEC"] = "600000";
  daemon = await startDaemon();
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  for (const [index, name] of given.entries()) {
    if (before[index] === undefined) delete process.env[name];
    else process.env[name] = before[index];
  }
  closeSync(fd);
  rmSync(folder, { recursive: true });
});

/** Datagrams that have come since, each with its lines. */
function take(): string[] {
  const buffer = new Uint8Array(4096);
  const news: string[] = [];
  for (;;) {
    const got = Number(libc().call.read(fd, buffer, buffer.length));
    if (got < 0) return news;
    news.push(Buffer.from(buffer.subarray(0, got)).toString());
    told.push(news.at(-1)!);
  }
}

test("it extends its start timeout while it recovers, and sends READY when it serves", async () => {
  await until(
    "it was ready",
    () => take().length >= 0 && told.some((text) => /^READY=1$/m.test(text)),
  );
  expect(told[0]).toMatch(/^EXTEND_TIMEOUT_USEC=30000000$/m);
  const ready = told.findIndex((text) => /^READY=1$/m.test(text));
  expect(told.slice(ready + 1).some((text) => text.includes("EXTEND_TIMEOUT"))).toBe(false);
  await daemon.client.Version({});
});

test("the watchdog is notified only while the daemon's own socket responds", async () => {
  const watchdog = () => take().includes("WATCHDOG=1");
  await until("the watchdog is notified", watchdog);
  renameSync(daemon.socket, `${daemon.socket}.away`);
  const log = new AddedText(daemon.logFile); // an earlier answer may have been late
  await until("its silence is logged", () => log.text.includes("watchdog notification skipped"));
  take();
  await sleep(1_000); // five times what it takes
  expect(take()).toEqual([]);
  renameSync(`${daemon.socket}.away`, daemon.socket);
  await until("the watchdog is notified again", watchdog);
});

test("children do not inherit the socket, and the daemon's exit is announced", async () => {
  const [monitor] = daemon.monitors();
  expect(readFileSync(`/proc/${monitor}/environ`, "utf8")).not.toMatch(/NOTIFY|WATCHDOG/);
  await daemon.stop();
  expect(take()).toContain("STOPPING=1");
});
