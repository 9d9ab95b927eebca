// Applies daemon.json's settings to the security context that a pod or container requests.
import { procMasks } from "../base/proc_masks.ts";
import type { LinuxContainerSecurityContext, SecurityProfile } from "../proto/types.ts";

export type SecuritySettings = {
  /** The seccomp profile, in the form of old kubelets, where none is requested; "": none. */
  unsetSeccompProfile: string;
  /** Masks the usual paths in /proc and /sys, whatever is requested. */
  disableProcMount: boolean;
};

type SeccompRequest = {
  seccomp?: SecurityProfile | null;
  seccomp_profile_path?: string | null;
};

/** Returns the fields of the default seccomp profile, none where a profile is requested. */
export function seccompDefault(
  security: SeccompRequest | null | undefined,
  { unsetSeccompProfile }: Pick<SecuritySettings, "unsetSeccompProfile">,
): { seccomp_profile_path?: string } {
  const isSet = security?.seccomp || security?.seccomp_profile_path;
  return isSet || unsetSeccompProfile === "" ? {} : { seccomp_profile_path: unsetSeccompProfile };
}

/** A request without a security context has the usual paths masked. */
export function containerSecurity(
  security: LinuxContainerSecurityContext | null | undefined,
  settings: SecuritySettings,
): LinuxContainerSecurityContext {
  return {
    ...(security ?? procMasks()),
    ...seccompDefault(security, settings),
    ...(settings.disableProcMount ? procMasks() : {}),
  };
}
