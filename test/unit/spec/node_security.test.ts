// Tests daemon.json's settings for security contexts: what they change, and what a request keeps.
import { describe, expect, test } from "bun:test";
import { procMasks } from "../../../src/base/proc_masks.ts";
import { runtime } from "../../../src/proto/messages.js";
import { containerSecurity, seccompDefault } from "../../../src/spec/node_security.ts";
import { maskedPaths, seccompFilter, seccompProfileFile } from "../../../src/spec/security.ts";
import { host } from "../../spec/inputs.ts";

const { ProfileType } = runtime.v1.SecurityProfile;
const none = { unsetSeccompProfile: "", disableProcMount: false };
const filtered = { ...none, unsetSeccompProfile: "runtime/default" };

const filterOf = (security: object) =>
  seccompFilter(security, { bounding: [], profileText: undefined, host });

describe("unset-seccomp-profile", () => {
  test("is the profile of a container that requests none", () => {
    for (const nothing of [undefined, null, {}, { seccomp_profile_path: "" }]) {
      expect(filterOf(containerSecurity(nothing, none))).toBeUndefined();
      expect(filterOf(containerSecurity(nothing, filtered))?.defaultAction).toBe("SCMP_ACT_ERRNO");
    }
    const file = { ...none, unsetSeccompProfile: "localhost//etc/seccomp.json" };
    expect(seccompProfileFile(containerSecurity({}, file))).toBe("/etc/seccomp.json");
  });

  test("gives way to a request, and to privileges", () => {
    const Unconfined = { seccomp: { profile_type: ProfileType.Unconfined } };
    for (const request of [Unconfined, { seccomp_profile_path: "unconfined" }]) {
      expect(containerSecurity(request, filtered)).toEqual(request);
      expect(seccompDefault(request, filtered)).toEqual({});
    }
    expect(filterOf(containerSecurity({ privileged: true }, filtered))).toBeUndefined();
  });

  test("leaves a container without a security context its masks", () => {
    expect(maskedPaths(containerSecurity(undefined, filtered))).toEqual(maskedPaths(undefined));
  });
});

describe("disable-proc-mount", () => {
  const masked = { ...none, disableProcMount: true };

  test("masks the usual paths in a container that requests other ones", () => {
    for (const request of [{}, { masked_paths: ["/a"], readonly_paths: [] }]) {
      expect(containerSecurity(request, none)).toEqual(request);
      expect(containerSecurity(request, masked)).toEqual({ ...request, ...procMasks() });
    }
  });

  test("does not mask those of a privileged container", () => {
    const paths = maskedPaths(containerSecurity({ privileged: true }, masked));
    expect(paths).toEqual({ maskedPaths: [], readonlyPaths: [] });
  });
});
