// Tests the guard that keeps mutated requests from harming the machine on which the fuzzer runs.
import { expect, test } from "bun:test";
import { random } from "../random.ts";
import { type Ground, harmOf } from "./guard.ts";
import { requestOf, type World } from "./requests.ts";
import { chanceOf, pick } from "./values.ts";
import { encode, Raw, rpcOf, rpcs, type Tree } from "./wire.ts";

const ground: Ground = { dir: "/tmp/fuzz/a/b", cgroupParent: "/fuzz" };

function harm(name: string, tree: Tree): string | undefined {
  const rpc = rpcOf(name);
  return harmOf(rpc, encode(rpc.request, tree), ground);
}
const pod = (config: Tree) => harm("RunPodSandbox", { config });
const container = (config: Tree) => harm("CreateContainer", { config });

test.each([
  ["a host path", () => container({ mounts: [{ host_path: "/etc" }] })],
  [
    "one that leads out",
    () => container({ mounts: [{ host_path: "/tmp/fuzz/a/b/../../../etc" }] }),
  ],
  ["one that only begins alike", () => container({ mounts: [{ host_path: "/tmp/fuzz/a/bc" }] })],
  ["the second of two mounts", () => container({ mounts: [{}, { host_path: "/" }] })],
  ["a disk as device", () => container({ devices: [{ host_path: "/dev/sda" }] })],
  ["a log folder", () => pod({ log_directory: "/var/log" })],
  ["a path cut at a NUL", () => pod({ log_directory: "/tmp\0/../tmp/fuzz/a/b" })],
  ["a log file outside", () => container({ log_path: "../../../../etc/passwd" })],
  ["a file to write", () => harm("Save", { path: "/etc/passwd" })],
  ["a checkpoint", () => harm("CheckpointContainer", { location: "/etc/x" })],
  ["a relative path", () => harm("Save", { path: "etc/passwd" })],
  ["bytes that decode to a path", () => harm("Save", { path: new Raw(Buffer.from("/etc/\xFF")) })],
  ["another cgroup parent", () => pod({ linux: { cgroup_parent: "/kubepods" } })],
  ["a cgroup parent outside", () => pod({ linux: { cgroup_parent: "/fuzz/../x" } })],
  ["a sysctl of nobody", () => pod({ linux: { sysctls: [["vm.swappiness", "1"]] } })],
  [
    "a sysctl of the host's network",
    () =>
      pod({
        linux: {
          sysctls: [["net.ipv4.ip_unprivileged_port_start", "1"]],
          security_context: { namespace_options: { network: 2n } },
        },
      }),
  ],
  ["a privileged pod", () => pod({ linux: { security_context: { privileged: true } } })],
  [
    "the host's processes",
    () => container({ linux: { security_context: { namespace_options: { pid: 2n } } } }),
  ],
  ["a host port", () => pod({ port_mappings: [{ host_port: 22n }] })],
])("refuses %s", (_, ask) => {
  expect(ask()).toBeString();
});

test.each([
  ["a path in the ground", () => container({ mounts: [{ host_path: "/tmp/fuzz/a/b/volume" }] })],
  ["a harmless device", () => container({ devices: [{ host_path: "/dev/null" }] })],
  ["a hostile path in the container", () => container({ mounts: [{ container_path: "/../etc" }] })],
  ["a log file", () => container({ log_path: "a/b.log" })],
  ["a cgroup parent of its own", () => pod({ linux: { cgroup_parent: "/fuzz/pod\0x" } })],
  ["a sysctl that is none", () => pod({ linux: { sysctls: [["", "\uD800"]] } })],
  ["a request that does not decode", () => harmOf(rpcOf("Save"), Buffer.from([0x12, 9]), ground)],
])("lets %s pass", (_, ask) => {
  expect(ask()).toBeUndefined();
});

test("no request that is sent names a path outside the ground", () => {
  const world: World = {
    ...ground,
    pods: ["p"],
    containers: ["c"],
    images: ["i"],
    handlers: [""],
    files: [`${ground.dir}/file`],
  };
  const chance = chanceOf(random(7));
  let refused = 0;
  for (let left = 500; left > 0; left--) {
    const rpc = pick(chance, rpcs);
    const { bytes } = requestOf(rpc, world, chance, () => refused++);
    expect(harmOf(rpc, bytes, ground)).toBeUndefined();
    expect(bytes.includes("/etc/passwd")).toBe(false);
  }
  expect(refused).toBeGreaterThan(0);
  expect(refused).toBeLessThan(400);
});
