// Tests isulad-ts install in a root folder: what it writes, keeps and upgrades.
import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { targetOf } from "../../../src/cli/install.ts";
import { alone, lockWithFile } from "../../../src/install/alone.ts";
import { install } from "../../../src/install/install.ts";
import { manifestPath } from "../../../src/install/manifest.ts";
import { aptInstall, missingPrograms } from "../../../src/install/programs.ts";
import { uninstall } from "../../../src/install/uninstall.ts";
import { cniList, daemonJson, unit } from "../../../src/proto/installed_files.ts";
import {
  configPath,
  failureOf,
  listPath,
  options,
  programPath,
  read,
  removal,
  root,
  said,
  scratch,
  target,
  tree,
  unitPath,
  useRootFolder,
  write,
} from "./root_folder.ts";

const dist = join(import.meta.dirname, "../../../dist");

useRootFolder();

describe("install", () => {
  test("writes program, unit, configuration, pod network, crictl's file and kernel settings", async () => {
    await install(target(), options());
    expect(read(programPath)).toBe("program 1");
    expect(statSync(join(root, programPath)).mode & 0o777).toBe(0o755);
    expect(read(unitPath)).toBe(readFileSync(join(dist, "isulad-ts.service"), "utf8"));
    expect(read(listPath)).toBe(readFileSync(join(dist, "10-isulad.conflist"), "utf8"));
    expect(read("/etc/crictl.yaml")).toBe(
      'runtime-endpoint: "unix:///var/run/isulad.sock"\nimage-endpoint: "unix:///var/run/isulad.sock"\n',
    );
    expect(read("/etc/modules-load.d/isulad-ts.conf")).toMatch(/^overlay\nbr_netfilter\n/m);
    expect(read("/etc/sysctl.d/99-isulad-ts.conf")).toContain("\nnet.ipv4.ip_forward = 1\n");
  });

  test("enables the unit in a root folder, unless somebody has masked it", async () => {
    const link = join(root, "etc/systemd/system/multi-user.target.wants/isulad-ts.service");
    await install(target(), options());
    expect(readlinkSync(link)).toBe(unitPath);
    await uninstall(target(), removal());
    expect(() => lstatSync(link)).toThrow("ENOENT");
    mkdirSync(dirname(join(root, unitPath)), { recursive: true });
    symlinkSync("/dev/null", join(root, unitPath));
    await install(target(), options());
    expect(() => lstatSync(link)).toThrow("ENOENT");
  });

  test("chooses the cgroup driver at each start where systemd does not run yet, else cgroupfs", async () => {
    await install(target(), options());
    expect(JSON.parse(read(configPath))).toMatchObject({ "systemd-cgroup": "auto" });
    expect(loadConfig(join(root, configPath)).warnings).toEqual([]);
    await uninstall(target(), removal());
    rmSync(join(root, "usr/lib/systemd"), { recursive: true });
    await install(target(), options());
    expect(read(configPath)).toBe(daemonJson);
    expect(existsSync(join(root, unitPath))).toBe(false);
  });

  test("makes crun the default runtime where it is there and runc is not", async () => {
    write("/usr/bin/crun", "", 0o755);
    await install(target(), options());
    expect(JSON.parse(read(configPath))).toMatchObject({ "default-runtime": "runc" });
    await uninstall(target(), removal());
    rmSync(join(root, "usr/sbin/runc"));
    await install(target(), options());
    expect(JSON.parse(read(configPath))).toMatchObject({ "default-runtime": "crun" });
  });

  test("changes nothing when it is repeated", async () => {
    await install(target(), options());
    const before = tree();
    said.length = 0;
    await install(target(), options());
    expect(tree()).toEqual(before);
    expect(said).toEqual([]);
  });

  test("names each action of a dry run, and changes nothing", async () => {
    const before = tree();
    await install(target({ isDryRun: true }), options());
    expect(tree()).toEqual(before);
    const written = [configPath, listPath, programPath, unitPath, "/etc/crictl.yaml"];
    expect(said).toEqual(expect.arrayContaining(written.map((path) => `would write ${path}`)));
    said.length = 0;
    await install(target(), options());
    const installed = tree();
    await uninstall(target({ isDryRun: true }), removal());
    expect(tree()).toEqual(installed);
    expect(said).toContain(`would remove ${programPath}`);
  });

  test("keeps files that somebody else has written, dangling links included", async () => {
    write(configPath, "{}");
    write("/etc/crictl.yaml", "timeout: 2\n");
    mkdirSync(dirname(join(root, unitPath)), { recursive: true });
    symlinkSync("/nowhere", join(root, unitPath));
    await install(target(), options());
    expect([read(configPath), read("/etc/crictl.yaml")]).toEqual(["{}", "timeout: 2\n"]);
    expect(existsSync(join(root, unitPath))).toBe(false);
    expect(said.filter((line) => line.startsWith("keep "))).toHaveLength(3);
  });

  test("adds no pod network where there is one", async () => {
    write("/etc/cni/net.d/10-flannel.conflist", "{}");
    await install(target(), options());
    expect(existsSync(join(root, listPath))).toBe(false);
    expect(said.join("\n")).toContain("keep the pod network of 10-flannel.conflist");
  });

  test("names the socket of daemon.json in crictl's file", async () => {
    write(configPath, '{"hosts": ["unix:///run/own.sock"]}');
    await install(target(), options());
    expect(read("/etc/crictl.yaml")).toContain('"unix:///run/own.sock"');
  });

  test("upgrades what an older one has installed, and keeps what was changed since", async () => {
    await install(target(), options());
    const old = "[Unit]\nDescription=old\n";
    write(unitPath, old);
    write(listPath, "{}");
    const hash = new Bun.CryptoHasher("sha256").update(old).digest("hex");
    const lines = read(manifestPath).split("\n");
    const isUnit = (line: string) => line.endsWith(unitPath);
    write(
      manifestPath,
      lines.map((line) => (isUnit(line) ? `${hash}  ${unitPath}` : line)).join("\n"),
    );
    writeFileSync(join(scratch, "isulad-ts"), "program 2");
    await install(target(), options());
    expect([read(programPath), read(unitPath), read(listPath)]).toEqual(["program 2", unit, "{}"]);
  });

  test("completes an installation that was cut off between the record and the file", async () => {
    await install(target(), options());
    const complete = tree();
    const line = (text: string) =>
      `${new Bun.CryptoHasher("sha256").update(text).digest("hex")}  ${listPath}\n`;
    // The record has both contents while the file is replaced.
    writeFileSync(join(root, manifestPath), line("newer") + read(manifestPath));
    await install(target(), options());
    expect(read(listPath)).toBe(cniList);
    rmSync(join(root, listPath));
    await install(target(), options());
    expect(Object.keys(tree())).toEqual(Object.keys(complete));
    write(listPath, "newer");
    writeFileSync(join(root, manifestPath), line("newer") + read(manifestPath));
    await install(target(), options());
    expect(read(listPath)).toBe(cniList);
  });

  test("names the file that cannot be written, and leaves no half of it", async () => {
    write("/etc/sysctl.d", "not a folder");
    const message = /^cannot write .*99-isulad-ts\.conf: .*run the same again$/;
    expect(await failureOf(install(target(), options()))).toMatchObject({
      code: "INTERNAL",
      message: expect.stringMatching(message),
    });
    rmSync(join(root, "etc/sysctl.d"));
    await install(target(), options());
    expect(read("/etc/sysctl.d/99-isulad-ts.conf")).toContain("ip_forward");
    expect(Object.keys(tree()).filter((name) => name.endsWith(".tmp"))).toEqual([]);
  });

  test("refuses a damaged record with its line", async () => {
    await install(target(), options());
    writeFileSync(join(root, manifestPath), `${read(manifestPath)}rm -rf /\n`);
    for (const again of [install, uninstall]) {
      expect(await failureOf(again(target(), { ...options(), ...removal() }))).toMatchObject({
        code: "DATA_LOSS",
        message: expect.stringMatching(/installed:\d+ is no "CHECKSUM {2}PATH"/),
      });
    }
  });

  test("leaves program and unit to a package, and removes those of an earlier installation", async () => {
    await install(target(), options());
    await install(target(), { ...options(), isPackaged: true });
    expect([programPath, unitPath].filter((path) => existsSync(join(root, path)))).toEqual([]);
    expect(read(manifestPath)).not.toContain(programPath);
    expect(existsSync(join(root, configPath))).toBe(true);
  });
});

