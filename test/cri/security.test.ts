// Tests security contexts of containers as the kernel enforces them.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type {
  ContainerConfig,
  LinuxContainerResources,
  LinuxContainerSecurityContext,
  PodSandboxConfig,
} from "../../src/proto/types.ts";
import type { OciSpec } from "../../src/spec/oci.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";
import { busyboxImage } from "../image_maker.ts";

const { NamespaceMode, SupplementalGroupsPolicy } = runtime.v1;
const { RuntimeDefault, Unconfined, Localhost } = runtime.v1.SecurityProfile.ProfileType;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ config: { "tolerate-missing-hugetlb-controller": false } });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  await daemon.output(podId, pod, "true"); // systemd makes the pod's slice with its first container
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

function withContext(security_context: LinuxContainerSecurityContext): ContainerConfig {
  return { linux: { security_context } };
}

async function text(
  command: string,
  security: LinuxContainerSecurityContext,
  more: ContainerConfig = {},
) {
  const { text: said } = await daemon.output(podId, pod, command, {
    ...withContext(security),
    ...more,
  });
  return said;
}

/** The refusal of a CreateContainer, after which nothing is left. */
async function refusal(config: ContainerConfig) {
  const before = daemon.snapshot();
  const error = await failure(daemon.create(podId, pod, "true", config));
  expect(await daemon.leaksSince(before)).toEqual([]);
  return error;
}

const uid = (id: number) => ({ value: toLong(id) });

describe("users and groups", () => {
  const asked = { run_as_user: uid(1000), supplemental_groups: [toLong(1234)] };

  test("Merge adds the image's groups of the user, Strict does not; status and exec agree", async () => {
    for (const [policy, groups] of [
      [SupplementalGroupsPolicy.Merge, [1000, 100, 50000, 1234]],
      [SupplementalGroupsPolicy.Strict, [1000, 1234]],
    ] as const) {
      const config = withContext({ ...asked, supplemental_groups_policy: policy });
      const id = await daemon.run(podId, pod, ["sleep", "600"], config);
      const { linux } = (await daemon.status(id)).user!;
      expect([linux!.uid, linux!.gid].map(Number)).toEqual([1000, 1000]);
      expect(linux!.supplemental_groups!.map(Number)).toEqual([...groups]);
      const { stdout } = await daemon.exec(id, "id -u; id -g; id -G | tr ' ' '\\n' | sort -n");
      expect(stdout.trim().split("\n").map(Number)).toEqual([
        1000,
        1000,
        ...groups.toSorted((a, b) => a - b),
      ]);
      await daemon.client.RemoveContainer({ container_id: id });
    }
  });

  test("run_as_username is looked up in the image, run_as_group replaces its group", async () => {
    const who = "echo $(id -u) $(id -g)";
    expect(await text(who, { run_as_username: "user" })).toBe("1000 1000\n");
    expect(await text(who, { run_as_username: "user", run_as_group: uid(7) })).toBe("1000 7\n");
    expect(await text(who, { run_as_user: uid(4321) })).toBe("4321 0\n");
    const missing = await refusal(withContext({ run_as_username: "nobody-of-this-name" }));
    expect(missing.code).toBe("INVALID_ARGUMENT");
    expect(missing.message).toContain("nobody-of-this-name");
    const group = await refusal(withContext({ run_as_group: uid(7) }));
    expect([group.code, group.message]).toEqual([
      "INVALID_ARGUMENT",
      expect.stringContaining("run_as_group"),
    ]);
  });

  test("an image's odd or endless account files break nothing", async () => {
    const passwd = [
      ":::::",
      "#web:x:1:1",
      "web",
      "web:x:-1:4294967296:a:b:c",
      "web:x:0x10:1",
      `web:x:${"9".repeat(100)}:1`,
      "web:x: 5:6:",
      "web:x:77:88:::",
      "web:x:1:1::",
    ];
    const odd = "example.test/odd:1";
    const group = ["g:x:99:a,web, b", "h:x:99999999999:web", "i:x:98:web", ""];
    await daemon.loadImage(
      busyboxImage({}, [
        { name: "etc/passwd", data: passwd.join("\n") },
        { name: "etc/group", data: group.join("\n") },
      ]),
      odd,
    );
    const image = { image: { image: odd } };
    expect(
      await text("{ id -u; id -g; id -G; } 2>/dev/null", { run_as_username: "web" }, image),
    ).toBe("77\n88\n88 98 99\n");

    const endless = "example.test/endless:1";
    const line = `${"g".repeat(70)}:x:1:${"a".repeat(27)}\n`;
    await daemon.loadImage(
      busyboxImage({}, [{ name: "etc/group", data: Buffer.alloc(100 << 20, line) }]),
      endless,
    );
    const error = await refusal({ image: { image: endless } });
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("/etc/group");
    await daemon.client.RemoveImage({ image: { image: endless } });
  });
});

