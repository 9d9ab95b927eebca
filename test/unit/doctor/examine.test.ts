// Tests each check of isulad-ts doctor on a node that works, and with a fault planted into it.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { examine } from "../../../src/doctor/examine.ts";
import type { Finding, Node } from "../../../src/doctor/node.ts";

let root = "";
let node: Node;
let values: Record<string, unknown>;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "isulad-doctor-"));
  node = {
    root,
    nowMs: Date.now(),
    output: (argv) =>
      Promise.resolve(
        argv[0]!.endsWith("runc") ? "runc version 1.3.3\nspec: 1\n" : "crun version 1.21\n",
      ),
    isRoot: true,
    isInstalled: () => true,
    disk: () => Promise.resolve({ bytes: 100, bytesFree: 50, inodes: 100, inodesFree: 50 }),
    addresses: () => ["127.0.0.1", "192.0.2.5"],
    dial: () => Promise.resolve(),
    askRegistry: () => Promise.resolve({}),
    environment: {},
    trace: () => Promise.resolve(),
  };
  values = { runtimes: { runc: { path: "/usr/bin/runc" }, crun: { path: "/usr/bin/crun" } } };
  write("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  write("/proc/filesystems", "nodev\tproc\nnodev\toverlay\n");
  write("/proc/sys/net/bridge/bridge-nf-call-iptables", "1\n");
  write("/proc/sys/net/ipv4/ip_forward", "1\n");
  write("/proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids\n");
  write("/run/systemd/system/x", "");
  for (const name of [
    "/usr/bin/runc",
    "/usr/bin/crun",
    ...["bridge", "host-local"].map((one) => `/opt/cni/bin/${one}`),
  ]) {
    write(name, "", 0o755);
  }
  const bridge = { type: "bridge", ipam: { type: "host-local" } };
  write(
    "/etc/cni/net.d/10-a.conflist",
    JSON.stringify({ cniVersion: "1.0.0", name: "pods", plugins: [bridge] }),
  );
  write(
    "/etc/isulad/certs.d/registry.test_5000_/hosts.toml",
    'server = "https://registry.test:5000"\n[host."http://mirror.test"]\n',
  );
  write("/etc/isulad/certs.d/README", "an administrator's notes");
  write("/var/lib/isulad/x", "");
});
afterEach(() => rmSync(root, { recursive: true }));

function write(path: string, text: string, mode = 0o644): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text, { mode });
}

/** Reads the configuration as the command does, but on a host on which every program is installed. */
function load() {
  write("/daemon.json", JSON.stringify(values));
  const host = {
    groupId: () => undefined,
    exists: () => true,
    isExecutable: () => true,
    findExecutable: (name: string) => `/usr/bin/${name}`,
    systemdRuns: () => true,
  };
  return loadConfig(join(root, "daemon.json"), new Map(), host);
}

async function faults(): Promise<Finding[]> {
  const findings = await examine(node, load);
  return findings.filter(({ state }) => state !== "ok");
}

test("a node that works has a line for each check, and no fault", async () => {
  const findings = await examine(node, load);
  expect(findings.filter(({ state }) => state !== "ok")).toEqual([]);
  expect(findings.map(({ check }) => check)).toEqual([
    "configuration",
    "kernel",
    "br_netfilter",
    "ip_forward",
    "cgroups",
    "clock",
    "kernel budgets",
    "overlayfs",
    "cgroup driver",
    "programs",
    "runtime runc",
    "runtime crun",
    "pod network",
    "disk of graph",
    "secrets",
    "registry registry.test:5000",
  ]);
  for (const finding of findings) expect(finding.mend).toBeUndefined();
});

const v1 = (names: string[]) =>
  names
    .map(
      (name, i) =>
        `${30 + i} 1 0:${26 + i} / /sys/fs/cgroup/${name} rw - cgroup cgroup rw,${name}\n`,
    )
    .join("");
const refuse = () => Promise.reject(new Error("connection refused"));

