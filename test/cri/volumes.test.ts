// Tests volumes that an image's configuration declares (Dockerfile's VOLUME), and settings of daemon.json for
// what a request leaves open.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import { cgroupMounts } from "../../src/node/cgroup.ts";
import { readHostInfo } from "../../src/node/host_probe.ts";
import type { OciSpec } from "../../src/spec/oci.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  await daemon.output(podId, pod, "true"); // systemd makes the pod's slice with its first container
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

test("daemon.json's settings decide what a request leaves open", async () => {
  const name = "example.test/volumes:0";
  await daemon.loadImage(busyboxImage({ Volumes: { "/data": {} } }), name);
  const request: ContainerConfig = {
    image: { image: name },
    annotations: { "io.kubernetes.cri.blockio-class": "slow" },
    linux: {
      security_context: { masked_paths: [] },
      resources: { hugepage_limits: [{ page_size: "2MB" }] },
    },
  };
  const specNow = async () => {
    const { id } = await daemon.output(podId, pod, "true", request);
    const { info } = await daemon.client.ContainerStatus({ container_id: id, verbose: true });
    await daemon.client.RemoveContainer({ container_id: id });
    const { mounts, linux } = (JSON.parse(info["info"]!) as { runtimeSpec: OciSpec }).runtimeSpec;
    return {
      volumes: mounts.filter(({ destination }) => destination === "/data").length,
      masked: (linux["maskedPaths"] as string[]).includes("/proc/kcore"),
      filter: linux.seccomp?.defaultAction,
      hugepages: linux.resources.hugepageLimits?.length ?? 0,
      readRate: Number(linux.resources.blockIO?.throttleReadBpsDevice?.[0]?.rate ?? 0),
    };
  };
  const blockio = join(daemon.dir, "blockio.yaml");
  const [disk] = readdirSync("/sys/block");
  writeFileSync(blockio, `Classes: {slow: [{Devices: [/dev/${disk}], ThrottleReadBps: 50M}]}`);
  const hasHugepages = readHostInfo(cgroupMounts(), {}).hugepageSizes.includes("2MB");
  const hugepages = hasHugepages ? 1 : 0;
  const asked = { volumes: 1, masked: false, filter: undefined, hugepages, readRate: 0 };
  daemon.writeConfig({ "ignore-blockio-not-enabled-errors": true });
  await daemon.restart();
  expect(await specNow()).toEqual(asked);
  daemon.writeConfig({
    "ignore-image-defined-volumes": true,
    "disable-proc-mount": true,
    "unset-seccomp-profile": "runtime/default",
    "disable-hugetlb-controller": true,
    "netns-mounts-under-state-dir": true,
    "blockio-config-file": blockio,
  });
  await daemon.restart();
  expect(await specNow()).toEqual({
    volumes: 0,
    masked: true,
    filter: "SCMP_ACT_ERRNO",
    hugepages: 0,
    readRate: 50_000_000,
  });
  const id = await daemon.runPod(daemon.podConfig());
  const { info } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: id, verbose: true });
  const { networkSettings } = JSON.parse(info["info"]!);
  expect(dirname(networkSettings.SandboxKey)).toBe(join(daemon.dir, "state/netns"));
  await daemon.restart();
  expect(existsSync(networkSettings.SandboxKey)).toBe(true);
  await daemon.client.RemovePodSandbox({ pod_sandbox_id: id });
  expect(existsSync(networkSettings.SandboxKey)).toBe(false);
  daemon.writeConfig({});
  await daemon.restart();
});