describe("capabilities and privileges", () => {
  const status = async (security: LinuxContainerSecurityContext) => {
    const lines = await text("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status", security);
    return Object.fromEntries(
      lines
        .trim()
        .split("\n")
        .map((line) => line.split(/:\s+/)),
    ) as Record<string, string>;
  };
  const bit = (mask: string | undefined, number: number) =>
    ((BigInt(`0x${mask}`) >> BigInt(number)) & 1n) === 1n;

  test("ALL, single names, and ambient ones that a user keeps", async () => {
    const own = BigInt(
      `0x${/^CapBnd:\s*(\w+)/m.exec(readFileSync("/proc/self/status", "utf8"))![1]}`,
    );
    const all = await status({ capabilities: { add_capabilities: ["ALL"] } });
    expect(BigInt(`0x${all["CapEff"]}`)).toBe(own);
    const one = await status({
      capabilities: { add_capabilities: ["cap_kill"], drop_capabilities: ["ALL"] },
    });
    expect(BigInt(`0x${one["CapEff"]}`)).toBe(1n << 5n);
    const add_ambient_capabilities = ["NET_BIND_SERVICE"];
    const ambient = await status({
      run_as_user: uid(1000),
      capabilities: { add_ambient_capabilities },
    });
    for (const set of ["CapEff", "CapPrm", "CapInh", "CapAmb"]) {
      expect(bit(ambient[set], 10)).toBe(true);
    }
    expect(BigInt(`0x${(await status({ run_as_user: uid(1000) }))["CapEff"]}`)).toBe(0n);
    const error = await refusal(
      withContext({ capabilities: { drop_capabilities: ["NET_EVERYTHING"] } }),
    );
    expect([error.code, error.message]).toEqual([
      "INVALID_ARGUMENT",
      expect.stringMatching(/drop_capabilities.*NET_EVERYTHING/),
    ]);
  });

  test("no_new_privs and seccomp are on only if requested", async () => {
    expect(await status({})).toMatchObject({ NoNewPrivs: "0", Seccomp: "0" });
    expect((await status({ no_new_privs: true }))["NoNewPrivs"]).toBe("1");
    const filtered = await status({ seccomp: { profile_type: RuntimeDefault } });
    expect(filtered["Seccomp"]).toBe("2");
    expect((await status({ seccomp_profile_path: "runtime/default" }))["Seccomp"]).toBe("2");
    expect((await status({ seccomp: { profile_type: Unconfined } }))["Seccomp"]).toBe("0");
  });

  test("the default seccomp profile allows no socket of AF_ALG or AF_VSOCK", async () => {
    const calls = 'for (1, 16, 38, 40) { print socket(my $s, $_, 3, 0) ? "ok" : $! + 0, " " }';
    const number = process.arch === "x64" ? 41 : 198; // of socket(2)
    // The kernel takes the lower half of the register for the family.
    const wide = `for (38, 40) { print syscall(${number}, $_ + 2**32, 5, 0) < 0 ? $! + 0 : "ok", " " }`;
    const script = `${calls} ${wide}`;
    const node: ContainerConfig = {
      mounts: [{ host_path: "/", container_path: "/n", readonly: true }],
    };
    const security = { seccomp: { profile_type: RuntimeDefault } };
    expect(await text(`chroot /n perl -e '${script}'`, security, node)).toBe("ok ok 1 1 1 1 ");
  });

  test("a privileged container has all devices, nothing masked, and may write /sys and cgroups", async () => {
    const base = daemon.hostPodConfig();
    const security_context = { ...base.linux!.security_context, privileged: true };
    const config = { ...base, linux: { security_context } };
    const id = await daemon.runPod(config);
    const script = `ls /dev | wc -l; awk '$2 == "/sys" || $2 ~ "^/sys/fs/cgroup" {print $4}' /proc/self/mounts | cut -c1-2 | sort -u
      head -c 1 /dev/full | wc -c; grep -c . /proc/self/mountinfo; mount -t tmpfs none /tmp && echo mounted
      grep -E '^Seccomp:' /proc/self/status; awk '$2 ~ "^/proc/"' /proc/self/mounts | wc -l`;
    const more = {
      linux: {
        security_context: {
          privileged: true,
          seccomp: { profile_type: RuntimeDefault },
          masked_paths: ["/proc/kcore"],
        },
      },
    };
    const { text: said } = await daemon.output(id, config, script, more);
    const [devices, access, full, , mounted, seccomp, masks] = said.trim().split("\n");
    expect(Number(devices)).toBeGreaterThan(20);
    expect(access).toBe("rw");
    expect(full).toBe("1");
    expect([mounted, seccomp, masks]).toEqual(["mounted", "Seccomp:\t0", "0"]);
    await daemon.removePod(id);
    const error = await refusal(withContext({ privileged: true }));
    expect(error.code).toBe("FAILED_PRECONDITION");
  });

  test("a privileged ephemeral container joins a running pod: the kubelet then calls the pod privileged", async () => {
    const security_context = { ...pod.linux!.security_context, privileged: true };
    const privilegedNow = { ...pod, linux: { ...pod.linux, security_context } };
    const more = withContext({ privileged: true });
    const { text: said } = await daemon.output(podId, privilegedNow, "ls /dev | wc -l", more);
    expect(Number(said)).toBeGreaterThan(20);
  });
});