/** name, plant, check, state, detail, mend. */
const planted: [string, () => void, string, Finding["state"], RegExp, RegExp][] = [
  [
    "a wrong key",
    () => (values = { grph: "/x" }),
    "configuration",
    "fail",
    /unknown key "grph"/,
    /correct the file/,
  ],
  [
    "a key without effect",
    () => (values["engine"] = "lcr"),
    "configuration",
    "warn",
    /"engine" has no effect/,
    /correct/,
  ],
  [
    "an old kernel",
    () => write("/proc/sys/kernel/osrelease", "5.9.16"),
    "kernel",
    "fail",
    /Linux 5\.9\.16 is older than 5\.10/,
    /newer kernel/,
  ],
  [
    "a kernel without overlayfs",
    () => write("/proc/filesystems", "nodev\tproc\n"),
    "overlayfs",
    "fail",
    /does not know overlayfs/,
    /modprobe overlay/,
  ],
  [
    "no br_netfilter",
    () => rmSync(join(root, "/proc/sys/net/bridge"), { recursive: true }),
    "br_netfilter",
    "warn",
    /not loaded/,
    /modprobe br_netfilter/,
  ],
  [
    "a bridge past iptables",
    () => write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0"),
    "br_netfilter",
    "warn",
    /is 0:/,
    /sysctl -w/,
  ],
  [
    "no forwarding",
    () => write("/proc/sys/net/ipv4/ip_forward", "0\n"),
    "ip_forward",
    "fail",
    /ip_forward is 0/,
    /sysctl -w net\.ipv4\.ip_forward=1/,
  ],
  [
    "no memory controller",
    () => write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io hugetlb pids"),
    "cgroups",
    "fail",
    /^v2, without memory:/,
    /cgroup_enable=memory/,
  ],
  [
    "no hugetlb controller",
    () => write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids"),
    "cgroups",
    "warn",
    /^v2, without hugetlb:/,
    /./,
  ],
  [
    "no pids controller (v1)",
    () => write("/proc/self/mountinfo", v1(["cpu", "cpuset", "memory", "hugetlb", "blkio"])),
    "cgroups",
    "fail",
    /^v1, without pids:/,
    /./,
  ],
  [
    "no cgroups",
    () => write("/proc/self/mountinfo", ""),
    "cgroups",
    "fail",
    /no cgroup file system is mounted/,
    /./,
  ],
  [
    "a clock before its files",
    () => (node.nowMs = Date.UTC(2001, 1, 1)),
    "clock",
    "fail",
    /it is 2001-02-01.*but \/var\/lib\/isulad was changed at 20/,
    /timedatectl/,
  ],
  [
    "no systemd for its driver",
    () => {
      values["systemd-cgroup"] = true;
      rmSync(join(root, "/run"), { recursive: true });
    },
    "cgroup driver",
    "fail",
    /systemd does not run this host/,
    /"auto"/,
  ],
  [
    "a kubelet of the other driver",
    () => write("/var/lib/kubelet/config.yaml", "kind: x\ncgroupDriver: systemd\n"),
    "cgroup driver",
    "warn",
    /^cgroupfs, but .*cgroupDriver: systemd/,
    /"systemd-cgroup": true/,
  ],
  [
    "a slice of a kubelet of the other driver",
    () => mkdirSync(join(root, "/sys/fs/cgroup/kubepods-burstable-pod1.slice")),
    "cgroup driver",
    "warn",
    /^cgroupfs, but \/sys\/fs\/cgroup\/kubepods-burstable-pod1.slice/,
    /"auto"/,
  ],
  [
    "no default runtime",
    () => rmSync(join(root, "/usr/bin/runc")),
    "runtime runc",
    "fail",
    /\/usr\/bin\/runc is not installed/,
    /install runc/,
  ],
  [
    "a runtime that is no program",
    () => chmodSync(join(root, "/usr/bin/crun"), 0o644),
    "runtime crun",
    "warn",
    /EACCES/,
    /install/,
  ],
  [
    "a runtime that fails",
    () => (node.output = () => Promise.reject(new Error("exec format error"))),
    "runtime runc",
    "fail",
    /--version fails: exec format error/,
    /architecture/,
  ],
  [
    "an ancient runc",
    () => (node.output = () => Promise.resolve("runc version 1.0.3\n")),
    "runtime runc",
    "fail",
    /1\.0\.3 is older than 1\.1/,
    /newer runc/,
  ],
  [
    "a runc with known flaws",
    () => (node.output = () => Promise.resolve("runc version 1.1.5+ds1\n")),
    "runtime runc",
    "warn",
    /has CVE-2024-21626, CVE-2025-31133, unless/,
    /newer runc/,
  ],
  [
    "no CNI list",
    () => rmSync(join(root, "/etc/cni/net.d"), { recursive: true }),
    "pod network",
    "fail",
    /no CNI network list in \/etc\/cni\/net\.d/,
    /add-on/,
  ],
  [
    "a broken CNI list",
    () => write("/etc/cni/net.d/10-a.conflist", "{"),
    "pod network",
    "fail",
    /10-a\.conflist: is not JSON/,
    /correct or remove/,
  ],
  [
    "a broken second list",
    () => write("/etc/cni/net.d/20-b.conflist", "{"),
    "pod network",
    "warn",
    /20-b\.conflist: is not JSON/,
    /correct or remove/,
  ],
  [
    "a missing plugin",
    () => rmSync(join(root, "/opt/cni/bin/host-local")),
    "pod network",
    "fail",
    /needs host-local, not found in \/opt\/cni\/bin/,
    /containernetworking-plugins/,
  ],
  [
    "a missing plugin of an add-on",
    () =>
      write(
        "/etc/cni/net.d/05-calico.conflist",
        JSON.stringify({ cniVersion: "1.0.0", name: "k8s", plugins: [{ type: "calico" }] }),
      ),
    "pod network",
    "fail",
    /needs calico, not found in/,
    /^install the network's add-on again/,
  ],
  [
    "a disk that fills",
    () =>
      (node.disk = () => Promise.resolve({ bytes: 100, bytesFree: 5, inodes: 0, inodesFree: 0 })),
    "disk of graph",
    "warn",
    /^5\.0 % of the bytes/,
    /images prune/,
  ],
  [
    "a full disk",
    () =>
      (node.disk = () => Promise.resolve({ bytes: 1000, bytesFree: 5, inodes: 0, inodesFree: 0 })),
    "disk of graph",
    "fail",
    /^0\.5 % of the bytes/,
    /images prune/,
  ],
  [
    "a kernel budget that is nearly used up",
    () => {
      write("/proc/key-users", "    0:    15 14/14 960/1000 460/25000000\n");
      write("/proc/loadavg", "0.1 0.1 0.1 1/369 99\n");
      write("/proc/sys/kernel/pid_max", "32768\n");
    },
    "kernel budgets",
    "fail",
    /^960 of 1000 keys \(kernel\.keys\.root_maxkeys\)$/,
    /sysctl -w kernel\.keys\.root_maxkeys=2000/,
  ],
  [
    "many inotify instances of root",
    () => {
      write("/proc/sys/fs/inotify/max_user_instances", "2\n");
      mkdirSync(join(root, "/proc/1/fd"), { recursive: true });
      for (const fd of ["3", "4"]) symlinkSync("anon_inode:inotify", join(root, "/proc/1/fd", fd));
    },
    "kernel budgets",
    "fail",
    /^2 of 2 inotify instances of root/,
    /max_user_instances=4/,
  ],
  [
    "a full disk with the logs",
    () => {
      write("/var/log/pods/x", "");
      node.disk = (path) =>
        Promise.resolve({
          bytes: 1000,
          bytesFree: path.endsWith("/var/log/pods") ? 5 : 500,
          inodes: 0,
          inodesFree: 0,
        });
    },
    "disk of logs",
    "fail",
    /^0\.5 % of the bytes/,
    /output is dropped/,
  ],
  [
    "no inodes",
    () =>
      (node.disk = () =>
        Promise.resolve({ bytes: 100, bytesFree: 50, inodes: 100, inodesFree: 0 })),
    "disk of graph",
    "fail",
    /0\.0 % of the inodes/,
    /images prune/,
  ],
  [
    "a disk that fails",
    () => (node.disk = () => Promise.reject(new Error("EIO"))),
    "disk of graph",
    "fail",
    /^EIO$/,
    /mend this first/,
  ],
  [
    "a dead registry",
    () => (node.dial = refuse),
    "registry registry.test:5000",
    "fail",
    /mirror\.test.* is not reachable: connection refused; .*registry\.test:5000/,
    /registry check registry\.test:5000/,
  ],
  [
    "a dead mirror",
    () => (node.dial = (host) => (host === "mirror.test" ? refuse() : Promise.resolve())),
    "registry registry.test:5000",
    "warn",
    /mirror\.test.* is not reachable/,
    /registry check/,
  ],
  [
    "a registry whose certificate has expired",
    () => (node.askRegistry = () => Promise.resolve({ problem: "its certificate has expired" })),
    "registry registry.test:5000",
    "fail",
    /mirror\.test.*: its certificate has expired; .*registry\.test:5000.*: its certificate has expired/,
    /registry check/,
  ],
  [
    "a mirror whose certificate is not trusted",
    () =>
      (node.askRegistry = ({ url }) =>
        Promise.resolve(url.includes("mirror") ? { problem: "it is not trusted" } : {})),
    "registry registry.test:5000",
    "warn",
    /^http:\/\/mirror\.test[^;]*: it is not trusted$/,
    /registry check/,
  ],
  [
    "a certificate that ends soon",
    () =>
      (node.askRegistry = () =>
        Promise.resolve({ certificateEndsMs: node.nowMs + 12.5 * 24 * 3_600_000 })),
    "registry registry.test:5000",
    "warn",
    /its certificate ends in 12 days/,
    /renewed/,
  ],
  [
    "a clock 400 days fast, by a registry",
    () =>
      (node.askRegistry = () =>
        Promise.resolve({
          dateMs: node.nowMs - 400 * 24 * 3_600_000,
          problem: "its certificate has expired",
        })),
    "clock",
    "fail",
    /one of the clocks is wrong/,
    /set-ntp/,
  ],
  [
    "a clock 400 days fast, by the hardware clock",
    () =>
      write(
        "/sys/class/rtc/rtc0/since_epoch",
        String(Math.trunc(node.nowMs / 1000) - 400 * 24 * 3600),
      ),
    "clock",
    "warn",
    /the hardware clock has/,
    /hwclock/,
  ],
  [
    "a broken hosts.toml",
    () => write("/etc/isulad/certs.d/registry.test_5000_/hosts.toml", "server = 5"),
    "registry registry.test:5000",
    "fail",
    /hosts\.toml/,
    /correct the file/,
  ],
];