test("volumes that an image names are the container's own, with what the image has there", async () => {
  const name = "example.test/volumes:1";
  const Volumes = { "/data": {}, "new/": {}, "/asked": {}, "/link/in": {}, "/bin/../data/": {} };
  const layer = [
    { name: "data/", type: "5", mode: 0o1770, uid: 1000, gid: 50000 },
    { name: "data/file", uid: 1000, gid: 1000, mode: 0o640, data: "of the image\n" },
    { name: "data/host", type: "2", link: "/etc/shadow" },
    { name: "asked/here", data: "x" },
    { name: "outside", type: "2", link: "../../../../../.." },
    { name: "link", type: "2", link: "/outside/home" },
    { name: "home/in/kept", data: "kept\n" },
  ];
  await daemon.loadImage(busyboxImage({ Volumes }, layer), name);
  const folder = join(daemon.dir, "asked");
  mkdirSync(folder);
  const before = daemon.snapshot();
  const more: ContainerConfig = {
    image: { image: name },
    mounts: [{ host_path: folder, container_path: "/asked" }],
    linux: { security_context: { readonly_rootfs: true } },
  };
  const script = `stat -c '%a %u %g %n' /data /data/file /new; cat /data/file /link/in/kept
    readlink /data/host; ls /asked | wc -l
    echo y > /data/file && echo z > /new/made && cat /data/file; echo n > /root/x || echo refused`;
  const { text: said, id, status } = await daemon.output(podId, pod, script, more);
  expect(said.replaceAll(/^sh: .*\n/gm, "").split("\n")).toEqual([
    "1770 1000 50000 /data",
    "640 1000 1000 /data/file",
    "755 0 0 /new",
    "of the image",
    "kept",
    "/etc/shadow",
    "0",
    "y",
    "refused",
    "",
  ]);
  expect(status.mounts!.map((mount) => mount.container_path)).toEqual(["/asked"]);
  // Another container of the image starts with what the image has.
  const again = await daemon.output(podId, pod, "cat /data/file; ls /new", more);
  expect(again.text).toBe("of the image\n");
  for (const container_id of [id, again.id]) await daemon.client.RemoveContainer({ container_id });
  expect(await daemon.leaksSince(before)).toEqual([]);

  const many = Array.from({ length: 9 }, (_, n) => `l${n}`);
  const linked = Object.fromEntries(many.map((link) => [`/${link}`, {}]));
  const links = many.map((link) => ({ name: link, type: "2", link: "/bin" }));
  for (const [volume, Hostile] of [
    ["is not a directory", { "/bin/busybox": {} }],
    ["would copy the same folder", linked],
    ["1000 volumes", Object.fromEntries(Array.from({ length: 1000 }, (_, n) => [`/v${n}`, {}]))],
  ] as const) {
    const hostile = "example.test/hostile-volumes:1";
    await daemon.loadImage(busyboxImage({ Volumes: Hostile }, links), hostile);
    const error = await failure(daemon.create(podId, pod, "true", { image: { image: hostile } }));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain(volume);
    expect(await daemon.leaksSince(before)).toEqual([]);
  }
});

test("volumes at paths of the runtime's own mounts are left out, as of images for systemd", async () => {
  const name = "example.test/volumes:systemd";
  const Volumes = { "/sys/fs/cgroup": {}, "/proc/sys": {}, "/../..": {}, "/data": {} };
  await daemon.loadImage(busyboxImage({ Volumes }, [{ name: "data/file", data: "kept" }]), name);
  const script = "cat /data/file; grep -c ' /data ' /proc/self/mountinfo; cat /proc/self/mountinfo";
  const { text, id } = await daemon.output(podId, pod, script, { image: { image: name } });
  expect(text).toStartWith("kept1\n");
  const types = (path: string) =>
    text.split("\n").flatMap((line) => {
      const [mount = "", type = ""] = line.split(" - ");
      return mount.split(" ")[4] === path ? [type.split(" ")[0]] : [];
    });
  expect(types("/sys/fs/cgroup")).toEqual([expect.stringMatching(/^(cgroup2|tmpfs)$/)]);
  expect([types("/proc"), types("/proc/sys")]).toEqual([["proc"], ["proc"]]);
  expect(types("/")).toHaveLength(1);
  const { info } = await daemon.client.ContainerStatus({ container_id: id, verbose: true });
  const { mounts } = (JSON.parse(info["info"]!) as { runtimeSpec: OciSpec }).runtimeSpec;
  const sources = mounts.filter(({ source }) => source?.includes("/volumes/"));
  expect(sources.map(({ destination }) => destination)).toEqual(["/data"]);
  const logged = /volumes of the image are left out.*/.exec(daemon.log)?.[0];
  expect(logged).toContain(id);
  expect(logged).toContain("/sys/fs/cgroup /proc/sys /");
  await daemon.client.RemoveContainer({ container_id: id });
});
