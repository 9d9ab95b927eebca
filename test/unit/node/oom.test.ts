// Tests the attribution of OOM kills to containers by counters and by the kernel log.
import { describe, expect, test } from "bun:test";
import type { CgroupPaths } from "../../../src/node/cgroup.ts";
import { parseVictim, type Victim } from "../../../src/node/kernel_log.ts";
import { OomLedger } from "../../../src/node/oom.ts";

/** counts: counters by name; a missing name is a removed cgroup. */
function ledgerOver(counts: Record<string, bigint>, victims?: Victim[]): OomLedger {
  return new OomLedger({
    kills: (paths) => counts[paths["unified"]!.replace("pod/", "")],
    victims: () => victims,
    limits: { open: () => ({ limit: () => "container", close: () => {} }) },
  });
}

/** As ledgerOver(), with the counters of each container's last change. */
function watchedLedger(
  counts: Record<string, bigint>,
  seen: Record<string, { limitHits: bigint; kills: bigint }>,
  closed: string[] = [],
): OomLedger {
  return new OomLedger({
    kills: (paths) => counts[paths["unified"]!.replace("pod/", "")],
    victims: () => [],
    limits: { open: () => ({ limit: () => undefined, close: () => {} }) },
    changes: (_, { unified = "" }) => {
      const name = unified.replace("pod/", "");
      return { counts: seen[name]!, close: () => void closed.push(name) };
    },
  });
}

/** A first process whose pid is the letter's code and which started 100 s after boot. */
const init = (id: string) => ({ id, pid: id.charCodeAt(0), pidStartTime: "10000" });
const at = (name: string): CgroupPaths => ({ unified: `pod/${name}` });

