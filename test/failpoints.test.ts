// Tests some rows of the failpoint table (test/failpoints.ts runs all) and some cuts (test/cuts.ts), and that
// planted faults make a row fail.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { cutOf } from "./cuts.ts";
import { Bench } from "./failpoint_bench.ts";
import { allRows, partOf, type Row } from "./failpoints.ts";
import { executable } from "./harness.ts";

let bench: Bench;
beforeAll(async () => {
  bench = await Bench.open();
}, 120_000);
afterAll(() => bench?.[Symbol.asyncDispose]());

describe("failpoints", () => {
  test.each([
    ["an unknown name", "before:coffee=error", ["--allow-failpoints"], "before:coffee"],
    ["neither before nor after", "cni-add=error", ["--allow-failpoints"], "cni-add"],
    ["an unknown action", "before:cni-add=explode", ["--allow-failpoints"], "explode"],
    ["no flag that allows them", "before:cni-add=error", [], "--allow-failpoints"],
  ])("%s stops the start, with its name", (_, failpoints, flags, name) => {
    const argv = ["--config", bench.daemon.configFile, ...flags];
    const env = { ...process.env, ISULAD_FAILPOINTS: failpoints };
    const done = spawnSync(executable, argv, { env, encoding: "utf8", timeout: 60_000 });
    expect(done.status).toBe(1);
    expect(done.stderr).toContain(name);
  });
});

test("the parts of the table contain each row once", () => {
  const rows = allRows();
  expect(rows).toHaveLength(368);
  const parts = ["1/3", "2/3", "3/3"].map((part) => partOf(rows, part));
  expect(parts.flat()).toEqual(rows);
  expect(parts.every((part) => part.length >= 122)).toBe(true);
  expect(() => partOf(rows, "3/2")).toThrow("3/2");
});

describe("a planted fault makes a row fail", () => {
  const row: Row = { failpoint: "before:sandbox-cgroup", action: "error" };
  const settleMs = 500;

  test("something left behind", async () => {
    const planted = join(bench.daemon.dir, "graph/sandboxes/planted");
    const { problems } = await bench.row(row, { sabotage: () => mkdirSync(planted), settleMs });
    rmSync(planted, { recursive: true, force: true });
    expect(problems.join()).toContain(planted);
  }, 120_000);

  test("an address still leased", async () => {
    const lease = join(bench.daemon.dir, "ipam", bench.daemon.token, `${bench.daemon.subnet}.99`);
    const { problems } = await bench.row(row, {
      sabotage: () => writeFileSync(lease, "x"),
      settleMs,
    });
    rmSync(lease);
    expect(problems.join()).toContain(lease);
  }, 120_000);
});

/** Steps of RunPodSandbox and CreateContainer that change the node before a record says so. */
const unrecorded =
  /^after:(sandbox-(cgroup|namespaces|files|sysctls)|cni-add|pause-\w+|container-(rootfs|bundle))$/;
const failedSteps: Row[] = allRows().filter(
  ({ failpoint, action }) => action === "error" && unrecorded.test(failpoint),
);
const rows: Row[] = [
  ...failedSteps,
  { failpoint: "after:sandbox-cgroup", action: "kill daemon" },
  { failpoint: "after:cni-add", action: "kill daemon" },
  { failpoint: "after:image-layers", action: "kill daemon" },
  { failpoint: "after:runtime-create", action: "kill monitor" },
  { failpoint: "before:container-running", action: "kill daemon" },
  { failpoint: "before:sandbox-torndown", action: "error" },
  { failpoint: "after:left-programs-kill", action: "kill daemon" },
  { failpoint: "before:left-calls-kill", action: "kill monitor" },
];

test.each(rows)(
  "$failpoint, $action: Stop and Remove succeed, and nothing is left",
  async (row) => {
    const { hitBy, problems } = await bench.row(row);
    expect(problems).toEqual([]);
    expect(hitBy).toBeDefined();
  },
  120_000,
);

test.each([0, 1, 2, 3])(
  "cut %d, at a moment of its own: the same",
  async (round) => {
    const { problems } = await bench.cut(cutOf(1, round));
    expect(problems).toEqual([]);
  },
  120_000,
);
