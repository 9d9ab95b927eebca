// Checks the kernel: its version, what pods need of it, cgroups, and the clock.
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../base/config.ts";
import { absentControllers, cgroupMounts } from "../node/cgroup.ts";
import { readMountTable } from "../sys/mount_table.ts";
import { existsAt, textAt, type Finding, type Node } from "./node.ts";

const [majorMin, minorMin] = [5, 10];

export function checkKernel(node: Node): Finding {
  const check = "kernel";
  const release = textAt(node, "/proc/sys/kernel/osrelease") ?? "";
  const [major = 0, minor = 0] = release.split(/[.-]/).map(Number);
  if (major > majorMin || (major === majorMin && minor >= minorMin)) {
    return { check, state: "ok", detail: release };
  }
  const detail = `Linux ${release} is older than ${majorMin}.${minorMin}`;
  return { check, state: "fail", detail, mend: "install a newer kernel and reboot" };
}

export function checkOverlay(node: Node, { storageDriver }: Config): Finding {
  const check = "overlayfs";
  const known = textAt(node, "/proc/filesystems") ?? "";
  if (/\boverlay$/m.test(known)) return { check, state: "ok", detail: "known to the kernel" };
  const detail = "the kernel does not know overlayfs";
  const mend = "modprobe overlay, and write overlay into /etc/modules-load.d/isulad-ts.conf";
  if (storageDriver !== "native") return { check, state: "fail", detail, mend };
  return { check, state: "ok", detail: `${detail}; storage-driver is native` };
}

const bridgeSysctl = "net.bridge.bridge-nf-call-iptables";

export function checkBridge(node: Node): Finding {
  const check = "br_netfilter";
  const value = textAt(node, `/proc/sys/${bridgeSysctl.replaceAll(".", "/")}`);
  if (value === "1") return { check, state: "ok", detail: `${bridgeSysctl} is 1` };
  const isLoaded = value !== undefined;
  const effect = "services may not answer pods on the same bridge";
  return {
    check,
    state: "warn",
    detail: isLoaded
      ? `${bridgeSysctl} is ${value}: ${effect}`
      : `the module br_netfilter is not loaded: ${effect}`,
    mend: `modprobe br_netfilter && sysctl -w ${bridgeSysctl}=1, and the same in /etc/modules-load.d and /etc/sysctl.d`,
  };
}

export function checkForwarding(node: Node): Finding {
  const check = "ip_forward";
  const value = textAt(node, "/proc/sys/net/ipv4/ip_forward");
  if (value === "1") return { check, state: "ok", detail: "net.ipv4.ip_forward is 1" };
  const detail = `net.ipv4.ip_forward is ${value ?? "missing"}: pods reach nothing outside of this node`;
  const mend = "sysctl -w net.ipv4.ip_forward=1, and the same in /etc/sysctl.d/99-isulad-ts.conf";
  return { check, state: "fail", detail, mend };
}

/** Without them the limits of pods are refused, and a kubelet does not start. */
const required = new Set(["cpu", "memory", "pids"]);

export function checkCgroups(node: Node): Finding {
  const check = "cgroups";
  const table = readMountTable(textAt(node, "/proc/self/mountinfo") ?? "");
  const mounts = cgroupMounts(
    table.map((entry) => ({ ...entry, point: join(node.root, entry.point) })),
  );
  const version = `v${mounts.version}`;
  const absent = absentControllers(mounts);
  if (absent.length === 0) return { check, state: "ok", detail: `${version}, all controllers` };
  const state = absent.some((name) => required.has(name)) ? "fail" : "warn";
  const detail = `${version}, without ${absent.join(", ")}: limits by them have no effect or are refused`;
  const mend = `add cgroup_enable=${absent[0]} to the kernel's command line, or mount the controller, and reboot`;
  return { check, state, detail, mend };
}

/** Returns a top-level cgroup a-b.slice: systemd makes it inside of a.slice. */
function straySlice(node: Node): string | undefined {
  const table = readMountTable(textAt(node, "/proc/self/mountinfo") ?? "");
  const mounts = cgroupMounts(
    table.map((entry) => ({ ...entry, point: join(node.root, entry.point) })),
  );
  const folder = mounts.roots["unified"] ?? mounts.roots["memory"] ?? mounts.roots["cpu"];
  if (folder === undefined) return undefined;
  const name = readdirSync(folder).find((one) => one.endsWith(".slice") && one.indexOf("-") > 0);
  return name && join(folder, name).slice(node.root.length);
}

/** systemd-cgroup "auto" is resolved by the host and cannot be wrong. */
export function checkCgroupDriver(node: Node, { systemdCgroup }: Config): Finding {
  const check = "cgroup driver";
  const name = systemdCgroup ? "systemd" : "cgroupfs";
  const hasSystemd = existsAt(node, "/run/systemd/system");
  const kubelet = textAt(node, "/var/lib/kubelet/config.yaml") ?? "";
  const [, kubeletDriver = ""] = /^cgroupDriver:\s*"?(\w+)/m.exec(kubelet) ?? [];
  if (systemdCgroup && !hasSystemd) {
    const detail = '"systemd-cgroup" is true, but systemd does not run this host';
    return { check, state: "fail", detail, mend: 'set "systemd-cgroup": "auto" and restart' };
  }
  const stray = systemdCgroup ? undefined : straySlice(node);
  if (stray !== undefined) {
    const detail = `cgroupfs, but ${stray} was made for pods of a kubelet with cgroupDriver: systemd, whose limits do not hold there`;
    const mend = `drain the node, set "systemd-cgroup": "auto", and restart; or set cgroupDriver: cgroupfs in the kubelet's configuration`;
    return { check, state: "warn", detail, mend };
  }
  if (kubeletDriver === "" || kubeletDriver === name) return { check, state: "ok", detail: name };
  const detail = `${name}, but the kubelet's configuration has cgroupDriver: ${kubeletDriver}`;
  const mend = `drain the node, set "systemd-cgroup": ${!systemdCgroup}, and restart (a kubelet from 1.31 on asks the daemon instead)`;
  return { check, state: "warn", detail, mend };
}

/** Files that were written while the clock was right, whenever that was. */
const witnesses = ["/etc/machine-id", "/etc/isulad/daemon.json", "/var/lib/isulad", "/var/log"];
const dayMs = 24 * 3_600_000;

/** The hardware clock may have local time. */
const hardwareSkewMs = dayMs;

export function checkClock(node: Node): Finding {
  const check = "clock";
  const now = new Date(node.nowMs).toISOString();
  for (const path of witnesses) {
    const found = statSync(join(node.root, path), { throwIfNoEntry: false });
    if (found === undefined || found.mtimeMs <= node.nowMs + dayMs) continue;
    const detail = `it is ${now}, but ${path} was changed at ${found.mtime.toISOString()}: registries' certificates are not valid yet`;
    return { check, state: "fail", detail, mend: "timedatectl set-ntp true, or date -s" };
  }
  const hardwareMs = Number(textAt(node, "/sys/class/rtc/rtc0/since_epoch") || Number.NaN) * 1000;
  if (Math.abs(hardwareMs - node.nowMs) > hardwareSkewMs) {
    const detail = `it is ${now}, but the hardware clock has ${new Date(hardwareMs).toISOString()}`;
    const mend = "timedatectl set-ntp true, or hwclock --hctosys if the hardware clock is right";
    return { check, state: "warn", detail, mend };
  }
  return { check, state: "ok", detail: now };
}