describe("a seccomp profile of the node's", () => {
  const profile = (name: string, content: string) => {
    const file = join(daemon.dir, name);
    writeFileSync(file, content);
    return { seccomp: { profile_type: Localhost, localhost_ref: file } };
  };

  test("blocks what it names", async () => {
    const rule = { names: ["sethostname", "chmod", "fchmodat"], action: "SCMP_ACT_ERRNO" };
    const content = JSON.stringify({ defaultAction: "SCMP_ACT_ALLOW", syscalls: [rule] });
    const security = profile("block.json", content);
    const script = "chmod 700 /tmp 2> /dev/null || echo blocked";
    expect(await text(script, security)).toBe("blocked\n");
    const path = `localhost/${security.seccomp.localhost_ref}`;
    expect(await text(script, { seccomp_profile_path: path })).toBe("blocked\n");
  });

  test("is read and checked when the container is created", async () => {
    for (const [security, why] of [
      [profile("empty.json", ""), "JSON"],
      [profile("action.json", '{"defaultAction":"SCMP_ACT_MAYBE"}'), "defaultAction"],
      [{ seccomp: { profile_type: Localhost, localhost_ref: "/no/such.json" } }, "/no/such.json"],
      [{ seccomp: { profile_type: Localhost, localhost_ref: "relative.json" } }, "relative.json"],
      [{ seccomp: { profile_type: Localhost } }, "localhost_ref"],
      [{ seccomp: { profile_type: Localhost, localhost_ref: "/dev/zero" } }, "/dev/zero"],
      [{ seccomp_profile_path: "somewhere/else" }, "somewhere/else"],
    ] as const) {
      const error = await refusal(withContext(security));
      expect(error.code).toBe("INVALID_ARGUMENT");
      expect(error.message).toContain(why);
    }
  });
});

