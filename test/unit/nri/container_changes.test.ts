// Tests what is kept of NRI plugins' changes of a container, within which bounds.
import { afterAll, beforeEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { jsonValue } from "../../../src/base/json.ts";
import type { Context } from "../../../src/cri/context.ts";
import {
  addChanges,
  changeBytesMax,
  changesMax,
  creationChanges,
  readChanges,
  ownChange,
  requestChanges,
} from "../../../src/nri/container_changes.ts";
import { listNriChanges } from "../../../src/cri/nri_plugins.ts";
import { containerSpec, type OciSpec } from "../../../src/spec/oci.ts";
import { toLong } from "../../../src/base/int64.ts";
import { capturedLog, failureOf } from "../fakes.ts";
import { host, specInput } from "../../spec/inputs.ts";

const folder = mkdtempSync(join(tmpdir(), "nri-changes-"));
afterAll(() => rmSync(folder, { recursive: true }));
const bundle = join(folder, "c1");
const { log, lines } = capturedLog("info");

beforeEach(() => {
  rmSync(bundle, { recursive: true, force: true });
  mkdirSync(bundle);
  lines.length = 0;
});

const before = containerSpec(specInput({}));
const annotated = (annotations: Record<string, string>): OciSpec => ({ ...before, annotations });
const update = (shares: bigint) => {
  const resources = (value: bigint) => ({ devices: [], cpu: { shares: value } });
  return ownChange("20-cpu", resources(1n), resources(shares));
};

test("each plugin's change is from what the plugins before it have made", async () => {
  const specs = [
    { plugin: "10-a", result: annotated({ ...before.annotations, k: "a" }) },
    { plugin: "20-b", result: undefined },
    { plugin: "30-c", result: annotated({ ...before.annotations, k: "c" }) },
    { plugin: "40-d", result: annotated({ ...before.annotations, k: "c" }) },
  ];
  await addChanges({ folder: bundle, log }, () => creationChanges(before, specs));
  const { changes } = readChanges(bundle);
  expect(changes).toMatchObject([
    {
      plugin: "10-a",
      event: "CreateContainer",
      fields: [{ path: "annotations[k]", after: '"a"' }],
    },
    { plugin: "30-c", fields: [{ path: "annotations[k]", before: '"a"', after: '"c"' }] },
  ]);
});

test("a client's update is compared with what each plugin has made of it", () => {
  const shares = (value: number) => ({ resources: { cpu_shares: toLong(value) } });
  const steps = [
    { plugin: "10-a", result: shares(20) },
    { plugin: "20-b", result: { ...shares(20), pidsLimit: -1n } },
  ];
  expect(requestChanges(host, shares(10).resources, steps)).toMatchObject([
    { plugin: "10-a", fields: [{ path: "linux.resources.cpu.shares", before: "10", after: "20" }] },
    { plugin: "20-b", fields: [{ path: "linux.resources.pids.limit", after: "-1" }] },
  ]);
});

test("updates are added, and the oldest of them make room, never the creation", async () => {
  const specs = [{ plugin: "10-a", result: annotated({ k: "a" }) }];
  await addChanges({ folder: bundle, log }, () => creationChanges(before, specs));
  for (let i = 0; i < changesMax + 4; i++) {
    await addChanges({ folder: bundle, log }, () => update(BigInt(i + 2)));
  }
  const { changes, dropped } = readChanges(bundle);
  expect(changes).toHaveLength(changesMax);
  expect(dropped).toBe(5);
  expect(changes.slice(0, 2)).toMatchObject([
    { plugin: "10-a" },
    { plugin: "20-cpu", event: "UpdateContainers", fields: [{ before: "1", after: "7" }] },
  ]);
  expect(readdirSync(bundle)).toEqual(["nri_changes.json"]);
  expect(statSync(join(bundle, "nri_changes.json")).mode & 0o777).toBe(0o600);
});

test("updates that come at once are all kept", async () => {
  await Promise.all(
    [2n, 3n, 4n].map((shares) => addChanges({ folder: bundle, log }, () => update(shares))),
  );
  expect(readChanges(bundle).changes).toHaveLength(3);
});

test("values and fields are bounded, and valid JSON", async () => {
  const many = Object.fromEntries(
    Array.from({ length: 200 }, (_, i) => [`k${i}`, "é".repeat(900)]),
  );
  const specs = Array.from({ length: changesMax + 3 }, (_, i) => ({
    plugin: `${i + 10}-p`,
    result: annotated(i % 2 === 0 ? many : {}),
  }));
  await addChanges({ folder: bundle, log }, () => creationChanges(before, specs));
  const { changes, dropped } = readChanges(bundle);
  expect(dropped).toBe(3);
  for (const { fields, more } of changes) {
    expect(fields.length + more).toBeGreaterThanOrEqual(200);
    for (const { before, after } of fields) {
      for (const text of [before, after]) if (text) expect(() => jsonValue(text)).not.toThrow();
    }
  }
  expect(statSync(join(bundle, "nri_changes.json")).size).toBeLessThan(
    1.3 * changesMax * changeBytesMax,
  );
});

test("no change writes no file", async () => {
  await addChanges({ folder: bundle, log }, () =>
    creationChanges(before, [{ plugin: "10-a", result: before }]),
  );
  expect(readdirSync(bundle)).toEqual([]);
  expect(readChanges(bundle)).toMatchObject({ changes: [] });
  const containers = { folderOf: () => bundle, get: (id: string) => ({ id }) };
  const off = { containers, nri: undefined } as unknown as Context;
  expect(await failureOf(listNriChanges(off, {}))).toContain("NRI is off: set nri-support");
});

test("a damaged file is DATA_LOSS, and the next change begins anew", async () => {
  writeFileSync(join(bundle, "nri_changes.json"), '{"version": 1, "chan');
  expect(() => readChanges(bundle)).toThrow(/nri_changes\.json/);
  await addChanges({ folder: bundle, log }, () => update(2n));
  expect(lines.join("")).toContain("earlier NRI changes of a container cannot be read");
  expect(readChanges(bundle).changes).toHaveLength(1);
});

test("a failure is logged and fails nothing; a removed container is no failure", async () => {
  await addChanges({ folder: bundle, log }, () => {
    throw new Error("cannot compare");
  });
  expect(lines.join("")).toMatch(/not kept .*cannot compare/);
  lines.length = 0;
  await addChanges({ folder: join(folder, "gone"), log }, () => update(2n));
  expect(lines).toEqual([]);
});
