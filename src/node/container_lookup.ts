// Looks up the host files that a container's spec depends on: mounts, devices, accounts, security profiles.
import { CriError, messageOf } from "../base/errors.ts";
import { usualBounds } from "../base/json_bounds.ts";
import { readTextBounded } from "../sys/file.ts";
import { mountOf, readMountTable, type MountEntry } from "../sys/mount_table.ts";
import type { ContainerConfig, Mount } from "../proto/types.ts";
import type { ResolvedInputs, MountSource } from "../spec/spec_inputs.ts";
import {
  namesApparmorProfile,
  seccompProfileFile,
  wantsDefaultApparmor,
} from "../spec/security.ts";
import { loadedProfiles, reloadUnloaded } from "./apparmor.ts";
import { hostDevices, lookupDevice } from "./devices.ts";
import { mountSource } from "./mount_source.ts";
import { refuseLinkedSystemFolders, RootLookup } from "./path_in_root.ts";

const accountFileBytesMax = 512 << 10;
const seccompBytesMax = usualBounds.bytesMax;

export type LookupOptions = {
  rootfsPath: string;
  /** Mount points of image volumes, by index in config.mounts. */
  imageMounts?: ReadonlyMap<number, string>;
  /** Refuse missing mount sources instead of creating them. */
  rejectMissing?: boolean;
  /** The default AppArmor profile, which must be loaded if the container runs under it. */
  defaultProfile?: string | undefined;
  /** Ends lookups on a file system that hangs. */
  signal: AbortSignal;
};

/**
 * Looks up all inputs of one container's spec. Missing mount sources become directories, as in other CRI
 * runtimes; pods with untyped hostPath volumes rely on that.
 * @throws CriError naming the mount, device or profile that is unavailable, or what is wrong with the image's root.
 */
export async function lookupContainer(
  config: ContainerConfig,
  options: LookupOptions,
): Promise<ResolvedInputs> {
  refuseLinkedSystemFolders(options.rootfsPath);
  const security = config.linux?.security_context;
  const profile = seccompProfileFile(security);
  const { defaultProfile, rootfsPath, signal } = options;
  const root = new RootLookup(rootfsPath, signal);
  if (defaultProfile !== undefined && wantsDefaultApparmor(security)) {
    await reloadUnloaded(defaultProfile);
  }
  return {
    mounts: await lookupMounts(config.mounts ?? [], options),
    devices: await Promise.all((config.devices ?? []).map(lookupDevice)),
    hostDevices: security?.privileged ? await hostDevices() : [],
    passwd: await root.read("/etc/passwd", accountFileBytesMax),
    group: await root.read("/etc/group", accountFileBytesMax),
    seccompProfile: profile === undefined ? undefined : readProfile(profile),
    apparmorProfiles: namesApparmorProfile(security) ? (loadedProfiles() ?? []) : undefined,
  };
}

async function lookupMounts(
  mounts: readonly Mount[],
  { imageMounts, rejectMissing = false, signal }: LookupOptions,
): Promise<MountSource[]> {
  if (mounts.length === 0) return [];
  const table = readMountTable();
  const sources: MountSource[] = [];
  for (const [index, mount] of mounts.entries()) {
    const image = imageMounts?.get(index);
    const source = image ?? (await mountSource(mount, { table, rejectMissing, signal }));
    sources.push({ source, propagation: "private" });
  }
  if (!mounts.some((mount) => mount.propagation)) return sources;
  const after = readMountTable(); // the lookup may have triggered an automount
  return sources.map(({ source }) => ({ source, propagation: propagationOf(source, after) }));
}

/** Returns the propagation of the mount that contains path. */
function propagationOf(path: string, table: MountEntry[]): MountSource["propagation"] {
  const tags = mountOf(path, table)?.tags ?? [];
  const shared = tags.some((tag) => tag.startsWith("shared:"));
  const slave = tags.some((tag) => tag.startsWith("master:"));
  if (shared) return slave ? "slave+shared" : "shared";
  if (slave) return "slave";
  return tags.includes("unbindable") ? "unbindable" : "private";
}

function readProfile(path: string): string {
  try {
    return readTextBounded(path, seccompBytesMax);
  } catch (cause) {
    const message = `seccomp profile ${path}: ${messageOf(cause)}`;
    throw new CriError("INVALID_ARGUMENT", message, { cause });
  }
}
