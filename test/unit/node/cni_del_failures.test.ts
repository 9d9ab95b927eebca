// Tests that records of failing CNI DELs count the node's uptime, not its clock, and when DEL is given up.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  abandonAtNextFailure,
  abandonMs,
  delFailureFile,
  recordDelFailure,
} from "../../../src/node/cni_del_failures.ts";
import { failure } from "../../expect.ts";
import { bootTime } from "../../../src/sys/uptime.ts";

const hourMs = 3_600_000;
let dir = "";
beforeEach(() => void (dir = mkdtempSync(join(tmpdir(), "cni-failing-"))));
afterEach(() => rmSync(dir, { recursive: true }));

const failed = (bootId: string, hours: number) =>
  recordDelFailure(dir, "pod", { bootId, uptimeMs: hours * hourMs });

test("recordDelFailure() sums the times between failures within a boot, and continues after a reboot", async () => {
  expect(await failed("one", 1)).toBe(0);
  expect(await failed("one", 2)).toBe(hourMs);
  expect(await failed("one", 3.5)).toBe(2.5 * hourMs);
  expect(await failed("two", 0.1)).toBe(2.5 * hourMs);
  expect(await failed("two", 1.1)).toBe(3.5 * hourMs);
});

test("recordDelFailure() caps a long pause without retries", async () => {
  await failed("one", 1);
  expect(await failed("one", 200)).toBe(2 * hourMs);
});

test.each(["1795462800000", "", "{", '{"bootId":1}'])(
  "recordDelFailure() restarts at 0 when the file contains %p",
  async (text) => {
    mkdirSync(join(dir, "failing"));
    writeFileSync(delFailureFile(dir, "pod"), text);
    expect(await failed("one", 1)).toBe(0);
    expect(await failed("one", 2)).toBe(hourMs);
  },
);

test("abandonAtNextFailure() counts as a day of failures, and needs one", async () => {
  expect((await failure(abandonAtNextFailure(dir, "pod"))).code).toBe("FAILED_PRECONDITION");
  await failed("one", 1);
  await abandonAtNextFailure(dir, "pod");
  expect(await failed("two", 1)).toBe(abandonMs);
});

test("bootTime() rises", async () => {
  const first = bootTime();
  await Bun.sleep(30);
  const next = bootTime();
  expect(next.bootId).toBe(first.bootId);
  expect(next.uptimeMs - first.uptimeMs).toBeWithin(9, 20_000);
});
