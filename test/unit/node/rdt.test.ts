// Tests RDT classes in containerd's file format. A plain folder replaces resctrl, because no test machine has
// a processor with RDT.
import { afterAll, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as v from "valibot";
import { parse } from "yaml";
import { prepareRdtClass, rdtHost } from "../../../src/node/rdt.ts";
import { RdtFile, rdtSchemata, type RdtHost } from "../../../src/spec/rdt.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-rdt-"));
const file = join(dir, "rdt.yaml");
const resctrl = join(dir, "resctrl");
afterAll(() => rmSync(dir, { recursive: true }));

beforeEach(() => {
  rmSync(resctrl, { recursive: true, force: true });
  const files = {
    schemata: "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n",
    "info/L3/cbm_mask": "fffff\n",
    "info/L3/min_cbm_bits": "2\n",
    "info/MB/min_bandwidth": "10\n",
    "info/last_cmd_status": "ok\n",
  };
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(join(resctrl, name, ".."), { recursive: true });
    writeFileSync(join(resctrl, name), text);
  }
});

const usual = `
partitions:
  exclusive:
    l3Allocation: "60%"
    mbAllocation: ["100%", "9000MBps"]
    classes:
      guaranteed:
  shared:
    l3Allocation: {all: "40%", 1: "20%"}
    mbAllocation: ["50%", "2000MBps"]
    classes:
      burstable: {l3Allocation: "100%"}
      besteffort: {l3Allocation: "50%", mbAllocation: {all: ["10%", "1000MBps"], "1-3": ["50%"]}}
`;

test("rdtHost() reads which resources can be partitioned", () => {
  expect(rdtHost(resctrl)).toEqual({
    caches: [{ name: "L3", ids: [0, 1], bits: 20, bitsMin: 2 }],
    bandwidth: { ids: [0, 1], percentMin: 10, inMBps: false },
  });
});

test("prepareRdtClass() creates the group with its share", () => {
  writeFileSync(file, usual);
  prepareRdtClass(file, "besteffort", resctrl);
  // The partition has bits 0 to 7, and 0 to 3 of cache 1.
  const text = readFileSync(join(resctrl, "besteffort/schemata"), "utf8");
  expect(text).toBe("L3:0=f;1=3\nMB:0=10;1=25\n");
  prepareRdtClass(file, "besteffort", resctrl);
});

const lines = (text: string, name: string, host: RdtHost = rdtHost(resctrl)) =>
  rdtSchemata(v.parse(RdtFile, parse(text)), name, host);

test.each([
  ["guaranteed", ["L3:0=fff00;1=ffff0", "MB:0=100;1=100"]],
  ["burstable", ["L3:0=ff;1=f", "MB:0=50;1=50"]],
])("%s gets its share of its partition", (name, expected) => {
  expect(lines(usual, name)).toEqual(expected);
});

test("shares can be bits, percent ranges, code and data, and MBps", () => {
  const text = `
partitions:
  a:
    l3Allocation: "0xff0"
    l2Allocation: {all: {unified: "100%", code: "50%", data: "50%"}}
    mbAllocation: ["100%", "9000MBps"]
    classes:
      bits: {l3Allocation: "0-3", mbAllocation: ["2%", "500MBps"]}
      range: {l3Allocation: "50-100%", l2Allocation: {0: {unified: "10%", code: "1%", data: "100%"}}}
  b: {l3Allocation: "12-19", l2Allocation: "50%", classes: {}}`;
  const l2 = { ids: [0], bits: 10, bitsMin: 1 };
  const host: RdtHost = {
    caches: [
      { name: "L2CODE", ...l2 },
      { name: "L2DATA", ...l2 },
      { name: "L3", ids: [0], bits: 20, bitsMin: 1 },
    ],
    bandwidth: { ids: [0], percentMin: 10, inMBps: true },
  };
  expect(lines(text, "bits", host)).toEqual(["L2CODE:0=1f", "L2DATA:0=1f", "L3:0=f0", "MB:0=500"]);
  expect(lines(text, "range", host)).toEqual([
    "L2CODE:0=1",
    "L2DATA:0=1f",
    "L3:0=f80",
    "MB:0=9000",
  ]);
});

test.each([
  ["partitions: {}", "x", "known: none"],
  [usual, "toString", "known: guaranteed, burstable, besteffort"],
  ["partitions: {a: {classes: {x: }}, b: {classes: {x: }}}", "x", "a and another"],
  ["partitions: {a: {l3Allocation: 60%, classes: {x: }}, b: {l3Allocation: 50%}}", "x", "110 %"],
  [
    "partitions: {a: {l3Allocation: 60%, classes: {x: }}, b: {}}",
    "x",
    "partition b does not configure",
  ],
  ["partitions: {a: {l3Allocation: 60%, classes: {x: }}, b: {l3Allocation: 0-3}}", "x", "either"],
  [
    "partitions: {a: {l3Allocation: 0-4, classes: {x: }}, b: {l3Allocation: 4-9}}",
    "x",
    "overlap in L3",
  ],
  ["partitions: {a: {l3Allocation: 0-20, classes: {x: }}}", "x", "exceeds L3"],
  ['partitions: {a: {l3Allocation: "0x5", classes: {x: }}}', "x", "no contiguous bits"],
  [
    "partitions: {a: {l3Allocation: 40%, classes: {x: {l3Allocation: 0-8}}}, b: {l3Allocation: 60%}}",
    "x",
    "not within",
  ],
  ["partitions: {a: {mbAllocation: [5MBps], classes: {x: }}}", "x", "has none in %"],
  [
    "options: {l2: {optional: false}}\npartitions: {a: {l2Allocation: 9%, classes: {x: }}}",
    "x",
    "L2",
  ],
  ["partitions: {a: {l3Allocation: much, classes: {x: }}}", "x", "partitions.a.l3Allocation"],
  ["partitions: {a: {speed: 5}}", "x", "partitions.a.speed"],
  ["][", "x", file],
  ["partitions: {a: {classes: {DEFAULT: }}}", "DEFAULT", "root group"],
])("%s: an impossible class is refused", (text, name, why) => {
  writeFileSync(file, text);
  const failure = codeAndMessage(() => prepareRdtClass(file, name, resctrl));
  expect(failure).toStartWith(`FAILED_PRECONDITION: rdt_class ${name}: `);
  expect(failure).toContain(why);
  expect(existsSync(join(resctrl, name))).toBe(false);
});

test("without a file only existing groups are classes; without resctrl there are none", () => {
  expect(codeAndMessage(() => prepareRdtClass("", "x", resctrl))).toContain("rdt-config-file");
  mkdirSync(join(resctrl, "x"));
  writeFileSync(join(resctrl, "x/schemata"), "");
  prepareRdtClass("", "x", resctrl);
  const none = codeAndMessage(() => prepareRdtClass(file, "x", join(dir, "none")));
  expect(none).toContain("is not mounted");
});
