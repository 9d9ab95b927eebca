// Resolves storage-opts of daemon.json.
import { clipped, type Resolution } from "./config_resolution.ts";

export type StorageConfig = {
  storageDriver: "auto" | "overlay2" | "native";
  storageOpts: string[];
  containerBytes: number;
  overlayOptions: [key: string, value: string][];
};

/** Applies iSulad's overlay2.* options: a size, mount options, and the kernel check, which is not needed. */
export function resolveStorage(config: StorageConfig, s: Resolution): void {
  const at = s.place("storage-opts");
  for (const option of config.storageOpts) {
    const [name = "", ...values] = option.split("=");
    const value = values.join("=");
    if (name === "overlay2.override_kernel_check") continue;
    if (name === "overlay2.mountopt") {
      addMountOptions(config, option, s);
      continue;
    }
    if (name !== "overlay2.size" && name !== "overlay2.basesize") {
      s.warnings.push(`${at}: "storage-opts": ${option} has no effect`);
      continue;
    }
    const bytes = bytesOf(value);
    if (bytes !== undefined) config.containerBytes = bytes;
    else {
      const must = `${name}=SIZE with a size such as 512M or 10G, at least 1M`;
      s.problems.push(`${at}: "storage-opts" must have ${must}, not ${clipped(option)}`);
    }
  }
}

/** Parses "10G" in powers of 1024, as docker does; "0" is no limit. */
function bytesOf(size: string): number | undefined {
  const [, count, unit = ""] = /^(\d{1,12})([KMGT]?)(?:i?B)?$/i.exec(size) ?? [];
  if (count === undefined) return undefined;
  const bytes = Number(count) * 1024 ** ["", "K", "M", "G", "T"].indexOf(unit.toUpperCase());
  return bytes === 0 || (bytes >= 2 ** 20 && bytes <= 2 ** 52) ? bytes : undefined;
}

/**
 * Allowed mount options, each with its allowed values. Any other option would change what the daemon relies on, or
 * affect no container's mount.
 */
const mountOptions: Record<string, string[]> = {
  index: ["on", "off"],
  metacopy: ["on", "off"],
  redirect_dir: ["on", "off", "follow", "nofollow"],
  uuid: ["on", "off", "null", "auto"],
  xino: ["on", "off", "auto"],
};

/** Adds the options of one overlay2.mountopt; skips "volatile", which the daemon sets by itself. */
function addMountOptions(config: StorageConfig, option: string, s: Resolution): void {
  const at = `${s.place("storage-opts")}: "storage-opts"`;
  for (const pair of option.slice(option.indexOf("=") + 1).split(",")) {
    if (pair === "volatile") continue;
    const [key = "", value = ""] = pair.split("=");
    const values = Object.hasOwn(mountOptions, key) ? mountOptions[key]! : [];
    if (values.includes(value)) config.overlayOptions.push([key, value]);
    else {
      const known = Object.entries(mountOptions).map(([name, all]) => `${name}=${all.join("|")}`);
      const must = `overlay2.mountopt with options of ${known.join(", ")}, volatile`;
      s.problems.push(`${at} must have ${must}, not ${clipped(option)}`);
    }
  }
  if (config.storageDriver === "native") {
    s.warnings.push(`${at}: ${option} has no effect with the storage-driver native`);
  }
}
