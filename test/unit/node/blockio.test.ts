// Tests block I/O classes in containerd's file format, resolved for this node's devices.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { blockioClass } from "../../../src/node/blockio.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-blockio-"));
const file = join(dir, "blockio.yaml");
afterAll(() => rmSync(dir, { recursive: true }));

/** A block device of this node with its numbers. */
const device = readdirSync("/sys/block")[0]!;
const [major, minor] = readFileSync(`/sys/block/${device}/dev`, "utf8")
  .trim()
  .split(":")
  .map(Number);

test("a class has weights and rates for the devices that its patterns match", () => {
  writeFileSync(
    file,
    `Classes:
  Slow:
    - Weight: 80
    - Devices: [/dev/${device.slice(0, -1)}*, /dev/null, /dev/none*]
      Weight: "90"
      ThrottleReadBps: 50M
      ThrottleWriteBps: 1Ki
      ThrottleReadIOPS: 10k
      ThrottleWriteIOPS: 7
  Empty: []
`,
  );
  const slow = blockioClass(file, "Slow");
  expect(slow.weight).toBe(80);
  expect(slow.weightDevice).toContainEqual({ major: major!, minor: minor!, weight: 90 });
  const rateOf = (list: typeof slow.throttleReadBpsDevice) =>
    list?.find((one) => one.major === major && one.minor === minor)?.rate;
  expect(rateOf(slow.throttleReadBpsDevice)).toBe(50_000_000n);
  expect(rateOf(slow.throttleWriteBpsDevice)).toBe(1024n);
  expect(rateOf(slow.throttleReadIOPSDevice)).toBe(10_000n);
  expect(rateOf(slow.throttleWriteIOPSDevice)).toBe(7n);
  expect(slow.throttleReadBpsDevice).not.toContainEqual({ major: 1, minor: 3, rate: 50_000_000n });
  expect(blockioClass(file, "Empty")).toEqual({});
});

test.each([
  ["", "x", "no classes are configured"],
  ["Classes: {}", "x", "defines no classes"],
  ["Classes: {A: [], B: []}", "toString", "defines A, B"],
  ["Classes: {A: [{Weight: 5}]}", "A", "Classes.A.0.Weight"],
  ["Classes: {A: [{ThrottleReadBps: 5.5}]}", "A", "Classes.A.0.ThrottleReadBps"],
  ["Classes: {A: [{Devices: [sda]}]}", "A", "is not absolute"],
  ["Classes: {A: [{Speed: 5}]}", "A", "Speed"],
  ["][", "A", file],
])("%s: an invalid class is refused", (text, name, why) => {
  writeFileSync(file, text);
  const failure = codeAndMessage(() => blockioClass(text === "" ? "" : file, name));
  expect(failure).toStartWith(`FAILED_PRECONDITION: blockio_class ${name}: `);
  expect(failure).toContain(why);
});

test("a missing file is reported", () => {
  expect(codeAndMessage(() => blockioClass("/none/blockio.yaml", "A"))).toContain("ENOENT");
});
