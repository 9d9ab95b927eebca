// Tests mounts in containers (host folders, images, the pod's files) and the requests that are refused.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import type { Mount, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { busybox, type Daemon, startDaemon } from "../harness.ts";
import { makeImage, makeLayer } from "../image_maker.ts";

const { PROPAGATION_BIDIRECTIONAL, PROPAGATION_HOST_TO_CONTAINER } = runtime.v1.MountPropagation;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
/** The host's folders of these tests, on a mount of their own. */
let host: string;
beforeAll(async () => {
  daemon = await startDaemon({ network: false });
  host = join(daemon.dir, "host");
  mkdirSync(host);
  execFileSync("mount", ["-t", "tmpfs", "tmpfs", host]);
  execFileSync("mount", ["--make-private", host]);
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  await daemon.output(podId, pod, "true");
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** A new folder of the host with a file in it. */
function hostFolder(name: string): string {
  const folder = join(host, name);
  mkdirSync(join(folder, "sub"), { recursive: true });
  writeFileSync(join(folder, "file"), `of ${name}\n`);
  return folder;
}

const output = (command: string, mounts: Mount[]) => daemon.output(podId, pod, command, { mounts });

/** CreateContainer's error for refused mounts; checks that nothing is left. */
async function refusal(mounts: Mount[]): Promise<{ code: string; message: string }> {
  const before = daemon.snapshot();
  const { code, message } = await failure(daemon.create(podId, pod, "true", { mounts }));
  expect(await daemon.leaksSince(before)).toEqual([]);
  return { code, message };
}

/** Options of the last mount at a path in a container. */
const optionsOf = (path: string) =>
  `awk '$5 == "${path}" { o = $6 } END { print o }' /proc/self/mountinfo`;

describe("the host's folders", () => {
  test("are writable or read-only, and ContainerStatus lists exactly these", async () => {
    const [free, fixed] = [hostFolder("free"), hostFolder("fixed")];
    const mounts: Mount[] = [
      { container_path: "/free", host_path: free },
      { container_path: "/fixed/", host_path: fixed, readonly: true, selinux_relabel: true },
    ];
    const { text, status } = await output(
      "cat /free/file /fixed/file; echo x > /free/new; touch /fixed/new 2>&1 || echo no",
      mounts,
    );
    expect(text).toBe("of free\nof fixed\ntouch: /fixed/new: Read-only file system\nno\n");
    expect(readFileSync(join(free, "new"), "utf8")).toBe("x\n");
    expect(status.mounts).toMatchObject(mounts);
    expect(status.mounts).toHaveLength(2);
  });

  test("get noexec, nodev and nosuid as requested, which Status reports as a feature", async () => {
    const folder = hostFolder("options");
    const mount_options = ["noexec", "nodev", "nosuid"];
    const mounts = [{ container_path: "/o", host_path: folder, mount_options }];
    const script = `${optionsOf("/o")}; cp /bin/busybox /o/; /o/busybox true 2>&1 || echo no`;
    const { text, status } = await output(script, mounts);
    expect(text).toMatch(/^rw,nosuid,nodev,noexec,relatime\n/);
    expect(text).toMatch(/Permission denied\nno\n$/);
    expect(status.mounts![0]!.mount_options).toEqual(mount_options);
    expect((await daemon.client.Status({})).features?.mount_options).toBe(true);
  });

  test("are found behind symbolic links; a file can be mounted too", async () => {
    const folder = hostFolder("target");
    symlinkSync("target", join(host, "link"));
    const { text } = await output("cat /a/file /b; touch /a/through", [
      { container_path: "/a", host_path: join(host, "link") },
      { container_path: "/b", host_path: join(host, "link/file") },
    ]);
    expect(text).toBe("of target\nof target\n");
    expect(existsSync(join(folder, "through"))).toBe(true);
  });

  test("are created if missing", async () => {
    const missing = join(host, "is/not/there");
    await output("touch /m/made", [{ container_path: "/m", host_path: missing }]);
    expect(existsSync(join(missing, "made"))).toBe(true);
    expect(statSync(missing).mode & 0o777).toBe(0o755);
  });

  test("behind a dangling link are refused", async () => {
    symlinkSync("nowhere", join(host, "dangling"));
    const mounts = [{ container_path: "/m", host_path: join(host, "dangling") }];
    expect(await refusal(mounts)).toMatchObject({
      code: "FAILED_PRECONDITION",
      message: expect.stringContaining("dangling") as string,
    });
  });
});

test("reject-missing-mount-sources: nothing is created, and the error names the key", async () => {
  const config = { "reject-missing-mount-sources": true };
  await using strict = await startDaemon({ network: false, config });
  const pod = strict.hostPodConfig();
  const id = await strict.runPod(pod);
  const missing = join(strict.dir, "missing");
  const mounts = (host_path: string) => ({ mounts: [{ container_path: "/m", host_path }] });
  const { code, message } = await failure(strict.create(id, pod, "true", mounts(missing)));
  expect(code).toBe("FAILED_PRECONDITION");
  expect(message).toContain(missing);
  expect(message).toContain("reject-missing-mount-sources");
  expect(existsSync(missing)).toBe(false);
  const { exitCode } = await strict.output(id, pod, "test -d /m/cni", mounts(strict.dir));
  expect(exitCode).toBe(0);
});

describe("propagation", () => {
  const nested = (folder: string, name: string) => {
    execFileSync("mount", ["-t", "tmpfs", "tmpfs", join(folder, name)]);
    writeFileSync(join(folder, name, "seen"), "");
  };
  const sharedFolder = (name: string) => {
    const folder = hostFolder(name);
    for (const one of ["before", "after", "within"]) mkdirSync(join(folder, one));
    execFileSync("mount", ["--bind", folder, folder]);
    execFileSync("mount", ["--make-shared", folder]);
    nested(folder, "before");
    return folder;
  };

  test.each([
    { name: "private", propagation: 0, seen: false, back: false },
    { name: "slave", propagation: PROPAGATION_HOST_TO_CONTAINER, seen: true, back: false },
    { name: "shared", propagation: PROPAGATION_BIDIRECTIONAL, seen: true, back: true },
  ])("$name: later mounts reach it: $seen, and the host: $back", async (one) => {
    const { name, propagation, seen, back } = one;
    const folder = sharedFolder(`later-${name}`);
    const mounts = [{ container_path: "/p", host_path: folder, propagation }];
    const { namespace_options } = pod.linux!.security_context!;
    const privileged = { linux: { security_context: { privileged: true, namespace_options } } };
    const config = { ...pod, metadata: { ...pod.metadata, name: `p-${name}` }, ...privileged };
    const id = await daemon.runPod(config);
    const container = await daemon.run(id, config, ["sleep", "600"], { mounts, ...privileged });
    const exists = async (path: string) =>
      (await daemon.exec(container, `test -e /p/${path}`)).exitCode === 0;
    expect(await exists("before/seen")).toBe(true);
    nested(folder, "after");
    expect(await exists("after/seen")).toBe(seen);
    const within = await daemon.exec(
      container,
      "mount -t tmpfs t /p/within && touch /p/within/seen",
    );
    expect(within).toMatchObject({ exitCode: 0, stderr: "" });
    expect(existsSync(join(folder, "within/seen"))).toBe(back);
    await daemon.removePod(id);
    execFileSync("umount", ["--recursive", folder]);
  });

  test("needs a source that is on a shared mount, or a slave of one", async () => {
    const host_path = hostFolder("private-one");
    for (const propagation of [PROPAGATION_HOST_TO_CONTAINER, PROPAGATION_BIDIRECTIONAL]) {
      expect(await refusal([{ container_path: "/p", host_path, propagation }])).toMatchObject({
        code: "FAILED_PRECONDITION",
        message: expect.stringMatching(/private-one.* shared .*make-rshared/) as string,
      });
    }
  });
});

describe("recursive read-only", () => {
  test("holds for what is mounted below, where plain read-only does not", async () => {
    const folder = hostFolder("deep");
    execFileSync("mount", ["-t", "tmpfs", "tmpfs", join(folder, "sub")]);
    const mount = { container_path: "/d", host_path: folder, readonly: true };
    const script = "touch /d/x 2>/dev/null || echo top; touch /d/sub/x 2>/dev/null || echo below";
    expect((await output(script, [mount])).text).toBe("top\n");
    const features = (await daemon.client.Status({})).runtime_handlers.find((one) => !one.name);
    const rro = [{ ...mount, recursive_read_only: true }];
    if (features?.features?.recursive_read_only_mounts) {
      const { text, status } = await output(script, rro);
      expect(text).toBe("top\nbelow\n");
      expect(status.mounts![0]!.recursive_read_only).toBe(true);
    } else {
      expect((await refusal(rro)).message).toContain("RROUnsupported");
    }
    execFileSync("umount", [join(folder, "sub")]);
  });

  test("is refused without readonly or with propagation, never weakened", async () => {
    const rro = { container_path: "/d", host_path: hostFolder("weak"), recursive_read_only: true };
    expect((await refusal([rro])).message).toContain("needs readonly");
    const propagation = PROPAGATION_HOST_TO_CONTAINER;
    const slave = await refusal([{ ...rro, readonly: true, propagation }]);
    expect(slave).toMatchObject({ code: "INVALID_ARGUMENT" });
    expect(slave.message).toContain("private propagation");
  });
});

describe("image volumes", () => {
  const name = "example.test/data:1";
  const files = [
    { name: "etc/", type: "5" },
    { name: "etc/passwd", data: "from the image\n" },
    { name: "run", data: "#!/bin/sh\necho runs\n", mode: 0o755 },
    { name: "inside", type: "2", link: "/etc" },
    { name: "outside", type: "2", link: "../../../../../../../../tmp" },
  ];
  let image: string;
  beforeAll(async () => {
    await daemon.loadImage(makeImage([makeLayer(files)], {}), name);
    image = (await daemon.client.ImageStatus({ image: { image: name } })).image!.id!;
  });
  const volume = (more: Mount = {}): Mount => ({
    container_path: "/image",
    readonly: true,
    image: { image: name, user_specified_image: name },
    ...more,
  });

  test("show the image, which can be run and not written, and ContainerStatus its id", async () => {
    const before = daemon.snapshot();
    const script = "cat /image/etc/passwd; /image/run; touch /image/x 2>&1 || echo no";
    const { text, status, id } = await output(script, [volume()]);
    expect(text).toBe("from the image\nruns\ntouch: /image/x: Read-only file system\nno\n");
    expect(status.mounts).toMatchObject([{ image: { image: name, image_ref: image } }]);
    await daemon.client.RemoveContainer({ container_id: id });
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("twice in one container, with a folder of the image and by its id", async () => {
    const before = daemon.snapshot();
    const { text, id } = await output("cat /image/passwd /again/passwd; ls /whole", [
      volume({ image_sub_path: "etc" }),
      volume({ container_path: "/again", image_sub_path: "inside", image: { image } }),
      volume({ container_path: "/whole" }),
    ]);
    expect(text).toBe("from the image\nfrom the image\netc\ninside\noutside\nrun\n");
    await daemon.client.RemoveContainer({ container_id: id });
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("survive removal of the image and a killed daemon, and are removed with the container", async () => {
    const own = "example.test/other:1";
    await daemon.loadImage(makeImage([makeLayer([{ name: "only", data: "here" }])], {}), own);
    const mounts = [volume({ image: { image: own } })];
    const id = await daemon.run(podId, pod, ["sleep", "600"], { mounts });
    await daemon.client.RemoveImage({ image: { image: own } });
    await daemon.restart("SIGKILL");
    expect((await daemon.exec(id, "cat /image/only")).stdout).toBe("here");
    expect(readFileSync("/proc/self/mountinfo", "utf8")).toContain(`${id}/image-volumes`);
    await daemon.client.RemoveContainer({ container_id: id });
    expect(readFileSync("/proc/self/mountinfo", "utf8")).not.toContain(id);
    const gone = await refusal(mounts);
    expect(gone.code).toBe("NOT_FOUND");
    expect(gone.message).toStartWith("ImageVolumeMountFailed");
  });

  test.each([
    ["writable", { readonly: false }, "INVALID_ARGUMENT", "read-only"],
    ["with a host_path", { host_path: "/tmp" }, "INVALID_ARGUMENT", "exclude each other"],
    ["without a name", { image: {} }, "INVALID_ARGUMENT", "no name"],
    ["that is not there", { image: { image: "a.test/b" } }, "NOT_FOUND", "a.test/b"],
    ["with a folder that is not there", { image_sub_path: "no" }, "NOT_FOUND", "has no no"],
    ["with a file", { image_sub_path: "run" }, "FAILED_PRECONDITION", "not a directory"],
    ["with a link that leads out", { image_sub_path: "outside" }, "NOT_FOUND", "outside"],
    ["with ..", { image_sub_path: "etc/../.." }, "INVALID_ARGUMENT", "inside the image"],
    ["with an absolute path", { image_sub_path: "/etc" }, "INVALID_ARGUMENT", "inside the image"],
  ])("%s: refused", async (_, more: Mount, code, message) => {
    expect(await refusal([volume(more)])).toMatchObject({
      code,
      message: expect.stringContaining(message) as string,
    });
  });
});

describe("refused before anything is created", () => {
  const host_path = "/tmp";
  test.each<[string, Mount[], string]>([
    ["the root", [{ container_path: "/x/..", host_path }], "must be absolute and not"],
    ["no host_path", [{ container_path: "/a" }], "neither host_path nor image"],
    ["an unknown option", [{ container_path: "/a", host_path, mount_options: ["suid"] }], '"suid"'],
  ])("%s is INVALID_ARGUMENT", async (_, mounts, part) => {
    const first = { container_path: "/first", host_path: join(host, "not-made") };
    const { code, message } = await refusal([first, ...mounts]);
    expect([code, message]).toEqual(["INVALID_ARGUMENT", expect.stringContaining(part) as string]);
    expect(existsSync(first.host_path)).toBe(false);
  });
});

describe("the pod's own files", () => {
  test("give way to mounts at their place; /dev/shm is one for the pod", async () => {
    const own = join(host, "hosts");
    writeFileSync(own, "10.0.0.1 own\n");
    const { text } = await output("cat /etc/hosts; echo shared > /dev/shm/x", [
      { container_path: "/etc/hosts", host_path: own },
    ]);
    expect(text).toBe("10.0.0.1 own\n");
    expect((await output(`cat /dev/shm/x; ${optionsOf("/dev/shm")}`, [])).text).toMatch(
      /^shared\nrw,nosuid,nodev,noexec/,
    );
  });

  test("a volume with a sub path, as a kubelet sends it, is the host's folder", async () => {
    const host_path = hostFolder("with-sub-path");
    const mounts = [{ container_path: "/v", host_path, image_sub_path: "sub" }];
    const { exitCode } = await daemon.output(podId, pod, "echo x > /v/x", { mounts });
    expect(exitCode).toBe(0);
    expect(readdirSync(host_path)).toContain("x");
  });

  test("are read-only in a read-only root, and its volumes are not", async () => {
    const linux = { security_context: { readonly_rootfs: true } };
    const mounts = [{ container_path: "/v", host_path: hostFolder("volume") }];
    const files = "/etc/hosts /etc/hostname /etc/resolv.conf /x";
    const script = `for f in ${files}; do echo >> $f || echo no; done 2>/dev/null; touch /v/x /dev/shm/y`;
    const { text, exitCode } = await daemon.output(podId, pod, script, { linux, mounts });
    expect({ text, exitCode }).toEqual({ text: "no\n".repeat(4), exitCode: 0 });
  });
});

test("a failed mount does not keep an image from being removed", async () => {
  const { images } = await daemon.client.ListImages({});
  expect(images.map(({ repo_tags }) => repo_tags!.join()).sort()).toEqual([
    busybox,
    "example.test/data:1",
  ]);
});
