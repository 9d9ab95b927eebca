// Tests that generated specs work with the OCI runtime: it runs real containers on this host's cgroups,
// without the daemon.
import { describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { killAll, oomKills, processes } from "../../src/node/cgroup.ts";
import { runtime } from "../../src/proto/messages.js";
import { execProcess } from "../../src/spec/oci.ts";
import { until } from "../expect.ts";
import { cannotRun, Pod } from "./bundle.ts";

const why = cannotRun();
if (why !== "") console.error(`skipped, ${why}: specs run by a runtime`);

const { POD, CONTAINER } = runtime.v1.NamespaceMode;
const { PROPAGATION_BIDIRECTIONAL, PROPAGATION_HOST_TO_CONTAINER } = runtime.v1.MountPropagation;
const { RuntimeDefault } = runtime.v1.SecurityProfile.ProfileType;
const status = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status";
const privileged = { linux: { security_context: { privileged: true } } };

describe.skipIf(why !== "")("a generated spec", () => {
  test("runs in the pod's namespaces, with the pod's files and the usual capabilities", async () => {
    await using pod = await Pod.start();
    const script = `hostname; cat /etc/resolv.conf; readlink /proc/self/ns/net; ${status}; ls /dev`;
    const { exitCode, stdout, stderr } = await pod.run("plain", script);
    expect([exitCode, stderr]).toEqual([0, ""]);
    expect(stdout).toStartWith("pod-host\nnameserver 192.0.2.53\n");
    const netns = execFileSync("stat", ["-Lc", "net:[%i]", pod.sandbox.namespaces.net!]);
    expect(stdout).toContain(String(netns));
    expect(stdout).toContain("CapEff:\t00000000a80425fb\n");
    expect(stdout).toContain("CapInh:\t0000000000000000\n");
    expect(stdout).toContain("Seccomp:\t0\n");
    expect(stdout).not.toContain("vda");
  });

  test("confines an image's user under the default seccomp profile", async () => {
    await using pod = await Pod.start();
    const script = `id; ${status}; echo > /file; unshare -m true || echo confined`;
    const { stdout, stderr } = await pod.run("user", script, {
      linux: {
        resources: {
          memory_limit_in_bytes: toLong(64 << 20),
          cpu_shares: toLong(512),
          cpu_quota: toLong(50_000),
          cpu_period: toLong(100_000),
          oom_score_adj: toLong(500),
        },
        security_context: {
          run_as_username: "web",
          supplemental_groups: [toLong(1234)],
          no_new_privs: true,
          readonly_rootfs: true,
          seccomp: { profile_type: RuntimeDefault },
        },
      },
    });
    expect(stdout).toStartWith("uid=101(web) gid=102(web) groups=102(web),1234,50000(logs)\n");
    expect(stdout).toContain("NoNewPrivs:\t1\nSeccomp:\t2\n");
    expect(stdout).toEndWith("confined\n");
    expect(stderr).toContain("Read-only file system");
  });

  test("gives a privileged container devices, a writable /sys and no filter", async () => {
    await using pod = await Pod.start(privileged);
    const script = `${status}; mount -t tmpfs none /tmp && mount | grep -E ' /sys | /tmp '; ls /dev | wc -l`;
    const { stdout, stderr } = await pod.run("all", script, privileged);
    expect(stderr).toBe("");
    expect(stdout).toContain("Seccomp:\t0\n");
    expect(stdout).toMatch(/ on \/sys type sysfs \(rw,/);
    expect(Number(stdout.trim().split("\n").at(-1))).toBeGreaterThan(20);
  });

  test("mounts as CRI requests: linked, read-only and missing sources, in order", async () => {
    await using pod = await Pod.start();
    const file = (name: string) => join(pod.dir, name);
    mkdirSync(file("data"));
    writeFileSync(file("data/hello"), "hello\n");
    symlinkSync("data", file("link"));
    const script = "cat /mnt/ro/hello; echo > /mnt/ro/no; touch /mnt/made; mount | grep /mnt";
    const { stdout, stderr } = await pod.run("mounts", script, {
      mounts: [
        { container_path: "/mnt/ro", host_path: file("link"), readonly: true },
        { container_path: "/mnt", host_path: file("new/folder"), mount_options: ["noexec"] },
      ],
    });
    expect(stdout).toStartWith("hello\n");
    expect(stdout).toMatch(/ on \/mnt type \S+ \([^)]*noexec/);
    expect(stderr).toContain("Read-only file system");
    execFileSync("test", ["-e", file("new/folder/made")]);
  });

  test("gives the requested devices only", async () => {
    await using pod = await Pod.start();
    const device = { container_path: "/dev/mine", host_path: "/dev/zero", permissions: "r" };
    const script =
      "dd if=/dev/mine of=/dev/null bs=1 count=1 2>/dev/null && echo read; echo > /dev/mine";
    const { stdout, stderr } = await pod.run("device", script, { devices: [device] });
    // /dev/zero is among the devices that every container may write, whatever its name.
    expect([stdout, stderr]).toEqual(["read\n", ""]);
    const kmsg = { container_path: "/dev/kmsg", host_path: "/dev/kmsg", permissions: "w" };
    const denied = await pod.run("kmsg", "dd if=/dev/kmsg bs=1 count=1", { devices: [kmsg] });
    expect(denied.stderr).toContain("Operation not permitted");
  });
});

describe.skipIf(why !== "")("a pod's containers", () => {
  test("see each other's processes when the pod shares its pid namespace", async () => {
    await using pod = await Pod.start();
    await pod.pause();
    const shared = { linux: { security_context: { namespace_options: { pid: POD } } } };
    const { stdout } = await pod.run("shared", "ps -o pid,args; cat /proc/1/oom_score_adj", shared);
    expect(stdout).toMatch(/^ *1 \/bin\/sleep 1000$/m);
    const alone = { linux: { security_context: { namespace_options: { pid: CONTAINER } } } };
    expect((await pod.run("alone", "echo $$", alone)).stdout).toBe("1\n");
  });

  test("propagate mounts in the requested directions", async () => {
    await using pod = await Pod.start(privileged);
    const volume = join(pod.dir, "volume");
    mkdirSync(volume);
    // Private, whatever the mount above it is: systemd makes / shared.
    execFileSync("mount", ["-t", "tmpfs", "--make-private", "isulad-test", volume]);
    try {
      const hostPath = { container_path: "/v", host_path: volume };
      const up = { ...hostPath, propagation: PROPAGATION_BIDIRECTIONAL };
      const refused = await pod.run("refused", "true", { mounts: [up] }).catch(String);
      expect(refused).toContain("make-rshared");
      execFileSync("mount", ["--make-rshared", volume]);
      const script = "mkdir /v/up; mount -t tmpfs isulad-test /v/up && touch /v/up/made";
      const { stderr } = await pod.run("up", script, { ...privileged, mounts: [up] });
      expect(stderr).toBe("");
      expect(existsSync(join(volume, "up/made"))).toBe(true);

      const down = { ...hostPath, propagation: PROPAGATION_HOST_TO_CONTAINER };
      const seen = await pod.run("down", "ls /v/up; mount | grep -c ' /v/up '", { mounts: [down] });
      expect(seen.stdout).toBe("made\n1\n");
    } finally {
      execFileSync("umount", ["-R", volume]);
    }
  });
});

describe.skipIf(why !== "")("a container's cgroup", () => {
  test("keeps its limits and counts OOM kills while it continues to run", async () => {
    await using pod = await Pod.start();
    const { id, dir, spec } = await pod.bundle("oom", {
      command: ["/bin/sh", "-c", "dd if=/dev/zero of=/dev/null bs=200M count=1; sleep 60"],
      linux: { resources: { memory_limit_in_bytes: toLong(32 << 20) } },
    });
    expect(pod.runDetached(id, dir).exitCode).toBe(0);
    const paths = pod.driver.containerPaths("", pod.id, id);
    await until("one was killed", () => oomKills(paths) === 1n);
    expect(processes(paths).length).toBeGreaterThan(0);

    const execed = pod.exec(id, execProcess(spec.process, ["sh", "-c", "exit 3"], false));
    expect(execed.exitCode).toBe(3);

    await killAll(paths, AbortSignal.timeout(60_000));
    expect(processes(paths)).toEqual([]);
    expect(pod.runtime(["delete", id]).exitCode).toBe(0);
    await until("the cgroup is gone", () => oomKills(paths) === undefined);
  });

  test("is emptied by killAll() even while processes keep forking", async () => {
    await using pod = await Pod.start();
    const fork = "while true; do sleep 0.01 & sleep 100 & done";
    const { id, dir } = await pod.bundle("forks", { command: ["/bin/sh", "-c", fork] });
    expect(pod.runDetached(id, dir).exitCode).toBe(0);
    const paths = pod.driver.containerPaths("", pod.id, id);
    await until("there are 50 processes", () => processes(paths).length > 50);
    await killAll(paths, AbortSignal.timeout(60_000));
    expect(processes(paths)).toEqual([]);
  });

  test("is removed from every hierarchy with the pod", async () => {
    let paths: string[];
    {
      await using pod = await Pod.start();
      expect((await pod.run("short", "true")).exitCode).toBe(0);
      paths = Object.values(pod.driver.podCgroup("", pod.id).paths);
    }
    expect(paths.length).toBeGreaterThan(0);
    expect(paths.filter((path) => existsSync(path))).toEqual([]);
  });
});
