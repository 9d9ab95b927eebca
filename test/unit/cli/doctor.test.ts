// Tests the output and the exit code of isulad-ts doctor.
import { expect, test } from "bun:test";
import { exitCodeOf, findingsText } from "../../../src/cli/doctor.ts";
import type { Finding } from "../../../src/doctor/node.ts";

test("doctor prints a line for each finding, and one more to mend a fault", () => {
  expect(
    findingsText(
      [
        { check: "kernel", state: "ok", detail: "6.1" },
        { check: "ip_forward", state: "fail", detail: "it is 0\nreally", mend: "sysctl" },
      ],
      Infinity,
    ),
  ).toBe(
    "ok    kernel      6.1\nFAIL  ip_forward  it is 0; really\n                  mend: sysctl",
  );
});

test("doctor breaks long lines between words, for the columns of a terminal", () => {
  const detail = "version 1.1.5 has CVE-2024-21626";
  const findings: Finding[] = [
    { check: "runc", state: "warn", detail, mend: "install a newer one" },
  ];
  expect(findingsText(findings, 36)).toBe(
    [
      "warn  runc  version 1.1.5 has",
      "            CVE-2024-21626",
      "            mend: install a newer",
      "            one",
    ].join("\n"),
  );
});

test("doctor fails for a failure, and not for a warning", () => {
  const finding = (state: Finding["state"]): Finding => ({ check: "c", state, detail: "d" });
  expect(exitCodeOf([finding("ok"), finding("warn")])).toBe(0);
  expect(exitCodeOf([finding("ok"), finding("fail"), finding("ok")])).toBe(1);
});