describe("namespaces", () => {
  test("pid TARGET joins a running container of the pod, and no other", async () => {
    const target = await daemon.run(podId, pod, ["sleep", "31339"]);
    const joining = (target_id: string): ContainerConfig =>
      withContext({ namespace_options: { pid: NamespaceMode.TARGET, target_id } });
    // A container that has been started may still be the OCI runtime's process.
    const script = "until ps -o args | grep -q '^sleep 31339'; do sleep 0.1; done; ps -o pid,args";
    expect(await text(script, {}, joining(target))).toMatch(/^\s*1 sleep 31339$/m);
    const none = await refusal(joining(""));
    expect([none.code, none.message]).toEqual([
      "INVALID_ARGUMENT",
      expect.stringContaining("target_id"),
    ]);
    const otherPod = daemon.hostPodConfig();
    const otherId = await daemon.runPod(otherPod);
    const stranger = await daemon.run(otherId, otherPod, ["sleep", "600"]);
    expect((await refusal(joining(stranger))).code).toBe("INVALID_ARGUMENT");
    await daemon.removePod(otherId);
    await daemon.client.StopContainer({ container_id: target });
    expect((await refusal(joining(target))).code).toBe("FAILED_PRECONDITION");
  });

  test("pid and ipc NODE are the node's", async () => {
    const base = daemon.hostPodConfig();
    const namespace_options = {
      network: NamespaceMode.NODE,
      pid: NamespaceMode.NODE,
      ipc: NamespaceMode.NODE,
    };
    const config = { ...base, linux: { security_context: { namespace_options } } };
    const id = await daemon.runPod(config);
    const script =
      "for n in pid ipc net uts; do readlink /proc/self/ns/$n; done; readlink /proc/1/exe || true";
    const own = spawnSync("sh", ["-c", script.replace(/; readlink \/proc\/1.*/, "")]).stdout;
    const { text: said } = await daemon.output(id, config, script);
    expect(said).toStartWith(own.toString());
    await daemon.removePod(id);
  });

  test.each([
    ["net.ipv4.ip_forward", { network: NamespaceMode.NODE }],
    ["kernel.shmmax", { ipc: NamespaceMode.NODE }],
    ["fs.mqueue.msg_max", { ipc: NamespaceMode.NODE }],
    ["kernel.domainname", { network: NamespaceMode.NODE }],
    ["vm.swappiness", {}],
  ])("sysctl %s of the node's is refused", async (name, modes) => {
    const before = daemon.snapshot();
    const namespace_options = { pid: NamespaceMode.CONTAINER, ...modes };
    const linux = { sysctls: { [name]: "1" }, security_context: { namespace_options } };
    const config = { ...daemon.podConfig(), hostname: "", linux };
    const error = await failure(daemon.runPod(config));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain(name);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

test("limits that this node does not support are refused by name", async () => {
  const limits = (resources: LinuxContainerResources) => refusal({ linux: { resources } });
  const huge = await limits({ hugepage_limits: [{ page_size: "3MB", limit: toLong(1 << 20) }] });
  expect([huge.code, huge.message]).toEqual([
    "FAILED_PRECONDITION",
    expect.stringContaining("3MB"),
  ]);
  if (isV2) return;
  const unified = await limits({ unified: { "memory.high": "max" } });
  expect(unified.code).toBe("FAILED_PRECONDITION");
  expect(unified.message).toContain("cgroup v2");
});

test("selinux_options are ignored without SELinux, and refused with SELinux unless selinux-enabled is set", async () => {
  const asked = withContext({ selinux_options: { type: "spc_t", level: "s0:c1,c2" } });
  if (existsSync("/sys/fs/selinux/enforce")) {
    const error = await refusal(asked);
    expect([error.code, error.message]).toEqual([
      "FAILED_PRECONDITION",
      expect.stringContaining("-:-:spc_t:s0:c1,c2: labels are off on this node"),
    ]);
    return;
  }
  const id = await daemon.run(podId, pod, ["sleep", "600"], asked);
  const { info } = await daemon.client.ContainerStatus({ container_id: id, verbose: true });
  const { selinux, runtimeSpec } = JSON.parse(info["info"]!) as {
    selinux: unknown;
    runtimeSpec: OciSpec;
  };
  expect(selinux).toBeNull();
  expect(runtimeSpec.process.selinuxLabel).toBeUndefined();
  await daemon.client.RemoveContainer({ container_id: id });
});
