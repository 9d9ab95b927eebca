// Tests the comparison of OCI specs, with what NRI plugins change.
import { expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import type { ContainerAdjustment } from "../../../src/proto/nri_types.ts";
import { adjustedSpec } from "../../../src/spec/nri_adjustment.ts";
import { containerSpec, ociJson, parseOciSpec } from "../../../src/spec/oci.ts";
import { resourceChanges, specChanges } from "../../../src/spec/spec_changes.ts";
import { host, specInput } from "../../spec/inputs.ts";

const before = containerSpec(specInput({ envs: [{ key: "OLD", value: Buffer.from("a=b") }] }));
const options = { host, ociVersion: "1.3.0", resctrl: true, restrictOomScoreAdj: false };

/** Compares with a copy, too: a spec that was read from a file shares nothing. */
function changed(adjust: ContainerAdjustment) {
  const after = adjustedSpec(before, adjust, options);
  const changes = specChanges(before, after);
  expect(specChanges(parseOciSpec(ociJson(before)), parseOciSpec(ociJson(after)))).toEqual(changes);
  return changes;
}

test("equal specs have no changes, whether they share their parts or not", () => {
  expect(changed({})).toEqual([]);
});

test("env is compared by name: added, changed and removed", () => {
  const env = [
    { key: "NEW", value: "" },
    { key: "constructor", value: "1" },
    { key: "OLD", value: "c" },
    { key: "-PATH", value: "" },
  ];
  expect(changed({ env })).toEqual([
    { path: "process.env[PATH]", before: expect.stringContaining("/bin") },
    { path: "process.env[OLD]", before: "a=b", after: "c" },
    { path: "process.env[NEW]", after: "" },
    { path: "process.env[constructor]", after: "1" },
  ]);
});

test("keys of annotations and sysctls are in brackets: they have dots", () => {
  const annotations = { "a.example/b": "1" };
  const sysctl = { "net.core.somaxconn": "1" };
  expect(changed({ annotations, linux: { sysctl } })).toEqual([
    { path: "annotations[a.example/b]", after: "1" },
    { path: "linux.sysctl[net.core.somaxconn]", after: "1" },
  ]);
});

test("a mount is added and removed as a whole, of a changed one the fields are named", () => {
  const destination = "/dev/shm";
  const old = before.mounts.find((mount) => mount.destination === destination)!;
  const mounts = [
    { destination, type: old.type!, source: "other", options: old.options! },
    { destination: "/data", type: "bind", source: "/srv", options: ["rbind"] },
    { destination: "-/proc" },
  ];
  const proc = before.mounts.find((mount) => mount.destination === "/proc");
  const after = { destination: "/data", type: "bind", source: "/srv", options: ["rbind"] };
  expect(changed({ mounts }).toSorted((a, b) => (a.path < b.path ? -1 : 1))).toEqual([
    { path: "mounts[/data]", after },
    { path: "mounts[/dev/shm].source", before: old.source, after: "other" },
    { path: "mounts[/proc]", before: proc },
  ]);
});

test("args are one field; hooks and the rules of devices are named by their places", () => {
  const device = { path: "/dev/x", type: "c", major: toLong(1), minor: toLong(2) };
  const place = before.linux.resources.devices.length;
  expect(
    changed({
      args: ["other", "-x"],
      hooks: { create_runtime: [{ path: "/h", args: ["h"] }, { path: "/i" }] },
      linux: { devices: [device] },
    }),
  ).toEqual([
    { path: "process.args", before: before.process.args, after: ["other", "-x"] },
    {
      path: "linux.devices[/dev/x]",
      after: expect.objectContaining({ type: "c", major: 1, minor: 2 }),
    },
    {
      path: `linux.resources.devices[${place}]`,
      after: { allow: true, type: "c", major: 1, minor: 2, access: "rwm" },
    },
    { path: "hooks.createRuntime[0]", after: { path: "/h", args: ["h"] } },
    { path: "hooks.createRuntime[1]", after: { path: "/i" } },
  ]);
});

test("limits are named by their fields, with every digit", () => {
  const reservation = { value: toLong(9007199254740993n) };
  const adjust = { linux: { resources: { memory: { reservation }, pids: { limit: toLong(20) } } } };
  expect(changed(adjust)).toEqual([
    { path: "linux.resources.memory.reservation", after: 9007199254740993n },
    { path: "linux.resources.pids.limit", after: 20n },
  ]);
});

test("resources have the paths of the whole spec", () => {
  const cpu = { shares: 2n, cpus: "0" };
  const pages = (limit: bigint) => [{ pageSize: "2MB", limit }];
  expect(
    resourceChanges(
      { cpu, hugepageLimits: pages(0n) },
      { cpu: { shares: 3n }, hugepageLimits: pages(1n) },
    ),
  ).toEqual([
    { path: "linux.resources.cpu.shares", before: 2n, after: 3n },
    { path: "linux.resources.cpu.cpus", before: "0" },
    { path: "linux.resources.hugepageLimits[2MB]", before: 0n, after: 1n },
  ]);
});
