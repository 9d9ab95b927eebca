// Tests that each key of containerd's default configuration has a rule (an equivalent, or its own reason for none), and
// that no part of a value is dropped in silence.
import { expect, test } from "bun:test";
import { stringify } from "smol-toml";
import { migrated } from "../../../src/cli/config_migrate.ts";
import { requiredNames } from "../required_names.ts";

/** The parts of a name on docs/coverage.md that stand for a plugin or a table. */
const parts: Record<string, string> = {
  nri: "plugins/io.containerd.nri.v1.nri",
  "image-verifier": "plugins/io.containerd.image-verifier.v1.bindir",
  "tasks-service": "plugins/io.containerd.service.v1.tasks-service",
  "diff-service": "plugins/io.containerd.service.v1.diff-service",
  overlayfs: "plugins/io.containerd.snapshotter.v1.overlayfs",
  native: "plugins/io.containerd.snapshotter.v1.native",
  blockfile: "plugins/io.containerd.snapshotter.v1.blockfile",
  btrfs: "plugins/io.containerd.snapshotter.v1.btrfs",
  zfs: "plugins/io.containerd.snapshotter.v1.zfs",
  devmapper: "plugins/io.containerd.snapshotter.v1.devmapper",
  "gc.scheduler": "plugins/io.containerd.gc.v1.scheduler",
  restart: "plugins/io.containerd.monitor.container.v1.restart",
  opt: "plugins/io.containerd.internal.v1.opt",
  "internal.tracing": "plugins/io.containerd.internal.v1.tracing",
  "tracing.processor.otlp": "plugins/io.containerd.tracing.processor.v1.otlp",
  metadata: "plugins/io.containerd.metadata.v1.bolt",
  "task.cgroups": "plugins/io.containerd.monitor.task.v1.cgroups",
  task: "plugins/io.containerd.runtime.v2.task",
  "shim.manager": "plugins/io.containerd.shim.v1.manager",
  "transfer.local": "plugins/io.containerd.transfer.v1.local",
  stream_processors: "stream_processors/one",
  x509_key_pair_streaming: "x509_key_pair_streaming",
  "registry.mirrors": "registry/mirrors/r.test/endpoint",
  "registry.configs": "registry/configs/r.test/tls/ca_file",
};

const runtime = "plugins/io.containerd.cri.v1.runtime";
const sections: [heading: string, prefix: string][] = [
  ["The daemon", ""],
  ["Images (io.containerd.cri.v1.images)", "plugins/io.containerd.cri.v1.images/"],
  ["Containers (io.containerd.cri.v1.runtime)", `${runtime}/`],
  ["A runtime (runtimes.runc)", `${runtime}/containerd/runtimes/runc/`],
  ["Streams (io.containerd.grpc.v1.cri)", "plugins/io.containerd.grpc.v1.cri/"],
  ["Other parts", ""],
];

/** Returns the paths of the keys that a line of requiredNames lists. */
function pathsOf(line: string, prefix: string): string[] {
  const names = line.trim().split(" ");
  const [first = "", ...rest] = names;
  const part = parts[first];
  if (part !== undefined && rest.length > 0 && !rest.some((name) => name in parts)) {
    return rest.map((name) => `${prefix}${part}/${name}`);
  }
  return names.map((name) => prefix + pathOf(name));
}

function pathOf(name: string): string {
  if (parts[name] !== undefined) return parts[name];
  const part = Object.keys(parts)
    .filter((one) => name.startsWith(`${one}.`))
    .toSorted((a, b) => b.length - a.length)[0];
  if (part !== undefined) return `${parts[part]}/${name.slice(part.length + 1)}`;
  if (name.startsWith("timeouts.")) return `timeouts/io.containerd.timeout.${name.slice(9)}`;
  return /^[A-Z]/.test(name) ? `options/${name}` : name.replaceAll(".", "/");
}

test.each(sections)("%s: each key has a rule", (heading, prefix) => {
  const paths = requiredNames[heading]!.trim()
    .split("\n")
    .flatMap((line) => pathsOf(line, prefix));
  const generic = paths.filter((path) => {
    const value = path.split("/").reduceRight<unknown>((inner, name) => ({ [name]: inner }), "x");
    const { report } = migrated(stringify({ ...(value as object), version: 3 }), "FILE");
    return report.some(({ why }) => why?.startsWith("isulad-ts has no such part"));
  });
  expect(generic).toEqual([]);
  expect(paths.length).toBeGreaterThan(5);
});

