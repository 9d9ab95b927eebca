// Tests the limit of open files in the final spec of a container.
import { expect, test } from "bun:test";
import process from "node:process";
import { withOpenFilesLimit } from "../../../src/cri/spec_inputs.ts";
import type { OciRlimit } from "../../../src/spec/oci_types.ts";
import { containerSpec } from "../../../src/spec/oci.ts";
import { processLimit } from "../../../src/sys/process.ts";
import { host, specInput } from "../../spec/inputs.ts";

const context = { monitor: { pid: process.pid }, host } as Parameters<typeof withOpenFilesLimit>[0];
const type = "RLIMIT_NOFILE";
const { hard } = processLimit(process.pid, "open files")!;
const usual = { type, soft: BigInt(Math.min(1_024, hard)), hard: BigInt(hard) };
const core = { type: "RLIMIT_CORE", soft: 0n, hard: 0n };
const requested = { type, soft: 7n, hard: 9n };

test.each<[string, "oci" | "shim" | "guest", OciRlimit[] | undefined, OciRlimit[] | undefined]>([
  ["none set", "oci", undefined, [usual]],
  ["none set, by a shim", "shim", undefined, [usual]],
  ["another one set", "oci", [core], [core, usual]],
  ["set by configuration, base spec or plugin", "oci", [requested], [requested]],
  ["in a guest", "guest", undefined, undefined],
])("%s", (_, runtimeKind, rlimits, expected) => {
  const spec = containerSpec(specInput({}));
  const given = { ...spec, process: { ...spec.process, ...(rlimits ? { rlimits } : {}) } };
  expect(withOpenFilesLimit(context, { runtimeKind }, given).process.rlimits).toEqual(expected);
});
