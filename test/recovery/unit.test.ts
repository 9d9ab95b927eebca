// Tests the installation under a running systemd, only in the guest: the unit's environment and reload, five bad
// starts and five crashes in a row beside a running pod, and what an uninstall leaves.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { connect } from "../../src/cli/client.ts";
import { runtime } from "../../src/proto/messages.js";
import { isGuest, until } from "../expect.ts";
import { executable } from "../harness.ts";
import { busyboxImage, ociArchive } from "../image_maker.ts";

const isSkipped = !isGuest || !existsSync("/run/systemd/system");
if (isSkipped) console.error("skipped, this is no guest with systemd: the installed unit");

const configPath = "/etc/isulad/daemon.json";
const environmentPath = "/etc/default/isulad-ts";
const unit = "isulad-ts";
const image = "registry.example/busybox:1";
const { NamespaceMode } = runtime.v1;
const host = "unix:///var/run/isulad.sock";

let before: string[] = [];
let podPid = 0;

/** What the machine has of an installation. */
function traces(): string[] {
  const found = ["find / -xdev -name '*isulad*' -not -path '/src/*' -not -path '/tmp/*'"]
    .concat(
      "find /run/netns /var/lib/cni /opt/cni /etc/cni",
      // systemd makes slices of earlier tests again at a daemon-reload.
      "find /sys/fs/cgroup -name '*isulad*' -not -path '*/isuladtest*'",
    )
    .concat("pgrep -x isulad-ts", "ls /sys/class/net", "grep -o 'isulad.*' /proc/self/mountinfo");
  return found.flatMap((line) => shell(`${line} 2>/dev/null || true`).split("\n"));
}

function shell(script: string): string {
  const { status, stdout, stderr } = spawnSync("sh", ["-c", script], { encoding: "utf8" });
  if (status !== 0) throw new Error(`${script}: ${stdout}${stderr}`);
  return stdout.trim();
}

function property(name: string): string {
  return shell(`systemctl show -P ${name} ${unit}`);
}

/** Runs a pod in the host's network, which goes on whatever happens to the service. */
async function runPod(): Promise<number> {
  using client = connect(host);
  const archive = join("/tmp", "busybox.tar");
  writeFileSync(archive, ociArchive([{ image: busyboxImage(), name: image }]));
  await Array.fromAsync(client.Load({ path: archive, name: "" }));
  rmSync(archive);
  const namespace_options = { network: NamespaceMode.NODE, pid: NamespaceMode.CONTAINER };
  const linux = { security_context: { namespace_options } };
  const metadata = { name: "pod", uid: "uid", namespace: "test", attempt: 0 };
  const sandbox_config = { metadata, linux };
  const { pod_sandbox_id } = await client.RunPodSandbox({ config: sandbox_config });
  const config = { metadata: { name: "c", attempt: 0 }, image: { image }, linux };
  const command = ["sleep", "100000"];
  const request = { pod_sandbox_id, config: { ...config, command }, sandbox_config };
  const { container_id } = await client.CreateContainer(request);
  await client.StartContainer({ container_id });
  const { info } = await client.ContainerStatus({ container_id, verbose: true });
  return (JSON.parse(info["info"]!) as { pid: number }).pid;
}

async function answers(): Promise<boolean> {
  using client = connect(host);
  const version = await client.Version({}, { timeoutMs: 5_000 }).catch(() => undefined);
  return version !== undefined && property("ActiveState") === "active";
}

beforeAll(async () => {
  if (isSkipped) return;
  // An empty one is of earlier tests, and a mount; an uninstall removes it.
  shell("{ umount /run/netns; rmdir /run/netns; } 2>/dev/null || true");
  before = traces();
  writeFileSync(environmentPath, "NO_PROXY=example.test\nBUN_JSC_useBaselineJIT=0\n");
  shell(`${executable} install`);
  podPid = await runPod();
}, 300_000);
afterAll(() => {
  if (isSkipped) return;
  rmSync(environmentPath, { force: true });
  spawnSync(executable, ["uninstall", "--force"]);
});

test.skipIf(isSkipped)("the daemon has the variables of the environment file", () => {
  const variables = readFileSync(`/proc/${property("MainPID")}/environ`, "utf8").split("\0");
  expect(variables).toContain("NO_PROXY=example.test");
});

test.skipIf(isSkipped)(
  "a reload applies the configuration, and fails with the reason",
  async () => {
    const good = readFileSync(configPath, "utf8");
    writeFileSync(configPath, good.replace('"INFO"', '"DEBUG"'));
    shell(`systemctl reload ${unit}`);
    expect(shell(`journalctl -u ${unit} -o cat`)).toContain("applied=log-level");
    writeFileSync(configPath, good.replace('"log-level"', '"log-lvl"'));
    expect(() => shell(`systemctl reload ${unit}`)).toThrow();
    const log = shell(`journalctl -u ${unit} -o cat -n 20`);
    expect(log).toContain('unknown key "log-lvl"; the nearest known key is "log-level"');
    expect(await answers()).toBe(true);
    writeFileSync(configPath, good);
  },
);

test.skipIf(isSkipped)(
  "five bad starts in a row do not end it for good, and pods go on",
  async () => {
    const good = readFileSync(configPath, "utf8");
    writeFileSync(configPath, "{");
    const restarts = Number(property("NRestarts"));
    process.kill(Number(property("MainPID")), "SIGKILL");
    await until("it was started six times", () => Number(property("NRestarts")) > restarts + 5);
    expect(property("ActiveState")).toBe("activating");
    writeFileSync(configPath, good);
    await until("it serves after the mend", answers);
    expect(existsSync(`/proc/${podPid}`)).toBe(true);
  },
  300_000,
);

test.skipIf(isSkipped)(
  "five crashes in a row do not end it for good, and pods go on",
  async () => {
    for (let crash = 1; crash <= 5; crash++) {
      const pid = property("MainPID");
      process.kill(Number(pid), "SIGKILL");
      await until("another one runs", () => !["0", pid].includes(property("MainPID")));
      await until("it serves again", answers);
    }
    expect(existsSync(`/proc/${podPid}`)).toBe(true);
  },
  600_000,
);

test.skipIf(isSkipped)(
  "an uninstall refuses while a pod runs, and then leaves only data",
  () => {
    const uninstall = (...flags: string[]) => spawnSync(executable, ["uninstall", ...flags]);
    expect(String(uninstall().stderr)).toContain("pods run under isulad-ts: drain the node first");
    expect(existsSync(`/proc/${podPid}`)).toBe(true);
    expect(uninstall("--force").status).toBe(0);
    expect(existsSync(`/proc/${podPid}`)).toBe(false);
    rmSync("/var/lib/isulad", { recursive: true });
    rmSync(environmentPath);
    expect(traces()).toEqual(before);
  },
  300_000,
);