describe("programs", () => {
  test("of the bundle are installed where they are missing, and upgraded from a newer bundle", async () => {
    rmSync(join(root, "usr/sbin/runc"));
    rmSync(join(root, "opt/cni/bin/portmap"));
    const bundle = join(scratch, "bundle");
    mkdirSync(join(bundle, "cni"), { recursive: true });
    writeFileSync(join(bundle, "runc"), "runc 1");
    writeFileSync(join(bundle, "cni/portmap"), "portmap 1");
    expect(missingPrograms(target())).toEqual(["runc", "CNI plugins"]);
    await install(target(), { ...options(), isOffline: true });
    expect(missingPrograms(target())).toEqual([]);
    expect(said.filter((line) => line.startsWith("missing"))).toEqual([]);
    writeFileSync(join(bundle, "runc"), "runc 2");
    await install(target(), { ...options(), isOffline: true });
    expect([read("/usr/local/sbin/runc"), read("/opt/cni/bin/portmap")]).toEqual([
      "runc 2",
      "portmap 1",
    ]);
    await uninstall(target(), removal());
    expect(missingPrograms(target())).toEqual(["runc", "CNI plugins"]);
  });

  test("of the distribution are not replaced by the bundle's", async () => {
    const bundle = join(scratch, "bundle");
    mkdirSync(join(bundle, "cni"), { recursive: true });
    writeFileSync(join(bundle, "runc"), "runc 1");
    await install(target(), options());
    expect(existsSync(join(root, "usr/local/sbin/runc"))).toBe(false);
  });

  test("of Debian's packages wait while another program holds the lock of dpkg", async () => {
    const calls: string[][] = [];
    const command = (argv: string[]) => Promise.resolve(`call ${calls.push(argv)}`);
    await aptInstall({ command, report: (line) => said.push(line) }, ["runc"]);
    expect(calls.map((argv) => argv.join(" "))).toEqual([
      "apt-get update",
      "apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends runc",
    ]);
  });

  test("of Debian's packages wait while another program holds a lock of apt", async () => {
    const calls: string[] = [];
    const command = ([, ...words]: string[]) => {
      const isHeld = !calls.includes(words[0]!);
      calls.push(words[0]!);
      if (!isHeld) return Promise.resolve("");
      const held =
        words[0] === "update" ? "/var/lib/apt/lists/lock" : "/var/cache/apt/archives/lock";
      return Promise.reject(new Error(`apt-get: E: Could not get lock ${held}. It is held by 7`));
    };
    await aptInstall({ command, report: (line) => said.push(line) }, ["runc"]);
    expect(calls).toEqual(["update", "update", "-o", "-o"]);
    expect(said[0]).toBe("another program holds a lock of apt, waiting for it");
  });

  test("that are missing are named for a root folder, which gets no packages", async () => {
    chmodSync(join(root, "usr/sbin/iptables"), 0o644);
    await install(target(), options());
    expect(said).toContain(`missing in ${root}: iptables; install them there`);
  });
});

