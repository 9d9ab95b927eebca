// Tests that the monitor's records stay readable by and from other builds.
import { describe, expect, test } from "bun:test";
import {
  exitText,
  parseExit,
  parseRun,
  runText,
  type ExitRecord,
  type RunRecord,
} from "../../../src/monitor/record_schemas.ts";

const run: RunRecord = {
  version: 1,
  id: "c1",
  runtime: { path: "/usr/sbin/runc", args: ["--debug"], root: "/run/r", systemdCgroup: false },
  bundle: "/run/s/containers/c1",
  stdio: "/run/s/containers/c1/stdio",
  logPath: "/var/log/pods/p/c/0.log",
  stdin: true,
  terminal: false,
  owner: { uid: 100_000, gid: 100_000 },
  label: "system_u:object_r:container_file_t:s0:c1,c2",
  cgroup: { unified: "/sys/fs/cgroup/kubepods/c1" },
  timeoutMs: 120_000,
  pid: 4321,
  pidStartTime: "987654",
  startedAtNs: "1795305600123456789",
  started: true,
};
const exit: ExitRecord = {
  id: "c1",
  pid: 4321,
  exitCode: 137,
  known: true,
  startedAtNs: "1795305600123456789",
  finishedAtNs: "1795305601123456789",
  oomKilled: true,
  oomLimit: "pod",
  lostLogBytes: 12,
};

/** Of 92421ad, and of builds before it that knew neither `version`, `started`, `owner` nor `oomLimit`. */
const olderRun =
  '{"version":1,"id":"c1","runtime":{"path":"/usr/sbin/runc","args":[],"root":"/run/r","systemdCgroup":true},' +
  '"bundle":"/b","stdio":"/b/stdio","logPath":"","stdin":false,"terminal":true,"label":"l","cgroup":{"memory":"/m"},' +
  '"timeoutMs":1,"pid":7,"pidStartTime":"8","startedAtNs":"9","started":false}';
const oldestRun = olderRun.replace('"version":1,', "").replace(',"started":false', "");
const olderExit =
  '{"version":1,"id":"c1","pid":7,"exitCode":255,"known":false,"startedAtNs":"0","finishedAtNs":"9",' +
  '"oomKilled":false,"lostLogBytes":0}';

describe("a run record", () => {
  test("is read as it was written", () => {
    expect(parseRun(runText(run))).toEqual(run);
  });

  test("of an older build is read, and written with the same keys and values", () => {
    expect(JSON.parse(runText(parseRun(olderRun)))).toEqual(JSON.parse(olderRun));
  });

  test("without a version or `started` counts as version 1 and started", () => {
    expect(parseRun(oldestRun)).toMatchObject({ version: 1, started: true });
  });

  test("is read without the keys that a newer build has added", () => {
    expect(parseRun(runText({ ...run, newer: 1 } as RunRecord))).toEqual(run);
  });

  test.each([
    ["of another version", olderRun.replace('"version":1', '"version":2')],
    ["with a number for a time", olderRun.replace('"startedAtNs":"9"', '"startedAtNs":9')],
    ["without an id", olderRun.replace('"id":"c1",', "")],
    ["cut short", olderRun.slice(0, -20)],
  ])("%s is refused", (_, text) => {
    expect(() => parseRun(text)).toThrow();
  });
});

describe("an exit record", () => {
  test("is read as it was written, with its version", () => {
    expect(parseExit(exitText(exit))).toEqual({ version: 1, ...exit } as ExitRecord);
  });

  test("of an older build, without oomLimit, is read and written back the same", () => {
    expect(JSON.parse(exitText(parseExit(olderExit)))).toEqual(JSON.parse(olderExit));
  });

  test("keeps the keys and the order that an older build writes", () => {
    const keys =
      "version,id,pid,exitCode,known,startedAtNs,finishedAtNs,oomKilled,oomLimit,lostLogBytes";
    expect(Object.keys(JSON.parse(exitText(exit)) as object).join()).toBe(keys);
  });

  test.each([
    ["with an unknown limit", exitText({ ...exit, oomLimit: "rack" as "node" })],
    ["with a time that is no number", exitText({ ...exit, finishedAtNs: "now" })],
  ])("%s is refused", (_, text) => {
    expect(() => parseExit(text)).toThrow();
  });
});
