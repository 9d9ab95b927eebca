// Tests containers whose first process is systemd, with and without a user namespace, with the image of
// `bun test/systemd_image.ts`.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmodSync, existsSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import { kernelIsAtLeast } from "../../src/sys/kernel_version.ts";
import { isGuest, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { systemdImage } from "../systemd_image.ts";

const { NamespaceMode, Signal } = runtime.v1;
/** Of the Go module proxy (test/run): Debian 12's has no id-mapped mounts, which user namespaces need. */
const newRunc = join(import.meta.dirname, "../.cache/runc");
const isMade = existsSync(systemdImage);
if (!isMade) console.error(`skipped, ${systemdImage} is not there: containers with systemd`);
const why = !kernelIsAtLeast(6, 3)
  ? "this Linux cannot map the ids of a tmpfs"
  : existsSync(newRunc)
    ? ""
    : `${newRunc} is not there`;
if (why !== "") console.error(`skipped, ${why}: systemd in a user namespace`);

const handler = "runc-new";
const stopSeconds = isGuest ? 120 : 30;
const ids = [{ container_id: 0, host_id: 400_000, length: 65_536 }];
const userns_options = { mode: NamespaceMode.POD, uids: ids, gids: ids };
const modes = { network: NamespaceMode.POD, pid: NamespaceMode.CONTAINER };

let daemon: Daemon;
let image: string;
beforeAll(async () => {
  if (!isMade) return;
  const runtimes = why === "" ? { [handler]: { path: newRunc } } : {};
  const config = { "systemd-containers": "all", runtimes };
  daemon = await startDaemon({ config, image: false });
  chmodSync(daemon.dir, 0o711); // a pod's root passes it like everybody else
  const loaded = await Array.fromAsync(daemon.client.Load({ path: systemdImage, name: "" }));
  image = loaded.at(-1)!.images[0]!;
}, 600_000);
afterAll(() => daemon?.[Symbol.asyncDispose]());

describe.each([
  ["as the node's root", !isMade, modes],
  ["in a user namespace", !isMade || why !== "", { ...modes, userns_options }],
])("systemd %s", (_, isSkipped, namespace_options) => {
  let before: ReturnType<Daemon["snapshot"]>;
  let podId = "";
  let id = "";

  /** Returns the output of a command in the container. */
  async function sh(command: string): Promise<string> {
    const { stdout, stderr } = await daemon.exec(id, command, stopSeconds);
    return (stdout + stderr).trim();
  }

  test.skipIf(isSkipped)("comes up without a failed unit", async () => {
    before = daemon.snapshot();
    const pod = daemon.podConfig({ linux: { security_context: { namespace_options } } });
    podId = await daemon.runPod(pod, "userns_options" in namespace_options ? handler : "");
    id = await daemon.run(podId, pod, [], { image: { image } });
    let state = "";
    await until("systemd has started its units", async () => {
      state = await sh("systemctl is-system-running");
      return ["running", "degraded"].includes(state);
    });
    expect([state, await sh("systemctl --failed --no-legend --plain")]).toEqual(["running", ""]);
    expect(await sh("systemd-detect-virt --container")).not.toBe("none");
  });

  test.skipIf(isSkipped)("runs a service in a cgroup below its own, with a journal", async () => {
    const unit = "[Service]\nExecStart=/bin/sh -c 'echo from the service; exec sleep 600'";
    await sh(`echo "${unit}" > /run/systemd/system/app.service && systemctl daemon-reload`);
    expect(await sh("systemctl start app && systemctl is-active app")).toBe("active");
    const pid = await sh("systemctl show -P MainPID app");
    const cgroups = await sh(`cat /proc/${pid}/cgroup`);
    expect(cgroups).toMatch(/^(0:|\d+:name=systemd):\/system.slice\/app.service$/m);
    await until("the journal has it", async () =>
      (await sh("journalctl -u app -o cat")).includes("from the service"),
    );
  });

  test.skipIf(isSkipped)("cannot change its own limits, nor see other cgroups", async () => {
    // v1: a folder for each controller; v2: those below are its own to limit.
    const depth = "$([ -e /sys/fs/cgroup/cgroup.controllers ] && echo 1 || echo 2)";
    const tests = "-name '*.max' -o -name '*.limit*'";
    const files = await sh(`find /sys/fs/cgroup/ -maxdepth ${depth} ${tests}`);
    const names = files.split("\n");
    expect(names.length).toBeGreaterThan(2);
    const write = "(echo 1 > $file) 2>/dev/null && echo $file";
    expect(await sh(`for file in ${names.join(" ")}; do ${write}; done`)).toBe("");
    expect(await sh("cat /proc/1/cgroup")).not.toContain("/..");
  });

  test.skipIf(isSkipped)("ends cleanly within its deadline, and leaves nothing", async () => {
    expect((await daemon.status(id)).stop_signal).toBe(Signal.SIGNAL_SIGRTMINPLUS3);
    const start = performance.now();
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(stopSeconds) });
    expect(performance.now() - start).toBeLessThan(stopSeconds * 1000);
    expect((await daemon.status(id)).exit_code).not.toBe(137);
    await daemon.removePod(podId);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});
