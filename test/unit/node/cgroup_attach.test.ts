// Tests which cgroup a runtime's process is written to ahead of the runtime's own moves, and when it is not.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { CgroupMounts } from "../../../src/node/cgroup.ts";
import { CgroupAttachLock } from "../../../src/node/cgroup_attach.ts";
import { mkfifo } from "../../../src/sys/path.ts";
import { until } from "../../expect.ts";

let dir = "";
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "isulad-attach-"));
});
afterEach(() => rmSync(dir, { recursive: true }));

const controllers = "3:name=systemd:/system\n4:cpu,cpuacct:/system/isulad:ts\n";

/** Makes own an existing cgroup of a hierarchy in dir. */
function lockIn({ own, text, mounts }: { own: string; text: string; mounts: CgroupMounts }) {
  mkdirSync(join(dir, own), { recursive: true });
  writeFileSync(join(dir, own, "cgroup.procs"), "");
  writeFileSync(join(dir, "self"), text);
  return new CgroupAttachLock(mounts, join(dir, "self"));
}

const v1 = (): CgroupMounts => ({ version: 1, roots: { cpuacct: dir, memory: "/absent" } });
const v2 = (): CgroupMounts => ({ version: 2, roots: { unified: dir } });

const procs = (own: string) => readFileSync(join(dir, own, "cgroup.procs"), "latin1");

/** Returns what is written in the end. */
async function written(own: string): Promise<string> {
  await until("it is written", () => procs(own) !== "");
  return procs(own);
}

/** Returns what was written after the time that a write takes. */
async function writtenSoon(own: string): Promise<string> {
  await sleep(200);
  return procs(own);
}

test.each(["create", "exec"])("v1: %s is written to its own cgroup", async (verb) => {
  const lock = lockIn({ own: "system/isulad:ts", text: controllers, mounts: v1() });
  lock.takeAhead(4711, verb);
  expect(await written("system/isulad:ts")).toBe("4711");
});

test("v2: create is written, exec is not", async () => {
  const lock = lockIn({ own: "isulad.service", text: "0::/isulad.service\n", mounts: v2() });
  lock.takeAhead(4711, "exec");
  expect(await writtenSoon("isulad.service")).toBe("");
  lock.takeAhead(4712, "create");
  expect(await written("isulad.service")).toBe("4712");
});

test.each([
  ["a verb that moves nothing", "kill", "0::/\n"],
  ["a cgroup outside of the namespace", "create", "0::/../other\n"],
  ["a hierarchy that is not listed", "create", "1:memory:/\n"],
  ["a cgroup that was removed, which is no error", "create", "0::/gone\n"],
])("nothing is written: %s", async (_, verb, text) => {
  const lock = lockIn({ own: "", text, mounts: v2() });
  lock.takeAhead(4711, verb);
  expect(await writtenSoon("")).toBe("");
});

test("one write at a time takes a thread; the next one follows after it", async () => {
  const lock = lockIn({ own: "", text: "0::/\n", mounts: v2() });
  const fifo = join(dir, "cgroup.procs");
  rmSync(fifo);
  mkfifo(fifo, 0o600); // a write to it waits for a reader
  for (const pid of [1, 2, 3]) lock.takeAhead(pid, "create");
  expect(await Bun.file(fifo).text()).toBe("1");
  const again = setInterval(() => lock.takeAhead(4, "create"), 5);
  expect(await Bun.file(fifo).text()).toMatch(/^4+$/); // the next one may come before the end is read
  clearInterval(again);
});

test("never throws, although its own cgroups cannot be read", () => {
  const lock = new CgroupAttachLock(v2(), dir); // a folder
  expect(() => lock.takeAhead(4711, "create")).not.toThrow();
});
