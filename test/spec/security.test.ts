import { describe, expect, test } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type {
  Capability,
  LinuxContainerResources,
  LinuxContainerSecurityContext,
} from "../../src/proto/types.ts";
import { capabilities, capabilityNames } from "../../src/spec/capabilities.ts";
import type { HostFacts } from "../../src/spec/facts.ts";
import { containerSpec } from "../../src/spec/oci.ts";
import { ociResources, oomScoreAdj } from "../../src/spec/resources.ts";
import {
  apparmorProfile,
  maskedPaths,
  seccompFilter,
  seccompProfileFile,
} from "../../src/spec/security.ts";
import { codeAndMessage, host, specInput } from "./facts.ts";

const { RuntimeDefault, Unconfined, Localhost } = runtime.v1.SecurityProfile.ProfileType;

describe("capabilities()", () => {
  const bounding = (asked: Capability, privileged = false, names = capabilityNames) =>
    capabilities(asked, privileged, names).bounding;

  test("adds and drops single names on top of ALL", () => {
    expect(bounding({ add_capabilities: ["ALL"], drop_capabilities: ["kill"] })).toEqual(
      capabilityNames.filter((name) => name !== "CAP_KILL"),
    );
    expect(bounding({ add_capabilities: ["CAP_KILL"], drop_capabilities: ["ALL"] })).toEqual([
      "CAP_KILL",
    ]);
    expect(bounding({ add_capabilities: ["KILL"], drop_capabilities: ["KILL"] })).not.toContain(
      "CAP_KILL",
    );
    expect(bounding({})).toHaveLength(14);
  });

  test("inherits nothing unless ambient is asked for", () => {
    const plain = capabilities({}, false, capabilityNames);
    expect([plain.inheritable, plain.ambient]).toEqual([[], []]);
    const ambient = capabilities(
      { drop_capabilities: ["ALL"], add_ambient_capabilities: ["NET_BIND_SERVICE"] },
      false,
      capabilityNames,
    );
    for (const set of Object.values(ambient)) expect(set).toEqual(["CAP_NET_BIND_SERVICE"]);
  });

  test("never exceeds what the daemon has", () => {
    const few = ["CAP_KILL", "CAP_SYS_ADMIN"];
    expect(bounding({}, false, few)).toEqual(["CAP_KILL"]);
    expect(bounding({}, true, few)).toEqual(few);
    const add = { add_capabilities: ["SYS_TIME"] };
    expect(codeAndMessage(() => bounding(add, false, few))).toContain("CAP_SYS_TIME");
    expect(codeAndMessage(() => bounding({ add_capabilities: ["X"] }))).toContain('"X"');
  });
});

describe("seccompFilter()", () => {
  const filter = (security: LinuxContainerSecurityContext, profileText?: string) =>
    seccompFilter(security, { bounding: [], profileText, host });

  test("prefers the typed field, and filters nothing when nothing is asked", () => {
    expect(filter({})).toBeUndefined();
    expect(filter({ seccomp_profile_path: "runtime/default" })?.defaultAction).toBe(
      "SCMP_ACT_ERRNO",
    );
    const both = { seccomp_profile_path: "runtime/default", seccomp: { profile_type: Unconfined } };
    expect(filter(both)).toBeUndefined();
    const privileged = { privileged: true, seccomp: { profile_type: RuntimeDefault } };
    expect(filter(privileged)).toBeUndefined();
  });

  test("reads a profile of the host's, by an absolute path", () => {
    const security = { seccomp: { profile_type: Localhost, localhost_ref: "/p.json" } };
    expect(seccompProfileFile(security)).toBe("/p.json");
    expect(filter(security, '{"defaultAction":"SCMP_ACT_ALLOW"}')?.defaultAction).toBe(
      "SCMP_ACT_ALLOW",
    );
    expect(codeAndMessage(() => filter(security, "{}"))).toContain("no defaultAction");
    expect(codeAndMessage(() => filter(security, "x"))).toContain("not JSON");
    const relative = { seccomp: { profile_type: Localhost, localhost_ref: "p.json" } };
    expect(codeAndMessage(() => seccompProfileFile(relative))).toContain("absolute");
    expect(codeAndMessage(() => filter({ seccomp_profile_path: "x" }))).toContain('"x"');
  });

  test("allows what a capability is for only with that capability", () => {
    const names = (bounding: string[]) =>
      seccompFilter(
        { seccomp: { profile_type: RuntimeDefault } },
        { bounding, profileText: undefined, host },
      )!.syscalls.flatMap((rule) => (rule.action === "SCMP_ACT_ALLOW" ? rule.names : []));
    expect(names([])).not.toContain("mount");
    expect(names(["CAP_SYS_ADMIN"])).toContain("mount");
    expect(names([])).toContain("openat2");
  });
});

