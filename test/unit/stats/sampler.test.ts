// Tests the sampler of CPU rates.
import { afterAll, describe, expect, test } from "bun:test";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { until } from "../../expect.ts";
import type { CgroupUsage } from "../../../src/stats/cgroup_usage.ts";
import { cpuRate, Sampler } from "../../../src/stats/sampler.ts";

const golden = join(import.meta.dirname, "../../golden");
const scratch = mkdtempSync(join(tmpdir(), "isulad-sampler-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

test.each<[string, bigint | undefined, bigint | undefined, number, bigint | undefined]>([
  ["half a core for two seconds", 1_000n, 1_000_001_000n, 2_000, 500_000_000n],
  ["no CPU time", 5n, 5n, 1_000, 0n],
  ["a counter that restarted", 5n, 4n, 1_000, undefined],
  ["no counter", undefined, 4n, 1_000, undefined],
  ["a counter that vanished", 4n, undefined, 1_000, undefined],
  ["no time between", 4n, 5n, 0, undefined],
])("cpuRate() of %s", (_, from, to, ms, rate) => {
  const now = { cpuNs: to, monotonicMs: 100 + ms };
  expect(cpuRate({ cpuNs: from, monotonicMs: 100 }, now)).toBe(rate);
  expect(cpuRate(undefined, now)).toBeUndefined();
});

describe("Sampler", () => {
  function cgroup(name: string) {
    const folder = join(scratch, name);
    cpSync(join(golden, "cgroup_v2"), folder, { recursive: true });
    const used = (usec: number) => writeFileSync(join(folder, "cpu.stat"), `usage_usec ${usec}\n`);
    return { id: name, paths: { unified: folder }, used };
  }

  test("reads once a second, and returns the rate between two readings", async () => {
    const one = cgroup("rate");
    using sampler = new Sampler(() => [one], 10_000);
    one.used(1_000_000);
    const first = (await sampler.sample([one])).get("rate")!;
    expect(first.nanoCores).toBeUndefined();
    one.used(1_600_000);
    expect((await sampler.sample([one])).get("rate")).toBe(first);
    await sleep(1_050);
    const second = (await sampler.sample([one])).get("rate")!;
    expect(second.cpuNs).toBe(1_600_000_000n);
    // 600 ms of CPU in a second and something, however busy this machine is
    expect(second.nanoCores).toBeGreaterThan(60_000_000n);
    expect(second.nanoCores).toBeLessThan(600_000_000n);
  });

  test("has no rate for a recreated cgroup, and no figures for a removed one", async () => {
    const one = cgroup("anew");
    const gone = { id: "gone", paths: { unified: join(scratch, "none") } };
    using sampler = new Sampler(() => [one, gone], 10_000);
    one.used(1_000_000);
    await sampler.sample([one]);
    one.used(5);
    await sleep(1_050);
    const samples = await sampler.sample([one, gone]);
    expect(samples.get("anew")).toMatchObject({ cpuNs: 5000n, nanoCores: undefined });
    expect(samples.has("gone")).toBe(false);
  });

  test("asks once for figures that no cgroup has, however many calls wait for the answer", async () => {
    const asked = Promise.withResolvers<CgroupUsage | undefined>();
    let questions = 0;
    const guest = { id: "guest", paths: {}, usage: () => (questions++, asked.promise) };
    const silent = { id: "silent", paths: {}, usage: async () => undefined };
    using sampler = new Sampler(() => [guest, silent], 10_000);
    const calls = [sampler.sample([guest, silent]), sampler.sample([guest])];
    asked.resolve({ atNs: 1n, cpuNs: 7n });
    const [both, one] = await Promise.all(calls);
    expect([...both!.keys()]).toEqual(["guest"]);
    expect(one!.get("guest")).toMatchObject({ cpuNs: 7n });
    expect((await sampler.sample([guest])).get("guest")).toBe(both!.get("guest"));
    expect(questions).toBe(1);
  });

  test("drops cgroups that are no longer listed, between calls", async () => {
    const [kept, dropped] = [cgroup("kept"), cgroup("dropped")];
    let listings = 0;
    const list = () => (listings++, [kept]);
    using sampler = new Sampler(list, 10);
    const first = await sampler.sample([kept, dropped]);
    await until("it has sampled twice", () => listings > 1);
    const second = await sampler.sample([kept, dropped]);
    expect(second.get("kept")).toBe(first.get("kept"));
    expect(second.get("dropped")).not.toBe(first.get("dropped"));
  });

  test("samples again after each period, without a call", async () => {
    const one = cgroup("period");
    const counts = [0, 0];
    using often = new Sampler(() => (counts[0]!++, [one]), 10);
    using seldom = new Sampler(() => (counts[1]!++, [one]), 60_000);
    await Promise.all([often.sample([one]), seldom.sample([one])]);
    await until("the shorter period has passed five times", () => counts[0]! >= 5);
    expect(counts[1]).toBe(0);
  });
});
