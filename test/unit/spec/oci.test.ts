// Compares whole specs with golden files. UPDATE_GOLDEN=1 rewrites them; commit that separately.
import { describe, expect, test } from "bun:test";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { toLong } from "../../../src/base/int64.ts";
import { runtime } from "../../../src/proto/messages.js";
import type {
  ContainerConfig,
  LinuxSandboxSecurityContext,
  NamespaceOption,
} from "../../../src/proto/types.ts";
import { type MountSource } from "../../../src/spec/spec_inputs.ts";
import {
  containerSpec,
  execProcess,
  ociJson,
  type OciNamespace,
  type OciSpec,
  parseOciSpec,
  podSpec,
  sandboxSpec,
  type SandboxSpecInput,
} from "../../../src/spec/oci.ts";
import type { ResolvedInputs } from "../../../src/spec/spec_inputs.ts";
import {
  codeAndMessage,
  nothingResolved,
  host,
  noSettings,
  sandboxInfo,
  specInput,
} from "../../spec/inputs.ts";

const { NamespaceMode, MountPropagation } = runtime.v1;
const { ProfileType } = runtime.v1.SecurityProfile;

function expectGolden(name: string, spec: OciSpec): void {
  const text = `${JSON.stringify(spec, rawBigint, 2)}\n`;
  const file = join(import.meta.dirname, "../../golden", `${name}.golden`);
  if (process.env["UPDATE_GOLDEN"] === "1") writeFileSync(file, text);
  if (!existsSync(file)) throw new Error(`${file} is missing (make it with UPDATE_GOLDEN=1)`);
  expect(text).toBe(readFileSync(file, "utf8"));
}

const onShared: MountSource = { source: "/srv/data", propagation: "shared" };

/** What a kubelet sends for a container that uses most fields. */
const kubeletConfig: ContainerConfig = {
  metadata: { name: "web", attempt: 1 },
  image: { image: "sha256:abc", user_specified_image: "docker.io/library/nginx:1.29" },
  command: ["/usr/sbin/nginx"],
  args: ["-g", "daemon off;"],
  working_dir: "/srv/www/",
  envs: [
    { key: "PORT", value: Buffer.from("8080") },
    { key: "FROM_IMAGE", value: Buffer.from("2=3") },
  ],
  mounts: [
    { container_path: "/srv/data/deep", host_path: "/d/deep", readonly: true },
    {
      container_path: "/srv/data",
      host_path: "/d",
      propagation: MountPropagation.PROPAGATION_HOST_TO_CONTAINER,
    },
    { container_path: "/etc/hosts", host_path: "/var/lib/kubelet/pods/u1/etc-hosts" },
    {
      container_path: "/ro",
      host_path: "/r",
      readonly: true,
      recursive_read_only: true,
      mount_options: ["noexec"],
    },
  ],
  devices: [{ container_path: "/dev/fuse", host_path: "/dev/fuse", permissions: "rw" }],
  tty: true,
  linux: {
    resources: {
      cpu_shares: toLong(512n),
      cpu_quota: toLong(150_000n),
      cpu_period: toLong(100_000n),
      memory_limit_in_bytes: toLong(9_007_199_254_740_993n),
      memory_swap_limit_in_bytes: toLong(9_007_199_254_740_995n),
      oom_score_adj: toLong(985n),
      cpuset_cpus: "0-1",
      hugepage_limits: [
        { page_size: "2MB", limit: toLong(4_194_304n) },
        { page_size: "64KB", limit: toLong(0n) },
      ],
      unified: { "memory.oom.group": "1" },
    },
    security_context: {
      capabilities: { add_capabilities: ["NET_ADMIN"], drop_capabilities: ["ALL"] },
      namespace_options: { pid: NamespaceMode.CONTAINER },
      run_as_user: { value: toLong(101n) },
      supplemental_groups: [toLong(1234n)],
      readonly_rootfs: true,
      no_new_privs: true,
      masked_paths: ["/proc/kcore"],
      readonly_paths: ["/proc/sys"],
      seccomp: { profile_type: ProfileType.Unconfined },
    },
  },
};