describe("apparmorProfile()", () => {
  const local = { apparmor: { profile_type: Localhost, localhost_ref: "mine" } };
  const armed: HostFacts = { ...host, apparmor: { defaultProfile: "d", profiles: ["d", "mine"] } };

  test("is the host's default, or the loaded one asked for", () => {
    expect(apparmorProfile({}, armed)).toBe("d");
    expect(apparmorProfile(local, armed)).toBe("mine");
    expect(apparmorProfile({ apparmor_profile: "localhost/mine" }, armed)).toBe("mine");
    expect(apparmorProfile({ ...local, privileged: true }, armed)).toBeUndefined();
    expect(apparmorProfile({}, host)).toBeUndefined();
  });

  test("refuses a profile that is not loaded, or a host without AppArmor", () => {
    expect(codeAndMessage(() => apparmorProfile(local, host))).toContain("without AppArmor");
    const bare: HostFacts = { ...host, apparmor: { profiles: [] } };
    expect(codeAndMessage(() => apparmorProfile(local, bare))).toContain("not loaded");
  });
});

test("maskedPaths() adds nothing to lists that were given, empty ones too", () => {
  expect(maskedPaths({})).toEqual({ maskedPaths: [], readonlyPaths: [] });
  expect(maskedPaths({ masked_paths: ["/a"] }).maskedPaths).toEqual(["/a"]);
  expect(maskedPaths(undefined).maskedPaths).toContain("/proc/kcore");
});

describe("ociResources()", () => {
  const resources = (asked: LinuxContainerResources, facts: HostFacts = host) =>
    ociResources(asked, [], facts);

  test("limits swap together with memory unless asked otherwise", () => {
    const asked = { memory_limit_in_bytes: toLong(100n) };
    expect(resources(asked).memory).toEqual({ limit: 100n, swap: 100n });
    expect(resources(asked, { ...host, swapLimit: false }).memory).toEqual({ limit: 100n });
    const swap = { ...asked, memory_swap_limit_in_bytes: toLong(-1n) };
    expect(resources(swap).memory).toEqual({ limit: 100n, swap: -1n });
    const low = { ...asked, memory_swap_limit_in_bytes: toLong(99n) };
    expect(codeAndMessage(() => resources(low))).toContain("below memory_limit_in_bytes");
  });

  test("says nothing about what was not asked", () => {
    expect(resources({ cpu_shares: toLong(0n), unified: {}, cpuset_cpus: "" })).toEqual({
      devices: [],
    });
  });

  test("refuses limits that this host cannot hold", () => {
    const huge = { hugepage_limits: [{ page_size: "64KB", limit: toLong(1n) }] };
    expect(codeAndMessage(() => resources(huge))).toContain("2MB, 1GB");
    const unified = { unified: { "memory.high": "1" } };
    expect(codeAndMessage(() => resources(unified, { ...host, cgroupVersion: 1 }))).toContain("v2");
    const path = { unified: { "../cgroup.procs": "1" } };
    expect(codeAndMessage(() => resources(path))).toStartWith("INVALID_ARGUMENT");
  });

  test("oomScoreAdj() is clamped only where the configuration says so", () => {
    const facts = { ...host, oomScoreAdj: 0 };
    expect(oomScoreAdj(-998n, facts, true)).toBe(0);
    expect(oomScoreAdj(-998n, facts, false)).toBe(-998);
    expect(codeAndMessage(() => oomScoreAdj(1001n, facts, true))).toContain("1001");
  });
});

test("containerDevices() allows what was asked and refuses permissions that are none", () => {
  const device = { container_path: "/dev/x", host_path: "/dev/x", permissions: "rx" };
  const input = specInput({ devices: [device] });
  expect(codeAndMessage(() => containerSpec(input))).toContain('"rx"');
});
