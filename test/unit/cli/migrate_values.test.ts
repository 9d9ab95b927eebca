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

test("leavesOf() finds each value and each empty table", () => {
  const found = leavesOf({ a: { b: 1n, c: {} }, d: [1] });
  expect(found.map(({ path, value }) => [path.join("."), value])).toEqual([
    ["a.b", 1],
    ["a.c", {}],
    ["d", [1]],
  ]);
});
