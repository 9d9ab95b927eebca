// Tests single values of a configuration that is converted.
import { expect, test } from "bun:test";
import { migrated } from "../../../src/cli/config_migrate.ts";
import { leavesOf } from "../../../src/migrate/rules.ts";
import { load, useConfigFolder } from "../base/config_file.ts";

useConfigFolder();

test.each([
  [{ "log-level": "warn", debug: false }, "warn"],
  [{ debug: false }, undefined],
])("of Docker with %j has the log-level %s", (source, level) => {
  expect(migrated(JSON.stringify(source), "FILE").values["log-level"]).toBe(level!);
});

test("names a value without an equivalent as the source has it", () => {
  const { report } = migrated(
    "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nsnapshotter = 'zfs'",
    "F",
  );
  expect(report.at(-1)!.why).toMatch(/^"storage-driver" must be .*, not "zfs"$/);
});

test.each([
  ["version = 2", {}],
  ["version = 3", { "enable-cdi": true, "nri-support": true, "disable-connections": false }],
  [
    "[crio]",
    {
      "systemd-cgroup": "auto",
      "enable-cdi": true,
      "nri-support": true,
      "disable-connections": false,
    },
  ],
])("what is the source's default and not daemon.json's is set for %s", (source, expected) => {
  const { values, report } = migrated(source, "FILE");
  expect(values).toEqual(expected);
  const added = report.filter(({ key }) => key.endsWith(" (its default)"));
  expect(added.map(({ to }) => to)).toEqual(Object.keys(expected));
  load(values); // throws for what is invalid
});

test.each(["registry.k8s.io/pause:3.10", "k8s.gcr.io/pause@sha256:aa"])(
  "the other runtime's own pause image %s is left out",
  (value) => {
    const source = `[crio.image]\npause_image = "${value}"`;
    expect(migrated(source, "FILE").values).not.toHaveProperty("pod-sandbox-image");
  },
);

test("NRI that the source has disabled stays disabled", () => {
  const source = 'version = 3\ndisabled_plugins = ["io.containerd.nri.v1.nri"]';
  expect(migrated(source, "FILE").values).toEqual({ "enable-cdi": true, "nri-support": false });
  const { values } = migrated("[crio.nri]\nenable_nri = false", "FILE");
  expect(values).toMatchObject({ "nri-support": false });
  expect(values).not.toHaveProperty("disable-connections");
});

const reports = (source: string) => {
  const { values, report } = migrated(source, "FILE");
  const shown = report.filter(({ key }) => !key.endsWith("(its default)"));
  return { values, report: shown.map(({ key, to, why }) => [key.split(".").at(-1)!, to ?? why!]) };
};

test.each([
  ["/usr/bin/containerd-shim-kata-v2", "io.containerd.kata.v2"],
  ["/opt/kata/bin/containerd-shim-kata-qemu-v2", "io.containerd.kata-qemu.v2"],
  ["/usr/local/bin/containerd-shim-runsc-v1", "io.containerd.runsc.v1"],
])("CRI-O's shim %s has the type %s", (path, type) => {
  const { values, report } = reports(`[crio.runtime.runtimes.kata]
runtime_path = "${path}"
runtime_type = "vm"
runtime_config_path = "/etc/kata.toml"
privileged_without_host_devices = true
`);
  expect(values["runtimes"]).toEqual({
    kata: {
      "runtime-type": type,
      "runtime-path": path,
      "runtime-config-path": "/etc/kata.toml",
      "privileged-without-host-devices": true,
    },
  });
  expect(report).toEqual([
    ["runtime_path", "runtimes.kata.runtime-path"],
    ["runtime_type", "runtimes.kata.runtime-type"],
    ["runtime_config_path", "runtimes.kata.runtime-config-path"],
    ["privileged_without_host_devices", "runtimes.kata.privileged-without-host-devices"],
  ]);
  load(values); // throws for what is invalid
});

test("CRI-O's shim by its bare name is found by its type", () => {
  const { values, report } = reports(
    '[crio.runtime.runtimes.kata]\nruntime_type = "vm"\nruntime_path = "containerd-shim-kata-v2"',
  );
  expect(values["runtimes"]).toEqual({ kata: { "runtime-type": "io.containerd.kata.v2" } });
  expect(report.map(([, to]) => to)).toEqual(Array(2).fill("runtimes.kata.runtime-type"));
});

test.each(["", 'runtime_path = "/usr/bin/kata"', 'runtime_path = "/bin/containerd-shim-a+b-v2"'])(
  "CRI-O's shim without a name of a type has no entry: %s",
  (path) => {
    const source = `[crio.runtime.runtimes.kata]\n${path}\nruntime_type = "vm"\nprivileged_without_host_devices = true`;
    const { values, report } = reports(source);
    expect(values).not.toHaveProperty("runtimes");
    for (const [, why] of report) expect(why).toContain("named containerd-shim-X-Y");
  },
);

test("CRI-O's runtime that is no shim has a path, and its type a reason", () => {
  const { values, report } = reports(
    '[crio.runtime.runtimes.crun]\nruntime_type = "oci"\nruntime_path = "/usr/bin/crun"',
  );
  expect(values["runtimes"]).toEqual({ crun: { path: "/usr/bin/crun" } });
  expect(report).toEqual([
    ["runtime_type", "runtimes other than shims (vm) are called by their command line"],
    ["runtime_path", "runtimes.crun.path"],
  ]);
});

const metrics =
  'metrics_port = 9537\nmetrics_host = "10.0.0.1"\nmetrics_cert = "/c"\nmetrics_key = "/k"';
const tls = 'stream_tls_cert = "/c"\nstream_tls_key = "/k"';

test.each([
  [
    `[crio.metrics]\nenable_metrics = true\n${metrics}`,
    {
      "metrics-port": 9537,
      "metrics-address": "10.0.0.1",
      "metrics-tls-cert": "/c",
      "metrics-tls-key": "/k",
    },
  ],
  [`[crio.metrics]\nenable_metrics = false\n${metrics}`, {}],
  [`[crio.metrics]\n${metrics}`, {}],
  [
    `[crio.api]\nstream_enable_tls = true\n${tls}`,
    { "stream-tls-cert": "/c", "stream-tls-key": "/k" },
  ],
  [`[crio.api]\n${tls}`, {}],
])("what CRI-O's configuration has switched off stays off: %s", (source, expected) => {
  const { values, report } = migrated(source, "FILE");
  expect(values).toEqual({ ...migrated("[crio]", "FILE").values, ...expected });
  if (Object.keys(expected).length > 0) return;
  const reasons = report.filter(({ key }) => /metrics_|tls_/.test(key)).map(({ why }) => why);
  for (const why of reasons) expect(why).toMatch(/^it has no effect: \w+ is not true$/);
});

test("leavesOf() finds each value and each empty table", () => {
  const found = leavesOf({ a: { b: 1n, c: {} }, d: [1] });
  expect(found.map(({ path, value }) => [path.join("."), value])).toEqual([
    ["a.b", 1],
    ["a.c", {}],
    ["d", [1]],
  ]);
});
