// Converts CRI's security context to a seccomp filter, an AppArmor profile and masked paths.
import { procMasks } from "../base/proc_masks.ts";
import { runtime } from "../proto/messages.js";
import type { LinuxContainerSecurityContext, SecurityProfile } from "../proto/types.ts";
import type { HostInfo } from "./spec_inputs.ts";
import type { OciSeccomp } from "./oci_types.ts";
import { invalid, unsupported } from "./refusals.ts";
import { defaultSeccomp } from "./seccomp.ts";
import { parseSeccompProfile } from "./seccomp_profile.ts";

const { ProfileType } = runtime.v1.SecurityProfile;

/** A requested profile, from the typed field, else from the string field of old kubelets. */
type RequestedProfile =
  | { profile: "unconfined" }
  | { profile: "default" }
  | { profile: "localhost"; reference: string };

/** Prefix of profile names in the string fields; critest also puts it into localhost_ref. */
const localhostPrefix = "localhost/";

/** Returns the path of the Localhost seccomp profile that the caller has to read, or undefined. */
export function seccompProfileFile(
  security: LinuxContainerSecurityContext | null | undefined,
): string | undefined {
  if (security?.privileged) return undefined;
  const requested = requestedSeccomp(security ?? {});
  return requested.profile === "localhost" ? requested.reference : undefined;
}

/**
 * Returns the seccomp filter, or undefined for an unconfined container.
 * @param bounding capabilities of the process: the default profile allows their system calls.
 * @param profileText content of the file that seccompProfileFile returned.
 */
export function seccompFilter(
  security: LinuxContainerSecurityContext,
  options: { bounding: string[]; profileText: string | undefined; host: HostInfo },
): OciSeccomp | undefined {
  if (security.privileged) return undefined;
  const requested = requestedSeccomp(security);
  if (requested.profile === "unconfined") return undefined;
  if (requested.profile === "localhost") {
    return parseSeccompProfile(requested.reference, options.profileText);
  }
  return defaultSeccomp(options.bounding, options.host.arch);
}

/** Returns whether a Localhost AppArmor profile is requested, which has to be loaded. */
export function namesApparmorProfile(
  security: LinuxContainerSecurityContext | null | undefined,
): boolean {
  if (!security || security.privileged) return false;
  return requestedApparmor(security).profile === "localhost";
}

/** Returns whether the container runs under the host's default AppArmor profile, if there is one. */
export function wantsDefaultApparmor(
  security: LinuxContainerSecurityContext | null | undefined,
): boolean {
  return !security?.privileged && requestedApparmor(security ?? {}).profile === "default";
}

/**
 * Returns the AppArmor profile to run under, or undefined for none.
 * @param loaded profiles that are loaded into the kernel.
 * @throws CriError FAILED_PRECONDITION for a profile that is not loaded, or a named one where there is no AppArmor.
 */
export function apparmorProfile(
  security: LinuxContainerSecurityContext,
  host: HostInfo,
  loaded: string[],
): string | undefined {
  const requested = requestedApparmor(security);
  if (security.privileged || requested.profile === "unconfined") return undefined;
  if (requested.profile === "default") {
    const profile = host.apparmor?.defaultProfile;
    if (profile === undefined) refuseUnconfined(security, host);
    return profile;
  }
  const what = `AppArmor profile "${requested.reference}"`;
  if (host.apparmor === undefined) {
    throw unsupported(`${what}: ${withoutApparmor}`);
  }
  if (loaded.includes(requested.reference)) return requested.reference;
  throw unsupported(`${what} is not loaded (load it with apparmor_parser)`);
}

const withoutApparmor = "this host runs without AppArmor, or disable-apparmor is set";

/**
 * A kubelet names the default profile only if the pod does.
 * @throws CriError FAILED_PRECONDITION if the request names it.
 */
function refuseUnconfined(security: LinuxContainerSecurityContext, host: HostInfo): void {
  if (!security.apparmor && !security.apparmor_profile) return;
  const cause =
    host.apparmor === undefined
      ? `${withoutApparmor}: name no profile, or Unconfined`
      : "the default profile failed to load when the daemon started (see its log): install the package apparmor and restart isulad-ts, or request Unconfined";
  throw unsupported(`AppArmor profile RuntimeDefault: ${cause}`);
}

/** Empty lists leave /proc unmasked; without a security context the usual paths are masked. */
export function maskedPaths(security: LinuxContainerSecurityContext | null | undefined): {
  maskedPaths: string[];
  readonlyPaths: string[];
} {
  if (security?.privileged) return { maskedPaths: [], readonlyPaths: [] };
  const { masked_paths, readonly_paths } = security ?? procMasks();
  return { maskedPaths: [...(masked_paths ?? [])], readonlyPaths: [...(readonly_paths ?? [])] };
}

function requestedSeccomp(security: LinuxContainerSecurityContext): RequestedProfile {
  if (security.seccomp) return typedProfile(security.seccomp, "seccomp");
  return oldProfile(security.seccomp_profile_path ?? "", "seccomp_profile_path", "unconfined");
}

function requestedApparmor(security: LinuxContainerSecurityContext): RequestedProfile {
  if (security.apparmor) return typedProfile(security.apparmor, "apparmor");
  return oldProfile(security.apparmor_profile ?? "", "apparmor_profile", "default");
}

function typedProfile(profile: SecurityProfile, field: string): RequestedProfile {
  const type = profile.profile_type ?? ProfileType.RuntimeDefault;
  switch (type) {
    case ProfileType.RuntimeDefault:
      return { profile: "default" };
    case ProfileType.Unconfined:
      return { profile: "unconfined" };
    case ProfileType.Localhost:
      return localhost(profile.localhost_ref ?? "", field);
    default:
      throw invalid(`${field}: unknown profile type ${String(type)}`);
  }
}

function oldProfile(
  text: string,
  field: string,
  whenEmpty: "unconfined" | "default",
): RequestedProfile {
  if (text === "") return { profile: whenEmpty };
  if (text === "unconfined") return { profile: "unconfined" };
  if (text === "runtime/default" || text === "docker/default") return { profile: "default" };
  if (text.startsWith(localhostPrefix)) return localhost(text, field);
  throw invalid(`${field} "${text}" is not unconfined, runtime/default or localhost/NAME`);
}

function localhost(text: string, field: string): RequestedProfile {
  const reference = text.startsWith(localhostPrefix) ? text.slice(localhostPrefix.length) : text;
  if (reference === "") throw invalid(`${field}: a Localhost profile needs localhost_ref`);
  if (field.startsWith("seccomp") && !reference.startsWith("/")) {
    throw invalid(`${field}: localhost_ref "${reference}" is not an absolute path`);
  }
  return { profile: "localhost", reference };
}
