// Tests the parsing of mountinfo, and the mount point of a path.
import { expect, test } from "bun:test";
import { mountOf, mountPoints, readMountTable } from "../../../src/sys/mount_table.ts";

const table = readMountTable(
  [
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw",
    "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup rw,nsdelegate",
    "40 22 8:17 / /data rw,relatime shared:1 master:2 - xfs /dev/sdb1 rw,prjquota",
    "41 22 0:50 / /data/a\\040b\\134c rw - nfs4 server:/a\\040b rw,hard",
    "42 40 8:33 / /data rw unbindable - ext4 /dev/sdc1 rw",
    "43 22 0:60 / /empty rw - tmpfs  rw",
    "",
  ].join("\n"),
);

test("a line of mountinfo is read whole, octal characters and all", () => {
  expect(table).toHaveLength(6);
  expect(table[2]).toEqual({
    device: "8:17",
    point: "/data",
    tags: ["shared:1", "master:2"],
    type: "xfs",
    source: "/dev/sdb1",
    options: "rw,prjquota",
  });
  expect(table[3]).toMatchObject({ point: "/data/a b\\c", source: "server:/a b", type: "nfs4" });
  expect(table[5]).toMatchObject({ point: "/empty", source: "", options: "rw", tags: [] });
});

test("a path lies on the longest mount point, of equal ones on the last", () => {
  const device = (path: string) => mountOf(path, table)?.device;
  expect(device("/")).toBe("8:1");
  expect(device("/database")).toBe("8:1");
  expect(device("/data")).toBe("8:33");
  expect(device("/data/x/y")).toBe("8:33");
  expect(device("/data/a b\\c/x")).toBe("0:50");
  expect(mountOf("/", [])).toBeUndefined();
});

test("this node's own table has its mount points", () => {
  expect(mountOf("/proc/self", readMountTable())?.type).toBe("proc");
  expect(mountPoints("/proc")[0]).toBe("/proc");
  expect(mountPoints("/pro")).toEqual([]);
});