const kubeletResolved = {
  ...nothingResolved,
  mounts: [
    { source: "/d/deep", propagation: "private" },
    onShared,
    { source: "/var/lib/kubelet/pods/u1/etc-hosts", propagation: "private" },
    { source: "/r", propagation: "private" },
  ] satisfies MountSource[],
  devices: [
    [
      {
        node: {
          path: "/dev/fuse",
          type: "c" as const,
          major: 10,
          minor: 229,
          fileMode: 0o666,
          uid: 0,
          gid: 0,
        },
        hostPath: "/dev/fuse",
      },
    ],
  ],
};

describe("containerSpec()", () => {
  test("gives a container without options the image's process and the pod's files", () => {
    expectGolden("container-plain", containerSpec(specInput({})));
  });

  test("applies all options that a kubelet sets", () => {
    expectGolden(
      "container-kubelet",
      containerSpec(specInput(kubeletConfig, { resolved: kubeletResolved })),
    );
  });

  test("gives a privileged container the host's devices, capabilities and no masks", () => {
    const disk = { path: "/dev/sda", type: "b" as const, major: 8, minor: 0 };
    const spec = containerSpec(
      specInput(
        { linux: { security_context: { privileged: true } } },
        {
          host: { ...host, cgroupVersion: 1 },
          sandbox: sandboxInfo({ linux: { security_context: { privileged: true } } }),
          resolved: {
            ...nothingResolved,
            hostDevices: [
              { node: { ...disk, fileMode: 0o660, uid: 0, gid: 6 }, hostPath: disk.path },
            ],
          },
        },
      ),
    );
    expectGolden("container-privileged", spec);
  });

  test("applies the default seccomp profile for RuntimeDefault", () => {
    const seccomp = { profile_type: ProfileType.RuntimeDefault };
    expectGolden(
      "container-seccomp",
      containerSpec(specInput({ linux: { security_context: { seccomp } } })),
    );
  });

  test("maps a pod's user namespace", () => {
    const mapping = { container_id: 0, host_id: 100_000, length: 65_536 };
    const userns_options = { mode: NamespaceMode.POD, uids: [mapping], gids: [mapping] };
    const sandbox = sandboxInfo({
      linux: { security_context: { namespace_options: { userns_options } } },
    });
    sandbox.namespaces.user = "/run/isulad/sandboxes/pod1/user";
    const { linux } = containerSpec(specInput({}, { sandbox }));
    expect(linux.namespaces[0]).toEqual({ type: "user", path: "/run/isulad/sandboxes/pod1/user" });
    expect(linux.uidMappings).toEqual([{ containerID: 0, hostID: 100_000, size: 65_536 }]);
  });

  test("joins the pid namespace of the requested mode", () => {
    const pidOf = (options: NamespaceOption | undefined, pid?: string, targetPid?: number) => {
      const sandbox = sandboxInfo();
      if (pid !== undefined) sandbox.namespaces.pid = pid;
      const security_context = options === undefined ? {} : { namespace_options: options };
      const input = specInput({ linux: { security_context } }, { sandbox });
      if (targetPid !== undefined) input.targetPid = targetPid;
      return containerSpec(input).linux.namespaces.filter(({ type }) => type === "pid");
    };
    const pause = "/proc/7/ns/pid";
    expect(pidOf(undefined)).toEqual([{ type: "pid" }]);
    expect(pidOf(undefined, pause)).toEqual([{ type: "pid", path: pause }]);
    expect(pidOf({ pid: NamespaceMode.POD }, pause)).toEqual([{ type: "pid", path: pause }]);
    expect(pidOf({ pid: NamespaceMode.CONTAINER }, pause)).toEqual([{ type: "pid" }]);
    expect(pidOf({ pid: NamespaceMode.NODE }, pause)).toEqual([]);
    expect(pidOf({ pid: NamespaceMode.TARGET }, undefined, 42)).toEqual([
      { type: "pid", path: "/proc/42/ns/pid" },
    ]);
    expect(codeAndMessage(() => pidOf({ pid: NamespaceMode.POD }))).toContain(
      "FAILED_PRECONDITION",
    );
    expect(codeAndMessage(() => pidOf({ pid: NamespaceMode.TARGET }))).toContain("target_id");
  });

  test("leaves out the namespaces that a pod shares with the host", () => {
    const sandbox = { ...sandboxInfo(), namespaces: {} };
    const { namespaces } = containerSpec(specInput({}, { sandbox })).linux;
    expect(namespaces.map(({ type }) => type)).toEqual(["cgroup", "pid", "mount"]);
  });

  test("rejects a privileged container in an unprivileged pod", () => {
    const input = specInput({ linux: { security_context: { privileged: true } } });
    expect(codeAndMessage(() => containerSpec(input))).toStartWith("FAILED_PRECONDITION: ");
    const linux = { security_context: { privileged: true } };
    const spec = containerSpec({ ...input, requestedPod: { linux } });
    expect(spec.process.capabilities?.bounding).toContain("CAP_SYS_ADMIN");
  });

  test("passes no annotations of the pod or the container by default", () => {
    const annotations = { "io.katacontainers.config.hypervisor.path": "/tmp/evil" };
    const spec = containerSpec(
      specInput({ annotations }, { sandbox: sandboxInfo({ annotations }) }),
    );
    expect(JSON.stringify(spec.annotations)).not.toContain("evil");
  });
});