test("a bundle is a folder with runc and cni/, of the executable's owner", async () => {
  rmSync(join(root, "usr/sbin/runc"));
  const { bundle, executable } = options();
  writeFileSync(bundle, "#!/usr/bin/ruby\n");
  await install(target(), options());
  expect(said).toContain(`missing in ${root}: runc; install them there`);
  rmSync(bundle);
  mkdirSync(join(bundle, "cni"), { recursive: true });
  await install(target(), options());
  writeFileSync(join(bundle, "runc"), "planted");
  if (process.getuid?.() !== 0) return; // only root gives files away
  chownSync(bundle, 1, 1);
  expect(await failureOf(install(target(), options()))).toMatchObject({
    code: "FAILED_PRECONDITION",
    message: expect.stringContaining(`move ${executable} into a folder of its own`),
  });
  chownSync(executable, 1, 1);
  await install(target(), options());
  expect(read("/usr/local/sbin/runc")).toBe("planted");
});

test("new folders are readable for all, whatever the umask", async () => {
  const before = process.umask(0o077);
  try {
    await install(target(), options());
  } finally {
    process.umask(before);
  }
  for (const path of ["etc", "etc/isulad", "usr/local", "usr/local/share/isulad-ts"]) {
    expect(statSync(join(root, path)).mode & 0o777).toBe(0o755);
  }
});

test("a link that leads out of the root folder is not followed", async () => {
  const outside = join(scratch, "etc");
  mkdirSync(outside);
  symlinkSync(outside, join(root, "etc"));
  expect(await failureOf(install(target(), options()))).toMatchObject({
    code: "INTERNAL",
    message: expect.stringContaining(`etc is a link to ${outside}, outside of ${root}`),
  });
  expect(readdirSync(outside)).toEqual([]);
});

const main = join(import.meta.dirname, "../../../src/main.ts");

test("two at once in one folder are refused, one after the other are not", () => {
  {
    using _ = alone(target());
    expect(() => alone(target())).toThrow(
      `another isulad-ts install or uninstall is at work in ${root}`,
    );
    alone(target({ isDryRun: true }))[Symbol.dispose]();
    const elsewhere = { ...target(), root: scratch };
    alone(elsewhere)[Symbol.dispose]();
    for (const command of ["install", "uninstall"]) {
      const argv = [main, command, "--root", root];
      const { status, stderr } = spawnSync(process.execPath, argv, { encoding: "utf8" });
      expect([status, stderr]).toEqual([1, expect.stringContaining("is at work") as string]);
    }
  }
  alone(target())[Symbol.dispose]();
});

test("a lock's file goes with its owner, and a killed owner's is taken over", () => {
  const path = join(scratch, "lib", "lock");
  {
    using lock = lockWithFile(path);
    expect(lock).toBeDefined();
    expect(lockWithFile(path)).toBeUndefined();
  }
  expect(existsSync(path)).toBe(false);
  writeFileSync(path, "");
  lockWithFile(path)![Symbol.dispose]();
  expect(existsSync(path)).toBe(false);
});

test("--root must be the absolute path of a folder", () => {
  for (const wrong of ["relative", "/no/such/folder", join(scratch, "isulad-ts")]) {
    expect(() => targetOf({ root: wrong })).toThrow("--root takes the absolute path of a folder");
  }
  expect(targetOf({ root }).root).toBe(root);
  expect(targetOf({ root: "/" }).root).toBe("");
});
