import { describe, expect, test } from "bun:test";
import type { CgroupPaths } from "../../src/node/cgroup.ts";
import { OomLedger } from "../../src/node/oom.ts";

/** Counters by name; a name that is missing is a cgroup that is gone. */
function ledgerOver(counts: Record<string, bigint>): OomLedger {
  return new OomLedger((paths) => counts[paths["unified"]!.replace("pod/", "")]);
}

const at = (name: string): CgroupPaths => ({ unified: `pod/${name}` });

describe("OomLedger", () => {
  test("reads the container's own counter while it is there", () => {
    const counts: Record<string, bigint> = { pod: 0n, a: 0n };
    const ledger = ledgerOver(counts);
    ledger.started("a", at("a"));
    counts["a"] = 2n;
    expect(ledger.exited("a")).toBe(2n);
    expect(ledger.exited("a")).toBe(0n);
  });

  test("takes what the pod counts and no other container does when the cgroup is gone", () => {
    const counts: Record<string, bigint> = { pod: 7n, a: 0n, b: 0n, c: 0n };
    const ledger = ledgerOver(counts);
    for (const id of ["a", "b", "c"]) ledger.started(id, at(id));
    counts["b"] = 1n; // b lost a process and runs on
    counts["pod"] = 9n;
    delete counts["a"];
    expect(ledger.exited("a")).toBe(1n);
    delete counts["c"];
    expect(ledger.exited("c")).toBe(0n);
    delete counts["b"];
    expect(ledger.exited("b")).toBe(1n);
    counts["d"] = 0n;
    ledger.started("d", at("d"));
    delete counts["d"];
    expect(ledger.exited("d")).toBe(0n);
  });

  test("begins with containers that ran before it, and forgets kills from before", () => {
    const counts: Record<string, bigint> = { pod: 5n, a: 2n, b: 1n };
    const ledger = ledgerOver(counts);
    ledger.started("a", at("a"));
    ledger.started("b", at("b"));
    counts["pod"] = 6n;
    delete counts["a"];
    expect(ledger.exited("a")).toBe(3n);
  });

  test("knows nothing where the pod's counter is gone or counts only itself", () => {
    const counts: Record<string, bigint> = { a: 0n };
    const ledger = ledgerOver(counts);
    ledger.started("a", at("a"));
    delete counts["a"];
    expect(ledger.exited("a")).toBe(0n);
  });
});
