// The security context: seccomp, AppArmor, masked paths, and what contradicts itself.
import { CriError } from "../base/errors.ts";
import { procMasks } from "../base/proc_masks.ts";
import { runtime } from "../proto/messages.js";
import type { LinuxContainerSecurityContext, SecurityProfile } from "../proto/types.ts";
import type { HostInfo } from "./spec_inputs.ts";
import type { OciSeccomp } from "./oci_types.ts";
import { defaultSeccomp } from "./seccomp.ts";
import { parseSeccompProfile } from "./seccomp_profile.ts";

const { ProfileType } = runtime.v1.SecurityProfile;

/** A profile asked for: typed field first, else the string of old kubelets. */
type AskedProfile =
  | { profile: "unconfined" }
  | { profile: "default" }
  | { profile: "localhost"; reference: string };

/** Stands before a name in the strings of old kubelets; localhost_ref may have it too (critest). */
const localhostPrefix = "localhost/";

/** The seccomp profile file that the caller has to read, or undefined. */
export function seccompProfileFile(
  security: LinuxContainerSecurityContext | null | undefined,
): string | undefined {
  if (security?.privileged) return undefined;
  const asked = askedSeccomp(security ?? {});
  return asked.profile === "localhost" ? asked.reference : undefined;
}

/**
 * @param bounding capabilities of the process: the default profile allows what they are for.
 * @param profileText the file that seccompProfileFile named.
 */
export function seccompFilter(
  security: LinuxContainerSecurityContext,
  options: { bounding: string[]; profileText: string | undefined; host: HostInfo },
): OciSeccomp | undefined {
  if (security.privileged) return undefined;
  const asked = askedSeccomp(security);
  if (asked.profile === "unconfined") return undefined;
  if (asked.profile === "localhost") {
    return parseSeccompProfile(asked.reference, options.profileText);
  }
  return defaultSeccomp(options.bounding, options.host.arch);
}

/** Whether an AppArmor profile is asked for by its name, which has to be loaded. */
export function namesApparmorProfile(
  security: LinuxContainerSecurityContext | null | undefined,
): boolean {
  if (!security || security.privileged) return false;
  return askedApparmor(security).profile === "localhost";
}

/**
 * The AppArmor profile to run under, or undefined for none.
 * @param loaded the profiles that the kernel has.
 * @throws CriError FAILED_PRECONDITION for one that is not loaded.
 */
export function apparmorProfile(
  security: LinuxContainerSecurityContext,
  host: HostInfo,
  loaded: string[],
): string | undefined {
  const asked = askedApparmor(security);
  if (security.privileged || asked.profile === "unconfined") return undefined;
  if (asked.profile === "default") {
    if (host.apparmor !== undefined && host.apparmor.defaultProfile === undefined) {
      refuseUnconfined(security);
    }
    return host.apparmor?.defaultProfile;
  }
  if (host.apparmor === undefined) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `AppArmor profile "${asked.reference}": this host runs without AppArmor`,
    );
  }
  if (!loaded.includes(asked.reference)) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `AppArmor profile "${asked.reference}" is not loaded (load it with apparmor_parser)`,
    );
  }
  return asked.reference;
}

/** @throws CriError FAILED_PRECONDITION where the default profile was asked for, and not left to the node. */
function refuseUnconfined(security: LinuxContainerSecurityContext): void {
  if (!security.apparmor && !security.apparmor_profile) return;
  throw new CriError(
    "FAILED_PRECONDITION",
    "AppArmor profile RuntimeDefault: the default profile could not be loaded when the daemon started (its log says why): install the package apparmor and restart isulad-ts, or ask for Unconfined",
  );
}

/** Empty lists mean an unmasked /proc; a missing security context means the usual masks. */
export function maskedPaths(security: LinuxContainerSecurityContext | null | undefined): {
  maskedPaths: string[];
  readonlyPaths: string[];
} {
  if (security?.privileged) return { maskedPaths: [], readonlyPaths: [] };
  const { masked_paths, readonly_paths } = security ?? procMasks();
  return { maskedPaths: [...(masked_paths ?? [])], readonlyPaths: [...(readonly_paths ?? [])] };
}

function askedSeccomp(security: LinuxContainerSecurityContext): AskedProfile {
  if (security.seccomp) return typedProfile(security.seccomp, "seccomp");
  return oldProfile(security.seccomp_profile_path ?? "", "seccomp_profile_path", "unconfined");
}

function askedApparmor(security: LinuxContainerSecurityContext): AskedProfile {
  if (security.apparmor) return typedProfile(security.apparmor, "apparmor");
  return oldProfile(security.apparmor_profile ?? "", "apparmor_profile", "default");
}

function typedProfile(profile: SecurityProfile, field: string): AskedProfile {
  const type = profile.profile_type ?? ProfileType.RuntimeDefault;
  switch (type) {
    case ProfileType.RuntimeDefault:
      return { profile: "default" };
    case ProfileType.Unconfined:
      return { profile: "unconfined" };
    case ProfileType.Localhost:
      return localhost(profile.localhost_ref ?? "", field);
    default:
      throw new CriError("INVALID_ARGUMENT", `${field}: unknown profile type ${String(type)}`);
  }
}

function oldProfile(
  text: string,
  field: string,
  whenEmpty: "unconfined" | "default",
): AskedProfile {
  if (text === "") return { profile: whenEmpty };
  if (text === "unconfined") return { profile: "unconfined" };
  if (text === "runtime/default" || text === "docker/default") return { profile: "default" };
  if (text.startsWith(localhostPrefix)) return localhost(text, field);
  throw new CriError(
    "INVALID_ARGUMENT",
    `${field} "${text}" is not unconfined, runtime/default or localhost/NAME`,
  );
}

function localhost(text: string, field: string): AskedProfile {
  const reference = text.startsWith(localhostPrefix) ? text.slice(localhostPrefix.length) : text;
  if (reference === "") {
    throw new CriError("INVALID_ARGUMENT", `${field}: a Localhost profile needs localhost_ref`);
  }
  if (field.startsWith("seccomp") && !reference.startsWith("/")) {
    throw new CriError(
      "INVALID_ARGUMENT",
      `${field}: localhost_ref "${reference}" is not an absolute path`,
    );
  }
  return { profile: "localhost", reference };
}
