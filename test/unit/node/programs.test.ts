// Tests which programs are missed on a node, and what is to be done.
import { expect, test } from "bun:test";
import type { Config } from "../../../src/base/config.ts";
import { checkPrograms } from "../../../src/doctor/pods.ts";
import type { Node } from "../../../src/doctor/node.ts";
import { missingPrograms } from "../../../src/node/programs.ts";

const off = { networkPlugin: "cni", systemdCgroup: false, selinuxEnabled: false } as Config;
const without = (names: string[], config = off) =>
  missingPrograms(config, (name) => !names.includes(name));

test("missingPrograms() finds each program with its effect and its package", () => {
  expect(without([])).toEqual([]);
  expect(without(["nsenter", "du"])).toEqual([
    {
      isRequired: true,
      problem: "nsenter is not installed: pods do not start",
      mend: "install the package util-linux",
    },
    {
      isRequired: false,
      problem: "du is not installed: containers have no disk statistics",
      mend: "install the package coreutils",
    },
  ]);
});

test("missingPrograms() accepts one of several, and misses only what the configuration uses", () => {
  expect(without(["ip"])).toEqual([]);
  expect(without(["ip", "ifconfig", "busybox"])).toHaveLength(1);
  expect(without(["systemctl", "chcon"])).toEqual([]);
  const on = { ...off, systemdCgroup: true, selinuxEnabled: true };
  expect(without(["systemctl", "chcon"], on).map(({ mend }) => mend)).toEqual([
    "install the package systemd",
    "install the package coreutils",
  ]);
});

test("doctor fails on what every pod needs, and warns of the rest", () => {
  const states = (names: string[]) => {
    const node = { isInstalled: (name: string) => !names.includes(name) } as Node;
    return checkPrograms(node, off).map(({ state, mend }) => `${state}: ${mend}`);
  };
  expect(states([])).toEqual(["ok: undefined"]);
  expect(states(["unshare", "tar"])).toEqual([
    "fail: install the package util-linux",
    "warn: install the package tar",
  ]);
});