/** What the default configuration of containerd 2.4 has that 2.0's has not. */
const since24 = [
  ["debug/log_trace_id", "images/concurrent_layer_fetch_buffer", "images/use_local_image_pull"],
  ["runtime/stats_retention_period", "runtime/enable_criu"],
  ["runtime/containerd/runtimes/runc/disable_pause_image_pull"],
  ["runtime/containerd/runtimes/runc/cgroup_writable"],
  ["plugins/io.containerd.differ.v1.erofs/mkfs_options"],
  ["plugins/io.containerd.mount-handler.v1.erofs", "plugins/io.containerd.snapshotter.v1.erofs/a"],
  ["plugins/io.containerd.metrics.v1.grpc-prometheus/grpc_histogram"],
  ["plugins/io.containerd.nri.v1.nri/default_validator/enable"],
  ["debug/address", "grpc-tcp/address", "ttrpc/uid"].map((one) => `server/${one}`),
].flat();

test.each(since24)("%s of version 4 has a rule", (name) => {
  const path = name
    .replace(/^(images|runtime)\//, "plugins/io.containerd.cri.v1.$1/")
    .replace(/^server\//, "plugins/io.containerd.server.v1.");
  const value = path.split("/").reduceRight<unknown>((inner, one) => ({ [one]: inner }), {});
  const { report } = migrated(stringify({ ...(value as object), version: 4 }), "FILE");
  expect(report[0]?.why).not.toMatch(/^$|has no such part/);
});

/** What the default configuration of containerd 1.7 has that 2.0's has not; the first has an equivalent. */
const until17 = [
  "containerd/discard_unpacked_layers",
  "containerd/disable_snapshot_annotations",
  "containerd/no_pivot",
  "containerd/default_runtime/runtime_type",
  "containerd/untrusted_workload_runtime/options",
  "disable_cgroup",
  "systemd_cgroup",
  "registry/auths",
  "registry/configs",
  "registry/headers",
];

test.each(until17)("%s of version 2 has a rule", (name) => {
  const cri = name.split("/").reduceRight<unknown>((inner, one) => ({ [one]: inner }), false);
  const plugins = { "io.containerd.grpc.v1.cri": cri };
  const { values, report } = migrated(stringify({ version: 2, plugins }), "FILE");
  expect(report.at(-1)?.why ?? "").not.toContain("has no such part");
  expect(values).toEqual(name === until17[0] ? { "keep-blobs": true } : {});
});

test("the servers of version 4 are the tables of version 3", () => {
  const grpc = { uid: 7, gid: 8, max_recv_message_size: 1 << 20 };
  const metrics = { address: "127.0.0.1:1338" };
  const plugins = {
    "io.containerd.server.v1.grpc": grpc,
    "io.containerd.server.v1.metrics": metrics,
  };
  const { values } = migrated(stringify({ version: 4, plugins }), "FILE");
  expect(values).toEqual(migrated(stringify({ version: 3, grpc, metrics }), "FILE").values);
  expect(values).toMatchObject({ "socket-uid": 7, group: "8", "metrics-port": 1338 });
});

test("root's group and an unknown snapshotter are reported with their value", () => {
  const whyOf = (tree: object) =>
    migrated(stringify({ version: 3, ...tree }), "FILE").report.map(({ why }) => why);
  expect(whyOf({ grpc: { gid: 0 } })).toContain(
    "only root and socket-uid may use the socket, by default",
  );
  const images = { "io.containerd.cri.v1.images": { snapshotter: "zfs" } };
  expect(whyOf({ plugins: images })).toContainEqual(expect.stringMatching(/, not "zfs"$/));
});

test.each([
  ["10.0.0.1:1338", { "metrics-port": 1338, "metrics-address": "10.0.0.1" }, "metrics-address"],
  ["[fd00::1]:1338", { "metrics-port": 1338, "metrics-address": "fd00::1" }, "metrics-address"],
  ["127.0.0.1:1338", { "metrics-port": 1338 }, "metrics-port"],
  ["0.0.0.0:1338", { "metrics-port": 1338 }, 'on 127.0.0.1: "metrics-address" must be'],
  [":1338", { "metrics-port": 1338 }, 'on 127.0.0.1: "metrics-address" must be'],
])("of metrics.address %p no part is dropped in silence", (address, expected, told) => {
  const { values, report } = migrated(stringify({ version: 2, metrics: { address } }), "FILE");
  expect(values).toEqual(expected);
  expect(report.find(({ key }) => key === "metrics.address")?.to).toContain(told);
  expect(migrated(JSON.stringify({ "metrics-addr": address }), "FILE").values).toEqual(expected);
});

test.each([
  ["/c", "registry-config-path"],
  [":/c:", "registry-config-path"],
  [
    "/c:/d:/e",
    "registry-config-path, which takes one folder: copy into it what it lacks of /d, /e",
  ],
])("of the folders of hosts.toml %s the first is taken, and others are named", (path, told) => {
  const registry = { config_path: path };
  const plugins = { "io.containerd.grpc.v1.cri": { registry } };
  const { values, report } = migrated(stringify({ version: 2, plugins }), "FILE");
  expect(values).toEqual({ "registry-config-path": "/c" });
  expect(report.at(-1)?.to).toBe(told);
});