describe("a handler's settings", () => {
  const annotations = {
    "io.katacontainers.config.hypervisor.default_vcpus": "2",
    "io.katacontainers.other/part": "x",
    "a.b/c1": "y",
    "io.kubernetes.cri.sandbox-id": "forged",
  };
  const patterns = ["io.katacontainers.*", "a.b/c?", "io.kubernetes.cri.*"];

  test("pass matching annotations, which never override the daemon's", () => {
    const ofPod = containerSpec(
      specInput(
        {},
        {
          sandbox: sandboxInfo({ annotations }),
          handler: { ...noSettings, podAnnotations: patterns },
        },
      ),
    ).annotations;
    const handler = { ...noSettings, containerAnnotations: patterns };
    const ofContainer = containerSpec(specInput({ annotations }, { handler })).annotations;
    for (const passed of [ofPod, ofContainer]) {
      expect(passed).toMatchObject({
        "io.katacontainers.config.hypervisor.default_vcpus": "2",
        "a.b/c1": "y",
        "io.kubernetes.cri.sandbox-id": "pod1",
      });
      expect(passed["io.katacontainers.other/part"]).toBeUndefined();
    }
    const other = containerSpec(
      specInput({}, { sandbox: sandboxInfo({ annotations }), handler }),
    ).annotations;
    expect(other["a.b/c1"]).toBeUndefined();
  });

  test.each([false, true])(
    "limit a privileged container to the devices that it requests; all allowed: %p",
    (all) => {
      const node = { path: "/dev/x", type: "c", major: 9, minor: 9, fileMode: 0, uid: 0, gid: 0 };
      const resolved = {
        ...nothingResolved,
        hostDevices: [{ node: { ...node, path: "/dev/sda" }, hostPath: "/dev/sda" }],
        devices: [[{ node, hostPath: "/dev/x" }]],
      } as ResolvedInputs;
      const security_context = { privileged: true };
      const spec = containerSpec(
        specInput(
          { linux: { security_context }, devices: [{ host_path: "/dev/x" }] },
          {
            resolved,
            sandbox: sandboxInfo({ linux: { security_context } }),
            handler: {
              ...noSettings,
              privilegedWithoutHostDevices: true,
              privilegedAllDevicesAllowed: all,
            },
          },
        ),
      );
      expect(spec.linux.devices.map(({ path }) => path)).toEqual(["/dev/x"]);
      expect(spec.linux.resources.devices).toEqual([
        { allow: all, access: "rwm" },
        { allow: true, type: "c", major: 9, minor: 9, access: "rwm" },
      ]);
    },
  );
});

