// Tests what an uninstall does about pods and addresses, and the purge of the deb package.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { debPurge } from "../../../dist/packages.ts";
import { removeLeases } from "../../../src/install/leftovers.ts";
import { install } from "../../../src/install/install.ts";
import { removePods } from "../../../src/install/service.ts";
import { uninstall } from "../../../src/install/uninstall.ts";
import { failureOf } from "./root_folder.ts";

let scratch = "";
beforeEach(() => {
  scratch = mkdtempSync(join(tmpdir(), "isulad-removal-"));
});
afterEach(() => rmSync(scratch, { recursive: true }));

function write(path: string, text = ""): void {
  mkdirSync(dirname(join(scratch, path)), { recursive: true });
  writeFileSync(join(scratch, path), text);
}

test("a pod that cannot be removed stops the uninstall, with its name, the reason and the way on", async () => {
  const calls: string[] = [];
  const command = async (argv: string[]) => {
    calls.push(argv.join(" "));
    if (argv.includes("rmp")) throw new Error("0a1b2c: the CNI plugin bridge is missing");
    return argv.includes("pods") ? "POD ID  NAME\n0a1b2c  web\n" : "";
  };
  const target = { root: "", isDryRun: false, report: () => {}, command };
  const removal = removePods(target, "/no/isulad-ts");
  expect(await failureOf(removal)).toMatchObject({
    code: "FAILED_PRECONDITION",
    message: expect.stringMatching(
      /so isulad-ts stays: 0a1b2c: the CNI plugin bridge is missing\n.*\n0a1b2c  web\n.*--abandon-pods/s,
    ),
  });
  expect(calls).toContain("/no/isulad-ts rmp --all --force");
});

test("the removal of a package names a command that removes the pods, since it cannot take --force", async () => {
  const target = {
    root: "",
    isDryRun: true,
    report: () => {},
    command: async (argv: string[]) => (argv.includes("pods") ? "0a1b2c\n" : ""),
  };
  const rest = { isForced: false, abandonsPods: false, keepsConfig: true };
  const removal = uninstall(target, { executable: process.execPath, isPackaged: true, ...rest });
  expect(await failureOf(removal)).toMatchObject({
    code: "FAILED_PRECONDITION",
    message: expect.stringMatching(
      /drain the node first, or remove them by isulad-ts rmp --all --force$/,
    ),
  });
});

test("addresses that no pod has go with the network's folder, those in use stay", () => {
  const networks = join(scratch, "cni/networks");
  for (const name of ["last_reserved_ip.0", "lock"]) write(`cni/networks/isulad/${name}`);
  for (const address of ["10.87.0.5", "fd00::5"]) {
    write(`cni/networks/isulad/${address}`, "pod");
    removeLeases(networks, "isulad");
    expect(existsSync(join(networks, "isulad", address))).toBe(true);
    rmSync(join(networks, "isulad", address));
  }
  write("cni/networks/other/10.1.0.2");
  removeLeases(networks, "isulad");
  expect(readdirSync(networks)).toEqual(["other"]);
  rmSync(join(networks, "other"), { recursive: true });
  removeLeases(networks, "isulad");
  expect(readdirSync(scratch)).toEqual([]);
});

test("the purge of the deb removes what its removal has kept, but not what was changed", async () => {
  const root = join(scratch, "root");
  for (const name of ["runc", "iptables", "ip", "unshare"]) write(`root/usr/sbin/${name}`);
  write("root/etc/hosts");
  const target = { root, isDryRun: false, report: () => {}, command: async () => "" };
  const executable = join(scratch, "isulad-ts");
  const bundle = join(scratch, "bundle");
  await install(target, { executable, bundle, isOffline: false, isPackaged: true });
  const rest = { isForced: false, abandonsPods: false, keepsConfig: true, isPackaged: true };
  await uninstall(target, { executable, ...rest });
  write("root/etc/isulad/daemon.json", "{}");
  write("root/etc/crictl.yaml", "timeout: 2\n");
  const purge = (verb: string) => {
    const env = { ...process.env, DPKG_ROOT: root };
    const { status, stderr } = spawnSync("sh", ["-ec", debPurge, "postrm", verb], { env });
    expect([status, String(stderr)]).toEqual([0, ""]);
    const names = readdirSync(root, { recursive: true, encoding: "utf8" });
    return names.filter((name) => !name.startsWith("usr/sbin")).sort();
  };
  expect(purge("remove")).toContain("etc/isulad/daemon.json");
  expect(purge("purge")).toEqual(["etc", "etc/crictl.yaml", "etc/hosts", "usr"]);
});
