// Tests cgroup mounts, the paths and folders of both cgroup drivers, and the killing and removing of cgroups.
import { afterAll, afterEach, describe, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../../src/base/errors.ts";
import {
  cgroupFolders,
  cgroupMounts,
  type CgroupMounts,
  killAll,
  killOnce,
  oomKills,
  parseOomKills,
  processes,
  removeCgroup,
  survivors,
} from "../../../src/node/cgroup.ts";
import { cgroupfsDriver } from "../../../src/node/cgroupfs.ts";
import { systemdDriver } from "../../../src/node/systemd.ts";
import { readMountTable } from "../../../src/sys/mount_table.ts";
import { failure } from "../../expect.ts";

const scratch = mkdtempSync(join(tmpdir(), "isulad-cgroup-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

const signal = () => AbortSignal.timeout(60_000);

/** Creates a hierarchy of plain folders with the files that a cgroup file system would have. */
function hierarchy(name: string, controllers = ""): string {
  const root = join(scratch, name);
  mkdirSync(root, { recursive: true });
  writeFileSync(join(root, "cgroup.controllers"), controllers);
  writeFileSync(join(root, "cgroup.subtree_control"), "");
  return root;
}

const v1: CgroupMounts = {
  version: 1,
  roots: { cpu: hierarchy("cpu"), cpuacct: hierarchy("cpu"), memory: hierarchy("memory") },
};

describe("cgroupMounts()", () => {
  const line = (folder: string, type: string, options: string) =>
    `30 23 0:26 / ${folder} rw,nosuid - ${type} ${type} rw,${options}\n`;

  test("treats a hybrid host as v1 with an additional unified hierarchy", () => {
    const text =
      line("/sys/fs/cgroup", "tmpfs", "mode=755") +
      line("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct") +
      line("/sys/fs/cgroup/systemd", "cgroup", "xattr,name=systemd") +
      line("/sys/fs/cgroup/uni\\040fied", "cgroup2", "nsdelegate");
    expect(cgroupMounts(readMountTable(text))).toEqual({
      version: 1,
      roots: {
        cpu: "/sys/fs/cgroup/cpu,cpuacct",
        cpuacct: "/sys/fs/cgroup/cpu,cpuacct",
        "name=systemd": "/sys/fs/cgroup/systemd",
        hybrid: "/sys/fs/cgroup/uni fied",
      },
    });
  });

  test("finds v2, and reports a host without cgroups", () => {
    const text = line("/sys/fs/cgroup", "cgroup2", "nsdelegate");
    expect(cgroupMounts(readMountTable(text))).toEqual({
      version: 2,
      roots: { unified: "/sys/fs/cgroup" },
    });
    const named = text + line("/sys/fs/cgroup/systemd", "cgroup", "name=systemd");
    expect(cgroupMounts(readMountTable(named)).version).toBe(2);
    expect(() => cgroupMounts([])).toThrow("no cgroup file system is mounted");
  });
});

describe("cgroupfsDriver()", () => {
  const driver = cgroupfsDriver(v1, "");

  test("puts containers below the kubelet's parent, or below /isulad and the pod", () => {
    expect(driver.containerCgroupsPath("/kubepods/pod1", "p", "c")).toBe("/kubepods/pod1/c");
    expect(driver.containerCgroupsPath("", "p", "c")).toBe("/isulad/p/c");
    expect(driver.podCgroup("kubepods/", "p")).toMatchObject({
      ociParent: "/kubepods",
      path: "/kubepods",
    });
    expect(driver.containerPaths("", "p", "c")["memory"]).toBe(join(scratch, "memory/isulad/p/c"));
  });

  test("pathsOf() accepts absolute paths only", () => {
    expect(driver.pathsOf("/a/b")["memory"]).toBe(join(scratch, "memory/a/b"));
    expect(() => driver.pathsOf("a/b")).toThrow("is not absolute");
  });

  test("refuses parents that leave the hierarchy", () => {
    for (const parent of ["/", "..", "/a/../../b", "/a b", "/a\n"]) {
      expect(() => driver.podCgroup(parent, "p")).toThrow(CriError);
    }
  });

  test("a configured parent is removed with its last pod, in any order", async () => {
    const configured = cgroupfsDriver(v1, "/node/pods");
    const one = await configured.createPodCgroup("", "one", signal());
    const two = await configured.createPodCgroup("", "two", signal());
    await configured.removePodCgroup({ parent: "", podId: "one", ...one }, signal());
    expect(existsSync(join(scratch, "memory/node/pods/two"))).toBe(true);
    expect(existsSync(join(scratch, "memory/node/pods/one"))).toBe(false);
    await configured.removePodCgroup({ parent: "", podId: "two", ...two }, signal());
    expect(existsSync(join(scratch, "memory/node"))).toBe(false);
  });

  test("removes what it created, /isulad with the last pod, and no other folders", async () => {
    const one = await driver.createPodCgroup("", "one", signal());
    const two = await driver.createPodCgroup("", "two", signal());
    expect([one.made, two.made]).toEqual(["/isulad/one", "/isulad/two"]);
    mkdirSync(join(scratch, "cpu/isulad/one/left-behind"));
    await driver.removePodCgroup({ parent: "", podId: "one", ...one }, signal());
    expect(existsSync(join(scratch, "cpu/isulad/one"))).toBe(false);
    expect(existsSync(join(scratch, "memory/isulad/two"))).toBe(true);
    await driver.removePodCgroup({ parent: "", podId: "two", ...two }, signal());
    await driver.removePodCgroup({ parent: "", podId: "two", ...two }, signal());
    expect(existsSync(join(scratch, "memory/isulad"))).toBe(false);

    mkdirSync(join(scratch, "memory/kubepods"));
    const deep = await driver.createPodCgroup("/kubepods/burstable/pod1", "p", signal());
    expect(deep.made).toBe("/kubepods/burstable");
    expect((await driver.createPodCgroup("/kubepods/burstable/pod1", "p", signal())).made).toBe(
      undefined,
    );
    await driver.removePodCgroup(
      { parent: "/kubepods/burstable/pod1", podId: "p", ...deep },
      signal(),
    );
    await driver.removePodCgroup({ parent: "/kubepods/burstable/pod1", podId: "p" }, signal());
    expect(existsSync(join(scratch, "memory/kubepods"))).toBe(true);
    expect(existsSync(join(scratch, "memory/kubepods/burstable"))).toBe(false);
  });

  test("a partially created pod cgroup is removed after a failure", async () => {
    const root = hierarchy("v2-refusing", "memory\n"); // The folders made in it have no kernel files.
    const mounts: CgroupMounts = { version: 2, roots: { unified: root } };
    const refused = cgroupfsDriver(mounts, "").createPodCgroup("", "p", signal());
    expect(refused).rejects.toThrow(/^cannot create cgroup \/isulad\/p: .*cgroup\.controllers/);
    await refused.catch(() => {});
    expect(existsSync(join(root, "isulad"))).toBe(false);
  });

  test("enables v2's controllers down to the pod", async () => {
    const root = hierarchy("v2", "memory\n");
    for (const folder of ["isulad", "isulad/p"]) hierarchy(`v2/${folder}`, "memory\n");
    const mounts: CgroupMounts = { version: 2, roots: { unified: root } };
    await cgroupfsDriver(mounts, "").createPodCgroup("", "p", signal());
    const enabled = (folder: string) =>
      readFileSync(join(root, folder, "cgroup.subtree_control"), "utf8");
    expect([enabled(""), enabled("isulad"), enabled("isulad/p")]).toEqual(Array(3).fill("+memory"));
  });
});

describe("systemdDriver()", () => {
  const driver = systemdDriver({ version: 2, roots: { unified: "/c" } }, "");

  test("uses the last element of the kubelet's path, and derives the folder from it", () => {
    const parent = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice";
    expect(driver.containerCgroupsPath(parent, "p", "c")).toBe(
      "kubepods-burstable-pod1_2.slice:cri-containerd:c",
    );
    expect(driver.containerPaths(parent, "p", "c")).toEqual({
      unified: `/c${parent}/cri-containerd-c.scope`,
    });
    expect(driver.podCgroup("", "p")).toEqual({
      ociParent: "isulad-podp.slice",
      path: "/isulad.slice/isulad-podp.slice", // what CNI plugins get
      paths: { unified: "/c/isulad.slice/isulad-podp.slice" },
    });
  });

  test("refuses a parent that is not a slice, and says what to do", () => {
    for (const parent of ["/kubepods/pod1", "a--b.slice", "-.slice", ".slice", "a b.slice"]) {
      expect(() => driver.podCgroup(parent, "p")).toThrow("needs the name of a slice");
    }
    expect(() => systemdDriver({ version: 2, roots: { unified: "/c" } }, "/isulad")).toThrow(
      "systemd-cgroup to false",
    );
  });

  test.each(["a.slice", "a.slice:b", "a.slice:b:c:d", "a.slice::c", "a.slice:b:c/d", "/a:b:c"])(
    "pathsOf() refuses %s",
    (path) => {
      expect(() => driver.pathsOf(path)).toThrow(CriError);
    },
  );

  test("names scopes as containerd does; Falco's and Cilium's agents know no other names", () => {
    const id = "f".repeat(64);
    const path = driver.containerCgroupsPath("a-b.slice", "p", id);
    const unified = `/c/a.slice/a-b.slice/cri-containerd-${id}.scope`;
    expect(driver.pathsOf(path)).toEqual({ unified });
    expect(driver.containerPaths("a-b.slice", "p", id)).toEqual({ unified });
  });

  test("finds the scope of a container that an earlier build has started", () => {
    const unified = hierarchy("former");
    const former = join(unified, "a.slice/isulad-c1.scope");
    mkdirSync(former, { recursive: true });
    const own = systemdDriver({ version: 2, roots: { unified } }, "");
    expect(own.containerPaths("a.slice", "p", "c1")).toEqual({ unified: former });
    expect(own.containerPaths("a.slice", "p", "c2")).toEqual({
      unified: join(unified, "a.slice/cri-containerd-c2.scope"),
    });
  });

  test("pathsOf() accepts SLICE:PREFIX:NAME", () => {
    expect(driver.pathsOf("a-b.slice:cri:c1")).toEqual({
      unified: "/c/a.slice/a-b.slice/cri-c1.scope",
    });
  });

  describe("with systemctl", () => {
    const bin = join(scratch, "bin");
    const path = process.env["PATH"];
    const calls = join(scratch, "systemctl-calls");
    const unified = hierarchy("systemd");
    const properties = join(scratch, "system.control");
    const isRunning = () => true;
    const own = systemdDriver({ version: 2, roots: { unified } }, "", { properties, isRunning });
    mkdirSync(bin);
    afterEach(() => {
      process.env["PATH"] = path;
    });

    /** Installs a systemctl that prints and exits with the code, and returns the calls. */
    function fakeSystemctl(exitCode: number, output = ""): () => string {
      writeFileSync(calls, "");
      const text = `#!/bin/sh\necho "$@" >> ${calls}\necho ${output}\nexit ${exitCode}\n`;
      writeFileSync(join(bin, "systemctl"), text, { mode: 0o755 });
      process.env["PATH"] = `${bin}:${path}`;
      return () => readFileSync(calls, "utf8");
    }

    test("without systemd it makes no pod, and removes one without asking", async () => {
      const options = { properties, isRunning: () => false };
      const driver = systemdDriver({ version: 2, roots: { unified } }, "", options);
      const called = fakeSystemctl(1);
      expect(await failure(driver.createPodCgroup("", "p", signal()))).toMatchObject({
        code: "FAILED_PRECONDITION",
        message: expect.stringContaining('"systemd-cgroup": "auto"'),
      });
      await driver.removePodCgroup(driver.ownPod("p"), signal());
      const parent = "/kubepods.slice/kubepods-podx.slice";
      await driver.removePodCgroup({ parent, podId: "p", made: "kubepods-podx.slice" }, signal());
      expect(called()).toBe("");
    });

    test.each([0, 5])("stops the slice; systemctl may exit with %d", async (exitCode) => {
      const called = fakeSystemctl(exitCode);
      await own.removePodCgroup(own.ownPod("p"), signal());
      expect(called()).toBe("stop --quiet isulad-podp.slice\n");
    });

    test.each([
      ["252", "OOMPolicy=stop", { "org.systemd.property.OOMPolicy": "'continue'" }],
      ["247", "", {}],
    ])("asks systemd %s once what its scopes have", async (_version, output, annotations) => {
      const driver = systemdDriver({ version: 2, roots: { unified } }, "", {
        properties,
        isRunning,
      });
      fakeSystemctl(1, output);
      expect(await failure(driver.containerAnnotations(signal()))).toMatchObject({
        code: "UNAVAILABLE",
      });
      const called = fakeSystemctl(0, output);
      for (const _ of [1, 2]) {
        expect(await driver.containerAnnotations(signal())).toEqual(annotations);
      }
      expect(called()).toBe("show --property=OOMPolicy init.scope\n");
    });

    const limits = { devices: [], memory: { limit: 64n << 20n }, cpu: { quota: 5_000n } };

    test("limits a pod by its slice's properties, and removes them with the pod", async () => {
      const called = fakeSystemctl(0);
      await own.limitPod("p", limits, signal());
      expect(called()).toBe(
        "set-property --runtime isulad-podp.slice MemoryMax=67108864 CPUQuota=5.00%\n",
      );
      for (const pod of ["p", "other"]) {
        mkdirSync(join(properties, `isulad-pod${pod}.slice.d`), { recursive: true });
        writeFileSync(join(properties, `isulad-pod${pod}.slice.d/50-MemoryMax.conf`), "");
      }
      await own.removePodCgroup(own.ownPod("p"), signal());
      expect(readdirSync(properties)).toEqual(["isulad-podother.slice.d"]);
    });

    test("fails to limit a pod with systemctl", () => {
      fakeSystemctl(1);
      expect(own.limitPod("p", limits, signal())).rejects.toMatchObject({
        code: "FAILED_PRECONDITION",
        message: expect.stringContaining("cannot set MemoryMax=67108864 CPUQuota"),
      });
    });

    test("fails with systemctl", async () => {
      fakeSystemctl(1);
      expect(own.removePodCgroup(own.ownPod("p"), signal())).rejects.toThrow(
        "cannot stop isulad-podp",
      );
    });

    test("keeps a slice that existed before, and a given one with other pods", async () => {
      const called = fakeSystemctl(0);
      await own.removePodCgroup({ parent: "", podId: "p" }, signal());
      mkdirSync(join(unified, "a.slice"));
      writeFileSync(join(unified, "a.slice/cgroup.procs"), "1\n");
      const given = { parent: "a.slice", podId: "p", made: "a.slice" };
      await own.removePodCgroup(given, signal());
      expect(called()).toBe("");
      writeFileSync(join(unified, "a.slice/cgroup.procs"), "");
      await own.removePodCgroup(given, signal());
      expect(called()).toBe("stop --quiet a.slice\n");
    });
  });
});

describe("killing and removing", () => {
  test("killOnce() writes cgroup.kill on v2, else kills each process", async () => {
    const unified = hierarchy("kill");
    writeFileSync(join(unified, "cgroup.kill"), "");
    killOnce({ unified });
    expect(readFileSync(join(unified, "cgroup.kill"), "utf8")).toBe("1");
    const child = Bun.spawn(["sleep", "600"]);
    const freezer = hierarchy("freezer");
    writeFileSync(join(freezer, "cgroup.procs"), `${child.pid}\n`);
    writeFileSync(join(freezer, "freezer.state"), "");
    killOnce({ freezer });
    await child.exited;
    expect(child.signalCode).toBe("SIGKILL");
    expect(readFileSync(join(freezer, "freezer.state"), "utf8")).toBe("THAWED");
  });

  test("killAll() names the survivors when its signal aborts", async () => {
    const unified = hierarchy("survivors");
    writeFileSync(join(unified, "cgroup.kill"), "");
    writeFileSync(join(unified, "cgroup.procs"), `${process.pid}\n`);
    const error = await failure(killAll({ unified }, AbortSignal.timeout(20)));
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(error.message).toContain(`SIGKILL has not ended process ${process.pid} (`);
    writeFileSync(join(unified, "cgroup.procs"), "");
    await killAll({ unified }, signal());
    expect(survivors({ unified })).toContain("its cgroup is empty");
  });

  test("removeCgroup() removes child cgroups, and fails at once unless the kernel is busy", async () => {
    const unified = join(scratch, "removed");
    mkdirSync(join(unified, "a/b"), { recursive: true });
    await removeCgroup({ unified }, signal());
    await removeCgroup({ unified }, signal());
    expect(existsSync(unified)).toBe(false);
    const refused = await failure(removeCgroup({ unified: hierarchy("refused") }, signal()));
    expect(refused).toMatchObject({ code: "FAILED_PRECONDITION" });
  });
});

describe("counters and processes", () => {
  test("OOM kills are read from either version's file, and unknown once the cgroup is removed", () => {
    expect(parseOomKills("low 0\nhigh 0\nmax 3\noom 3\noom_kill 2\noom_group_kill 0\n")).toBe(2n);
    expect(parseOomKills("oom_kill_disable 0\nunder_oom 0\noom_kill 18446744073709551615\n")).toBe(
      18_446_744_073_709_551_615n,
    );
    expect(parseOomKills("oom_kill_disable 0\n")).toBe(0n);
    expect(oomKills(cgroupFolders(v1, "/no/such"))).toBeUndefined();
    expect(processes(cgroupFolders(v1, "/no/such"))).toEqual([]);
  });
});