describe("a fault is found, with how to mend it:", () => {
  test.each(planted)("%s", async (_, plant, check, state, detail, mend) => {
    plant();
    const found = (await faults()).find((one) => one.check === check);
    expect(found).toMatchObject({ check, state });
    expect(found?.detail).toMatch(detail);
    expect(found?.mend).toMatch(mend);
  });
});

test("native storage needs no overlayfs, and a graph that does not exist yet is on its parent's disk", async () => {
  values["storage-driver"] = "native";
  values["graph"] = "/var/lib/none/yet";
  write("/proc/filesystems", "nodev\tproc\n");
  const asked: string[] = [];
  node.disk = (path) => {
    asked.push(path);
    return Promise.resolve({ bytes: 1, bytesFree: 1, inodes: 0, inodesFree: 0 });
  };
  expect(await faults()).toEqual([]);
  expect(asked).toEqual([join(root, "/var/lib")]);
});

test.each([
  ["1.1.11", "warn"],
  ["1.2.7", "warn"],
  ["1.2.8", "ok"],
  ["1.3.2", "warn"],
  ["1.3.3", "ok"],
  ["1.4.0", "ok"],
  ["2.0.0", "ok"],
] as const)("runc %s: %s", async (version, state) => {
  node.output = () => Promise.resolve(`runc version ${version}\n`);
  const findings = await examine(node, load);
  expect(findings.find(({ check }) => check === "runtime runc")?.state).toBe(state);
});
