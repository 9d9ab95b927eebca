// Tests install.sh: the trial, and the installation in a mount namespace with temporary /etc, /usr/local and
// /var.
import { expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../src/base/config.ts";

const root = join(import.meta.dirname, "..");
const minutesMs = 60_000;

function shell(script: string) {
  const { status, stdout, stderr } = spawnSync("bash", ["-c", script], {
    cwd: root,
    encoding: "utf8",
  });
  return { status, stdout, stderr };
}

function trialFolders(): string[] {
  return readdirSync("/var/tmp").filter((name) => name.startsWith("isulad-ts."));
}

test(
  "install.sh --trial shows a pod's output, its status and a command in it, and leaves nothing",
  () => {
    const before = trialFolders();
    const { status, stdout, stderr } = shell("./install.sh --trial");
    expect({ status, stderr: status === 0 ? "" : stderr }).toEqual({ status: 0, stderr: "" });
    expect(stdout).toMatch(/^Hello from a pod: busybox, inet 10\.87\.2\d\d\.\d+\/24$/m);
    expect(stdout).toMatch(/Ready +trial /);
    expect(stdout).toMatch(/Running +trial /);
    expect(stdout).toMatch(/^uid=0\(root\) gid=0/m);
    expect(trialFolders()).toEqual(before);
  },
  3 * minutesMs,
);

test(
  "install.sh --keep leaves the daemon running, and --stop takes everything away",
  () => {
    const dir = mkdtempSync("/var/tmp/isulad-keep.");
    const kept = shell(`./install.sh --trial ${dir} --keep`);
    const listed = shell(`ISULAD_HOST=unix://${dir}/isulad.sock dist/isulad-ts ps`);
    const nri = shell(`ISULAD_HOST=unix://${dir}/isulad.sock dist/isulad-ts nri`);
    const trial = loadConfig(join(dir, "daemon.json")).config;
    const stopped = shell(`./install.sh --stop ${dir}`);
    expect(nri).toMatchObject({ status: 0, stderr: "" });
    // The trial enables the same features as the installed file, in its own folder.
    const { enablePodEvents, nri: installed } = loadConfig(join(root, "dist/daemon.json")).config;
    expect(trial).toMatchObject({ enablePodEvents, nri: { support: installed.support } });
    const { socketPath, pluginPath, pluginConfigPath } = trial.nri;
    for (const path of [socketPath, pluginPath, pluginConfigPath]) expect(path).toStartWith(dir);
    expect([kept.status, stopped.status]).toEqual([0, 0]);
    expect(kept.stdout).toContain(`./install.sh --stop ${dir}`);
    expect(listed.stdout).toMatch(/Running +trial /);
    expect(shell(`ls -d ${dir}; grep -h ${dir} /proc/self/mountinfo /proc/*/cmdline`).stdout).toBe(
      "",
    );
    expect(shell("./install.sh --stop /etc").stderr).toContain("is not a trial's folder");
  },
  3 * minutesMs,
);

/** The cgroup of a trial's containers. */
function trialCgroup(dir: string): string {
  return /isulad-trial-\d+/.exec(readFileSync(join(dir, "daemon.json"), "utf8"))![0];
}

function processesIn(cgroup: string): string[] {
  const found = shell(`grep -l /${cgroup}/ /proc/[0-9]*/cgroup`).stdout;
  return found.split("\n").filter((line) => line !== "");
}

test(
  "install.sh --stop ends the containers of a trial whose daemon has been killed",
  () => {
    const dir = mkdtempSync("/var/tmp/isulad-keep.");
    expect(shell(`./install.sh --trial ${dir} --keep`).status).toBe(0);
    const cgroup = trialCgroup(dir);
    expect(processesIn(cgroup)).not.toEqual([]);
    shell(`kill -9 $(cat ${dir}/isulad.pid)`);
    expect(shell(`./install.sh --stop ${dir}`).status).toBe(0);
    expect(processesIn(cgroup)).toEqual([]);
    expect(shell(`ls -d ${dir}; grep -h ${dir} /proc/self/mountinfo /proc/*/cmdline`).stdout).toBe(
      "",
    );
  },
  6 * minutesMs,
);

test(
  "Ctrl-C in a terminal ends a trial and everything that it has started",
  async () => {
    const before = trialFolders();
    const stdio = ["ignore", "pipe", "ignore"] as const;
    const child = spawn("./install.sh", ["--trial"], {
      cwd: root,
      detached: true,
      stdio: [...stdio],
    });
    const exited = new Promise((resolve) => child.on("exit", resolve));
    const isUp = (text: string) => /Ready +trial /.test(text);
    let stdout = "";
    let cgroup = "";
    for await (const chunk of child.stdout) {
      const wasUp = isUp(stdout);
      stdout += String(chunk);
      if (wasUp || !isUp(stdout)) continue;
      const [folder] = trialFolders().filter((name) => !before.includes(name));
      cgroup = trialCgroup(join("/var/tmp", folder!));
      expect(processesIn(cgroup)).not.toEqual([]);
      process.kill(-child.pid!, "SIGINT"); // as a terminal does: to the whole process group
    }
    expect(await exited).toBe(130);
    expect(cgroup).not.toBe("");
    expect(processesIn(cgroup)).toEqual([]);
    expect(trialFolders()).toEqual(before);
  },
  6 * minutesMs,
);

// Without systemd, since it would be the host's: test/vm has one of its own. The sysctls of net belong to the
// network namespace.
const asInstalled = `
set -e
mkdir "$T/root"; mount -t tmpfs scratch "$T/root"
for d in /etc /usr/local /var; do
  mkdir -p "$T/root/$d/upper" "$T/root/$d/work"
  mount -t overlay overlay -o "lowerdir=$d,upperdir=$T/root$d/upper,workdir=$T/root$d/work" "$d"
done
rm -rf /etc/isulad /etc/cni/net.d /usr/local/bin/isulad-ts /usr/local/share/isulad-ts
if [ -d /run/systemd/system ]; then mount -t tmpfs scratch /run/systemd; fi
set +e
step() { echo "-- $1"; shift; "$@" 2>&1; echo "exit $?"; }
step install ./install.sh
ls /usr/local/bin/isulad-ts /etc/isulad/daemon.json /etc/cni/net.d
sed -i s/INFO/DEBUG/ /etc/isulad/daemon.json
step again ./install.sh
grep log-level /etc/isulad/daemon.json
sed -i s/log-level/log-lvl/ /etc/isulad/daemon.json
step broken ./install.sh
step typo ./install.sh --ofline
step uninstall ./install.sh --uninstall
ls /usr/local/bin/isulad-ts /etc/isulad/daemon.json /etc/cni/net.d 2>&1
`;

test(
  "install.sh installs, leaves a changed daemon.json alone, and takes back what nobody changed",
  () => {
    const dir = mkdtempSync(join(tmpdir(), "isulad-install-"));
    using _ = { [Symbol.dispose]: () => rmSync(dir, { recursive: true }) };
    writeFileSync(join(dir, "script"), asInstalled);
    const { stdout, stderr } = shell(`T=${dir} unshare --mount --net bash ${dir}/script`);
    const steps = Object.fromEntries(
      stdout
        .split(/^-- /m)
        .slice(1)
        .map((part) => [part.split("\n")[0], part]),
    );
    expect(steps["install"], stderr).toContain(
      "exit 0\n/etc/isulad/daemon.json\n/usr/local/bin/isulad-ts",
    );
    expect(steps["install"]).toMatch(/^10-isulad\.conflist$/m);
    expect(steps["again"]).toContain(
      "keep /etc/isulad/daemon.json, which was not installed by isulad-ts or was changed since",
    );
    expect(steps["again"]).toContain('"log-level": "DEBUG"');
    expect(steps["broken"]).toMatch(
      /daemon\.json:\d+: unknown key "log-lvl"; the nearest known key is "log-level"/,
    );
    expect(steps["broken"]).toContain("exit 1");
    expect(steps["typo"]).toMatch(
      /install has no option --ofline; did you mean --offline.*\nexit 2/,
    );
    expect(steps["uninstall"]).toContain(
      "keep /etc/isulad/daemon.json, which was changed since its installation",
    );
    expect(steps["uninstall"]).toMatch(
      /exit 0\n(.*No such file.*\n)*\/etc\/isulad\/daemon\.json\n/,
    );
    expect(steps["uninstall"]).not.toMatch(/^10-isulad/m);
  },
  3 * minutesMs,
);
