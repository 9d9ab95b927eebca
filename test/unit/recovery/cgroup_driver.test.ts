// Tests that the daemon refuses a cgroup driver other than the one with which the recorded pods were made.
import { describe, expect, test } from "bun:test";
import { refuseOtherDriver, refuseUnusableDriver } from "../../../src/recovery/cgroup_driver.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

type Records = Parameters<typeof refuseOtherDriver>[2];
type Driver = "systemd" | "cgroupfs";

function pod(id: string, driver: Driver, bootId = "boot"): Records["sandboxes"][number] {
  return { id, name: `${id}-name`, bootId, cgroup: { driver, parent: "" } };
}

function container(
  id: string,
  sandboxId: string,
  cgroupDriver?: Driver,
  bootId = "boot",
): Records["containers"][number] {
  return { id, name: `${id}-name`, bootId, sandboxId, cgroupDriver };
}

function refusal(driver: Driver, records: Records): string {
  return codeAndMessage(() => refuseOtherDriver(driver, "boot", records, true));
}

function accepts(driver: Driver, records: Records): void {
  expect(() => refuseOtherDriver(driver, "boot", records, true)).not.toThrow();
}

test("records of the same driver, and a node without records, are accepted", () => {
  accepts("systemd", { sandboxes: [], containers: [] });
  const containers = [container("c", "p", "systemd"), container("old", "p")];
  accepts("systemd", { sandboxes: [pod("p", "systemd")], containers });
});

test("records of an earlier boot are accepted, whichever driver made them", () => {
  const sandboxes = [pod("p", "cgroupfs", "before")];
  accepts("systemd", { sandboxes, containers: [container("c", "p", "cgroupfs", "before")] });
});

test("pods and containers of the other driver are refused by name, with the way out", () => {
  const records = {
    sandboxes: [pod("p", "cgroupfs")],
    containers: [container("c", "p", "cgroupfs")],
  };
  const message = refusal("systemd", records);
  expect(message).toContain("FAILED_PRECONDITION: the cgroup driver is configured as systemd");
  expect(message).toContain("container c (c-name), pod p (p-name). Start");
  expect(message).toContain('"systemd-cgroup": false');
  expect(refusal("cgroupfs", { sandboxes: [pod("p", "systemd")], containers: [] })).toContain(
    '"systemd-cgroup": true',
  );
});

test("a container whose record names no driver has its pod's", () => {
  const message = refusal("systemd", {
    sandboxes: [pod("p", "cgroupfs")],
    containers: [container("old", "p")],
  });
  expect(message).toContain("container old (old-name)");
});

test("a container without a pod and without a driver is accepted", () => {
  accepts("systemd", { sandboxes: [], containers: [container("c", "p")] });
});

test("at most 20 are named, and the others counted", () => {
  const sandboxes = (count: number) =>
    Array.from({ length: count }, (_, index) => pod(`p${index}`, "cgroupfs"));
  expect(refusal("systemd", { sandboxes: sandboxes(20), containers: [] })).not.toContain(" more");
  expect(refusal("systemd", { sandboxes: sandboxes(21), containers: [] })).toContain("and 1 more");
});

describe("on a host without systemd", () => {
  test("pods of systemd's driver, which never had a cgroup, do not keep cgroupfs from starting", () => {
    const records = { sandboxes: [pod("p", "systemd")], containers: [container("c", "p")] };
    expect(() => refuseOtherDriver("cgroupfs", "boot", records, false)).not.toThrow();
    const ofCgroupfs = { sandboxes: [pod("p", "cgroupfs")], containers: [] };
    const refused = () => refuseOtherDriver("systemd", "boot", ofCgroupfs, false);
    expect(codeAndMessage(refused)).toContain('"systemd-cgroup": false');
  });

  test.each<[Driver, string, boolean, boolean]>([
    ["systemd", "none", false, true],
    ["systemd", "before", false, true],
    ["systemd", "boot", false, false],
    ["systemd", "none", true, false],
    ["cgroupfs", "none", false, false],
  ])("%s with pods of boot %s (systemd: %p): refused %p", (driver, boot, hasSystemd, expected) => {
    const sandboxes = boot === "none" ? [] : [pod("p", "systemd", boot)];
    const start = () => refuseUnusableDriver(driver, "boot", { sandboxes }, hasSystemd);
    if (expected) expect(codeAndMessage(start)).toMatch(/^FAILED_PRECONDITION: .*"auto"/);
    else expect(start).not.toThrow();
  });
});
