// Tests capabilities, seccomp filters, AppArmor profiles, masked paths and resources in specs.
import { describe, expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import { runtime } from "../../../src/proto/messages.js";
import type {
  Capability,
  LinuxContainerResources,
  LinuxContainerSecurityContext,
} from "../../../src/proto/types.ts";
import { capabilities, capabilityNames } from "../../../src/spec/capabilities.ts";
import type { OciSeccompArg } from "../../../src/spec/oci_types.ts";
import type { HostInfo } from "../../../src/spec/spec_inputs.ts";
import { containerSpec } from "../../../src/spec/oci.ts";
import { ociResources, oomScoreAdj } from "../../../src/spec/resources.ts";
import {
  apparmorProfile,
  maskedPaths,
  namesApparmorProfile,
  seccompFilter,
  seccompProfileFile,
  wantsDefaultApparmor,
} from "../../../src/spec/security.ts";
import { codeAndMessage, nothingResolved, host, specInput } from "../../spec/inputs.ts";

const allow = "SCMP_ACT_ALLOW";
const { RuntimeDefault, Unconfined, Localhost } = runtime.v1.SecurityProfile.ProfileType;

describe("capabilities()", () => {
  const bounding = (requested: Capability, privileged = false, names = capabilityNames) =>
    capabilities(requested, privileged, names).bounding;

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

  test("makes only ambient capabilities inheritable", () => {
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

  test("prefers the typed field, and is unconfined by default", () => {
    expect(filter({})).toBeUndefined();
    expect(filter({ seccomp_profile_path: "runtime/default" })?.defaultAction).toBe(
      "SCMP_ACT_ERRNO",
    );
    const both = { seccomp_profile_path: "runtime/default", seccomp: { profile_type: Unconfined } };
    expect(filter(both)).toBeUndefined();
    const privileged = { privileged: true, seccomp: { profile_type: RuntimeDefault } };
    expect(filter(privileged)).toBeUndefined();
  });

  test("parses a Localhost profile, whose path must be absolute", () => {
    const security = { seccomp: { profile_type: Localhost, localhost_ref: "/p.json" } };
    expect(seccompProfileFile(security)).toBe("/p.json");
    const typed = { profile_type: Localhost, localhost_ref: "localhost//p.json" };
    expect(seccompProfileFile({ seccomp: typed })).toBe("/p.json");
    expect(filter(security, '{"defaultAction":"SCMP_ACT_ALLOW"}')?.defaultAction).toBe(
      "SCMP_ACT_ALLOW",
    );
    expect(codeAndMessage(() => filter(security, "{}"))).toContain("defaultAction");
    expect(codeAndMessage(() => filter(security, "x"))).toContain("not JSON");
    const rule = (rest: string) =>
      `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_ERRNO"${rest}}]}`;
    const arg = '"args":[{"index":0,"value":18446744073709551615,"op":"SCMP_CMP_EQ"}]';
    expect(filter(security, rule(`,${arg}`))!.syscalls![0]!.args![0]!.value).toBe(2n ** 64n - 1n);
    expect(filter(security, rule(',"args":null'))!.syscalls).toHaveLength(1);
    for (const [text, field] of [
      ['{"defaultAction":"ALLOW"}', "defaultAction"],
      [rule(',"errnoRet":-1'), "syscalls.0.errnoRet"],
      [rule(`,${arg.replace("EQ", "IS")}`), "syscalls.0.args.0.op"],
      [rule("").replace('"read"', ""), "syscalls.0.names"],
    ] as const) {
      expect(codeAndMessage(() => filter(security, text))).toStartWith(
        `INVALID_ARGUMENT: seccomp profile /p.json: ${field}: `,
      );
    }
    const relative = { seccomp: { profile_type: Localhost, localhost_ref: "p.json" } };
    expect(codeAndMessage(() => seccompProfileFile(relative))).toContain("absolute");
    expect(codeAndMessage(() => filter({ seccomp_profile_path: "x" }))).toContain('"x"');
  });

  test("allows privileged system calls only with their capability", () => {
    const names = (bounding: string[]) =>
      seccompFilter(
        { seccomp: { profile_type: RuntimeDefault } },
        { bounding, profileText: undefined, host },
      )!.syscalls!.flatMap((rule) => (rule.action === allow ? rule.names : []));
    expect(names([])).not.toContain("mount");
    expect(names(["CAP_SYS_ADMIN"])).toContain("mount");
    expect(names([])).toContain("openat2");
  });

  test("allows sockets of every address family but AF_ALG and AF_VSOCK, one condition a rule", () => {
    const rules = filter({ seccomp: { profile_type: RuntimeDefault } })!.syscalls!.filter(
      ({ names }) => names.includes("socket"),
    );
    const passes = (register: bigint, { value, valueTwo }: OciSeccompArg) =>
      (register & value) === valueTwo;
    const allowed = (register: bigint) => rules.some(({ args }) => passes(register, args![0]!));
    for (const { action, args } of rules) {
      expect([action, args?.length, args?.[0]?.op]).toEqual([allow, 1, "SCMP_CMP_MASKED_EQ"]);
    }
    const families = Array.from({ length: 48 }, (_, family) => BigInt(family));
    // The kernel takes the lower half of the register.
    for (const above of [0n, 1n << 32n, 0xffffffffn << 32n]) {
      const denied = families.filter((family) => !allowed(family + above));
      expect(denied).toEqual([38n, 40n]);
    }
  });
});

test("wantsDefaultApparmor() is true unless the container is privileged or names another profile", () => {
  expect([undefined, {}, { apparmor: {} }].map(wantsDefaultApparmor)).toEqual([true, true, true]);
  const others = [{ privileged: true }, { apparmor: { profile_type: Unconfined } }];
  expect([...others, { apparmor_profile: "localhost/x" }].map(wantsDefaultApparmor)).toEqual([
    false,
    false,
    false,
  ]);
});

describe("apparmorProfile()", () => {
  const local = { apparmor: { profile_type: Localhost, localhost_ref: "mine" } };
  const armed: HostInfo = { ...host, apparmor: { defaultProfile: "d" } };
  const loaded = ["d", "mine"];

  test("is the host's default, or the loaded one that is requested", () => {
    expect(apparmorProfile({}, armed, [])).toBe("d");
    expect(apparmorProfile(local, armed, loaded)).toBe("mine");
    const old = { apparmor_profile: "localhost/mine" };
    expect(apparmorProfile(old, armed, loaded)).toBe("mine");
    const typed = { apparmor: { ...local.apparmor, localhost_ref: "localhost/mine" } };
    expect(apparmorProfile(typed, armed, loaded)).toBe("mine");
    const both = { ...old, apparmor: { profile_type: Unconfined } };
    expect(apparmorProfile(both, armed, loaded)).toBeUndefined();
    expect(apparmorProfile({ ...local, privileged: true }, armed, [])).toBeUndefined();
    expect(apparmorProfile({}, host, [])).toBeUndefined();
    expect([local, old, both, {}].map(namesApparmorProfile)).toEqual([true, true, false, false]);
  });

  test("rejects a profile that is not loaded, or a host without AppArmor", () => {
    const unarmed: HostInfo = { ...host, apparmor: {} };
    const byDefault = [
      { apparmor: { profile_type: RuntimeDefault } },
      { apparmor_profile: "runtime/default" },
    ];
    const unconfined = [
      {},
      { apparmor: null, apparmor_profile: "" },
      { apparmor: { profile_type: Unconfined }, apparmor_profile: "unconfined" },
      { seccomp: { profile_type: RuntimeDefault } },
    ];
    for (const [without, cause] of [
      [unarmed, "failed to load"],
      [host, "this host runs without AppArmor, or disable-apparmor is set"],
    ] as const) {
      for (const requested of byDefault) {
        const refusal = codeAndMessage(() => apparmorProfile(requested, without, []));
        expect(refusal).toStartWith("FAILED_PRECONDITION: AppArmor profile RuntimeDefault: ");
        expect(refusal).toContain(cause);
        expect(apparmorProfile(requested, armed, [])).toBe("d");
        expect(apparmorProfile({ ...requested, privileged: true }, without, [])).toBeUndefined();
      }
      for (const requested of unconfined) {
        expect(apparmorProfile(requested, without, [])).toBeUndefined();
      }
    }
    expect(codeAndMessage(() => apparmorProfile(local, host, []))).toContain("without AppArmor");
    expect(codeAndMessage(() => apparmorProfile(local, armed, []))).toContain("not loaded");
  });
});

test("maskedPaths() keeps the given lists, even empty ones", () => {
  expect(maskedPaths({})).toEqual({ maskedPaths: [], readonlyPaths: [] });
  expect(maskedPaths({ masked_paths: ["/a"] }).maskedPaths).toEqual(["/a"]);
  expect(maskedPaths(undefined).maskedPaths).toContain("/proc/kcore");
});

describe("ociResources()", () => {
  const resources = (requested: LinuxContainerResources, on: HostInfo = host) =>
    ociResources(requested, [], on);

  test("limits swap together with memory by default", () => {
    const requested = { memory_limit_in_bytes: toLong(100n) };
    expect(resources(requested).memory).toEqual({ limit: 100n, swap: 100n });
    expect(resources(requested, { ...host, swapLimit: false }).memory).toEqual({ limit: 100n });
    const swap = { ...requested, memory_swap_limit_in_bytes: toLong(-1n) };
    expect(resources(swap).memory).toEqual({ limit: 100n, swap: -1n });
    const low = { ...requested, memory_swap_limit_in_bytes: toLong(99n) };
    expect(codeAndMessage(() => resources(low))).toContain("below memory_limit_in_bytes");
  });

  test("leaves out unspecified fields", () => {
    expect(resources({ cpu_shares: toLong(0n), unified: {}, cpuset_cpus: "" })).toEqual({
      devices: [],
    });
  });

  test("rejects limits that this host does not support", () => {
    const huge = { hugepage_limits: [{ page_size: "64KB", limit: toLong(1n) }] };
    expect(codeAndMessage(() => resources(huge))).toContain("2MB, 1GB");
    const unified = { unified: { "memory.high": "1" } };
    expect(codeAndMessage(() => resources(unified, { ...host, cgroupVersion: 1 }))).toContain("v2");
    const path = { unified: { "../cgroup.procs": "1" } };
    expect(codeAndMessage(() => resources(path))).toStartWith("INVALID_ARGUMENT");
  });

  test("clamps oom_score_adj only if configured", () => {
    const daemon = { ...host, oomScoreAdj: 0 };
    expect(oomScoreAdj(-998n, daemon, true)).toBe(0);
    expect(oomScoreAdj(-998n, daemon, false)).toBe(-998);
    expect(codeAndMessage(() => oomScoreAdj(1001n, daemon, true))).toContain("1001");
  });
});

test("devices belong to the container's user if device ownership is configured", () => {
  const node = { path: "/dev/x", type: "c" as const, major: 1, minor: 2, fileMode: 0o600 };
  const owned = { ...node, uid: 7, gid: 8 };
  const owner = (security_context: LinuxContainerSecurityContext, deviceOwnership = true) => {
    const input = specInput(
      { devices: [{ container_path: "/dev/x", host_path: "/dev/x" }], linux: { security_context } },
      { resolved: { ...nothingResolved, devices: [[{ node: owned, hostPath: "/dev/x" }]] } },
    );
    input.defaults.deviceOwnership = deviceOwnership;
    const [{ uid, gid }] = containerSpec(input).linux.devices as [typeof owned];
    return [uid, gid];
  };
  const run_as_user = { value: toLong(1000n) };
  const run_as_group = { value: toLong(2000n) };
  expect(owner({ run_as_user, run_as_group })).toEqual([1000, 2000]);
  expect(owner({ run_as_user })).toEqual([1000, 8]);
  expect(owner({})).toEqual([7, 8]);
  expect(owner({ run_as_user, run_as_group }, false)).toEqual([7, 8]);
});