describe("OomLedger", () => {
  test("reads the container's own counter while it exists", () => {
    const counts: Record<string, bigint> = { pod: 0n, a: 0n };
    const ledger = ledgerOver(counts);
    ledger.started(init("a"), at("a"));
    counts["a"] = 2n;
    expect(ledger.ended("a", 137).oomKilled).toBe(true);
    expect(ledger.ended("a", 137).oomKilled).toBe(false);
  });

  test("attributes the pod's kills that no other container accounts for to a removed cgroup", () => {
    const counts: Record<string, bigint> = { pod: 7n, a: 0n, b: 0n, c: 0n };
    const ledger = ledgerOver(counts);
    for (const id of ["a", "b", "c"]) ledger.started(init(id), at(id));
    counts["b"] = 1n; // b lost a process and runs on
    counts["pod"] = 9n;
    delete counts["a"];
    expect(ledger.ended("a", 137).oomKilled).toBe(true);
    delete counts["c"];
    expect(ledger.ended("c", 137).oomKilled).toBe(false);
    delete counts["b"];
    expect(ledger.ended("b", 137).oomKilled).toBe(true);
    counts["d"] = 0n;
    ledger.started(init("d"), at("d"));
    delete counts["d"];
    expect(ledger.ended("d", 137).oomKilled).toBe(false);
  });

  test("accepts containers that ran before it, and ignores earlier kills", () => {
    const counts: Record<string, bigint> = { pod: 5n, a: 2n, b: 1n };
    const ledger = ledgerOver(counts);
    ledger.started(init("a"), at("a"));
    ledger.started(init("b"), at("b"));
    counts["pod"] = 6n;
    delete counts["a"];
    expect(ledger.ended("a", 137).oomKilled).toBe(true);
  });

  test("reports no kill when the pod's counter is missing or excludes child cgroups", () => {
    const counts: Record<string, bigint> = { a: 0n };
    const ledger = ledgerOver(counts);
    ledger.started(init("a"), at("a"));
    delete counts["a"];
    expect(ledger.ended("a", 137).oomKilled).toBe(false);
  });

  test("an exit code of 0 is no OOM kill, and an old kill has no limit", () => {
    const counts: Record<string, bigint> = { pod: 0n, a: 0n, b: 1n, c: 0n };
    const ledger = ledgerOver(counts);
    for (const id of ["a", "b", "c"]) ledger.started(init(id), at(id));
    counts["a"] = 1n;
    expect(ledger.ended("a", 0)).toEqual({ oomKilled: false });
    expect(ledger.ended("b", 1)).toEqual({ oomKilled: true });
    counts["c"] = 1n;
    expect(ledger.ended("c", 1)).toEqual({ oomKilled: true, oomLimit: "container" });
  });

  test("uses the counters of the last change of a removed cgroup", () => {
    const counts: Record<string, bigint> = { a: 0n, b: 0n, c: 0n, d: 0n };
    const seen = Object.fromEntries(
      Object.keys(counts).map((id) => [id, { limitHits: 0n, kills: 0n }]),
    );
    const closed: string[] = [];
    const ledger = watchedLedger(counts, seen, closed);
    for (const id of Object.keys(counts)) ledger.started(init(id), at(id));
    Object.assign(seen["a"]!, { limitHits: 1n, kills: 1n });
    Object.assign(seen["b"]!, { limitHits: 0n, kills: 1n }); // by a limit above
    Object.assign(seen["c"]!, { limitHits: 1n, kills: 0n }); // removed before its last change was read
    for (const id of Object.keys(counts)) delete counts[id];
    expect(ledger.ended("a", 137)).toEqual({ oomKilled: true, oomLimit: "container" });
    expect(ledger.ended("b", 137)).toEqual({ oomKilled: true });
    expect(ledger.ended("c", 137)).toEqual({ oomKilled: true, oomLimit: "container" });
    expect(ledger.ended("d", 137)).toEqual({ oomKilled: false });
    expect(closed).toEqual(["a", "b", "c", "d"]);
  });

  test("counts a kill once that both the container and the pod have counted", () => {
    const counts: Record<string, bigint> = { pod: 0n, a: 0n, b: 0n, c: 0n };
    const seen = { a: { limitHits: 1n, kills: 1n }, b: { limitHits: 0n, kills: 0n } };
    const ledger = watchedLedger(counts, { ...seen, c: { limitHits: 0n, kills: 0n } });
    for (const id of ["a", "b", "c"]) ledger.started(init(id), at(id));
    counts["pod"] = 1n;
    delete counts["a"];
    delete counts["b"];
    expect(ledger.ended("b", 137).oomKilled).toBe(false);
    expect(ledger.ended("a", 137).oomKilled).toBe(true);
    delete counts["c"];
    expect(ledger.ended("c", 137).oomKilled).toBe(false);
  });

  test("reads the kernel log without counters, and for two cgroups removed at once", () => {
    const victim = (id: string, atUs: number, byCgroup = true) => ({
      pid: id.charCodeAt(0),
      atUs,
      byCgroup,
    });
    const log = [victim("a", 5e6), victim("b", 101e6), victim("c", 102e6, false)];
    const noCounters = ledgerOver({}, log);
    for (const id of ["a", "b", "c"]) noCounters.started(init(id), at(id));
    expect(noCounters.ended("a", 137)).toEqual({ oomKilled: false }); // an earlier process's
    expect(noCounters.ended("b", 137)).toEqual({ oomKilled: true, oomLimit: "container" });
    expect(noCounters.ended("c", 137)).toEqual({ oomKilled: true, oomLimit: "node" });

    const counts: Record<string, bigint> = { pod: 0n, a: 0n, b: 0n, d: 0n };
    const together = ledgerOver(counts, [victim("b", 101e6)]);
    for (const id of ["a", "b", "d"]) together.started(init(id), at(id));
    for (const id of ["a", "b", "d"]) delete counts[id];
    counts["pod"] = 2n; // b's first process, and one that b or d has started
    expect(together.ended("b", 137).oomKilled).toBe(true);
    expect(together.ended("d", 1).oomKilled).toBe(true);
    expect(together.ended("a", 137).oomKilled).toBe(false);
  });
});

test("parseVictim reads the line of a kill", () => {
  const text = "Killed process 1234 (dd) total-vm:206068kB, anon-rss:19000kB";
  expect(parseVictim(`3,77,123456789,-;Memory cgroup out of memory: ${text}`)).toEqual({
    pid: 1234,
    atUs: 123456789,
    byCgroup: true,
  });
  expect(parseVictim(`3,78,5,-;Out of memory: ${text}`)).toMatchObject({ byCgroup: false });
  expect(parseVictim("6,79,5,-;oom_reaper: reaped process 1234 (dd)")).toBeUndefined();
  expect(parseVictim(`12,80,5,-;Memory cgroup out of memory: ${text}`)).toBe(undefined);
});
