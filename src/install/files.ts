// Lists the files that an installation writes, with their contents.
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { jsonText } from "../base/json.ts";
import { errnoOf } from "../base/errors.ts";
import { cniList, daemonJson, guide, unit } from "../proto/installed_files.ts";

export const programPath = "/usr/local/bin/isulad-ts";
export const configPath = "/etc/isulad/daemon.json";
export const unitPath = "/etc/systemd/system/isulad-ts.service";
export const guidePath = "/usr/local/share/doc/isulad-ts/installation.md";
export const cniListPath = "/etc/cni/net.d/10-isulad.conflist";
export const sysctlPath = "/etc/sysctl.d/99-isulad-ts.conf";

/** Name → path that exists while the kernel has it, loaded or built in. */
export const modules = { overlay: "/sys/module/overlay", br_netfilter: "/proc/sys/net/bridge" };
export const sysctls = {
  "net.ipv4.ip_forward": "1",
  "net.bridge.bridge-nf-call-iptables": "1",
  "net.bridge.bridge-nf-call-ip6tables": "1",
};

export type InstalledFile = {
  path: string;
  content: string | Uint8Array;
  mode: number;
  /** "always" replaces a changed file, too; "alone" is written only where its folder has no other CNI list. */
  when: "always" | "unchanged" | "alone";
};

/** runs: systemd is this machine's init; installed: it will be, at the next boot. */
export type Systemd = "runs" | "installed" | "none";

const ofText = (path: string, content: string): InstalledFile => ({
  path,
  content,
  mode: 0o644,
  when: "unchanged",
});

/**
 * systemd-cgroup is "auto" where systemd does not run yet: true would refuse to start without it. runtime: the default
 * one.
 */
export function configFile(systemd: Systemd, runtime: string): InstalledFile {
  const driver = { runs: "true", installed: '"auto"', none: "false" }[systemd];
  const text = daemonJson
    .replace('"systemd-cgroup": false', `"systemd-cgroup": ${driver}`)
    .replace('"default-runtime": "runc"', `"default-runtime": "${runtime}"`);
  return ofText(configPath, text);
}

/** The pod network, crictl's configuration and the kernel's settings. host: the daemon's socket. */
export function nodeFiles(host: string): InstalledFile[] {
  const crictl = `runtime-endpoint: ${jsonText(host)}\nimage-endpoint: ${jsonText(host)}\n`;
  const settings = Object.entries(sysctls).map(([name, value]) => `${name} = ${value}\n`);
  const header = "# Written by isulad-ts install: pods need it.\n";
  return [
    { ...ofText(cniListPath, cniList), when: "alone" },
    ofText("/etc/crictl.yaml", crictl),
    ofText("/etc/modules-load.d/isulad-ts.conf", `${header}${Object.keys(modules).join("\n")}\n`),
    ofText(sysctlPath, `${header}${settings.join("")}`),
  ];
}

/** The unit, and the page that it names. */
export function unitFiles(): InstalledFile[] {
  return [ofText(unitPath, unit), ofText(guidePath, guide)];
}

/** Returns the CNI configurations of the folder of a path. */
export function cniListsBeside(root: string, path: string): string[] {
  const folder = join(root, path, "..");
  try {
    return readdirSync(folder).filter((name) => /\.(conf|conflist|json)$/.test(name));
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return [];
    throw error;
  }
}