describe("sandboxSpec()", () => {
  const pauseInput = (overrides: Partial<SandboxSpecInput> = {}): SandboxSpecInput => ({
    sandbox: sandboxInfo(),
    image: { Entrypoint: ["/pause"], User: "65535:65535" },
    resolved: { passwd: "", group: "" },
    host,
    handler: noSettings,
    defaults: specInput({}).defaults,
    cgroupsPath: "/isulad/pod1/pod1",
    rootfsPath: "/var/lib/isulad/sandboxes/pod1/rootfs",
    hostname: "web-0",
    runtimeAnnotations: {},
    ...overrides,
  });

  test("runs the pause image without capabilities in a new pid namespace", () => {
    expectGolden("sandbox-pause", sandboxSpec(pauseInput()));
  });

  test("uses the AppArmor profile of the pod's containers", () => {
    const armed = { ...host, apparmor: { defaultProfile: "d" } };
    const profileOf = (security_context: LinuxSandboxSecurityContext) => {
      const sandbox = sandboxInfo({ linux: { security_context } });
      const resolved = { passwd: "", group: "", apparmorProfiles: ["d", "mine"] };
      return sandboxSpec(pauseInput({ sandbox, resolved, host: armed })).process.apparmorProfile;
    };
    expect(containerSpec(specInput({}, { host: armed })).process.apparmorProfile).toBe("d");
    expect(profileOf({})).toBe("d");
    expect(profileOf({ privileged: true })).toBe("d");
    const local = (localhost_ref: string) => ({
      apparmor: { profile_type: ProfileType.Localhost, localhost_ref },
    });
    expect(profileOf(local("mine"))).toBe("mine");
    expect(codeAndMessage(() => profileOf(local("other")))).toContain("not loaded");
    expect(profileOf({ apparmor: { profile_type: ProfileType.Unconfined } })).toBeUndefined();
  });
});

describe("podSpec()", () => {
  test("has the namespaces that the pod's containers share, its annotations and its cgroup", () => {
    const { ociVersion, annotations, linux } = podSpec(sandboxInfo(), "/kubepods/pod1");
    expect(ociVersion).toBe("1.0.2");
    expect(annotations).toMatchObject({
      "io.kubernetes.cri.sandbox-uid": "u1",
      "io.kubernetes.cri.container-type": "sandbox",
    });
    const { net, ipc, uts } = sandboxInfo().namespaces;
    const shared = Object.entries({ network: net, ipc, uts });
    const namespaces = shared.map(([type, path]) => ({ type, path }) as OciNamespace);
    expect(linux).toEqual({ namespaces, cgroupsPath: "/kubepods/pod1" });
  });

  test("names no namespace that the pod shares with the host", () => {
    const { linux } = podSpec({ ...sandboxInfo(), namespaces: {} }, undefined);
    expect(linux.namespaces).toEqual([]);
  });
});

describe("execProcess()", () => {
  test("keeps the container's user and environment and changes the command", () => {
    const { process: main } = containerSpec(
      specInput(kubeletConfig, { resolved: kubeletResolved }),
    );
    const execed = execProcess(main, ["id"], false);
    expect(execed).toEqual({ ...main, args: ["id"], terminal: false });
  });

  test("adds TERM only for a terminal, and only if it is missing", () => {
    const { process: main } = containerSpec(specInput({}));
    expect(execProcess(main, ["sh"], true).env).toContain("TERM=xterm");
    const own = { ...main, env: ["TERM=dumb"] };
    expect(execProcess(own, ["sh"], true).env).toEqual(["TERM=dumb"]);
    expect(codeAndMessage(() => execProcess(main, [], false))).toStartWith("INVALID_ARGUMENT");
  });
});

describe("ociJson()", () => {
  test("round-trips 64-bit integers exactly", () => {
    const spec = containerSpec(specInput(kubeletConfig, { resolved: kubeletResolved }));
    expect(ociJson(spec)).toContain('"limit":9007199254740993,"swap":9007199254740995');
    expect(parseOciSpec(ociJson(spec))).toEqual(JSON.parse(JSON.stringify(spec, keep), revive));
    expect(parseOciSpec(ociJson(spec)).linux.resources.memory?.limit).toBe(9_007_199_254_740_993n);
  });
});

/** JSON.parse and its round trip would lose digits. */
function rawBigint(_key: string, value: unknown): unknown {
  const json = JSON as unknown as { rawJSON(text: string): unknown };
  return typeof value === "bigint" ? json.rawJSON(value.toString()) : value;
}

function keep(_key: string, value: unknown): unknown {
  return typeof value === "bigint" ? { big: value.toString() } : value;
}

function revive(_key: string, value: unknown): unknown {
  return typeof value === "object" && value !== null && "big" in value
    ? BigInt(String(value.big))
    : value;
}
