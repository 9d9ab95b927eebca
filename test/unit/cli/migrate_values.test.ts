// Tests single values of a configuration that is converted.
import { expect, test } from "bun:test";
import { migrated } from "../../../src/cli/config_migrate.ts";

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
