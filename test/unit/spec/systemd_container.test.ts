// Tests which containers run systemd, and what their specs then have.
import { describe, expect, test } from "bun:test";
import { runtime } from "../../../src/proto/messages.js";
import type { ContainerConfig, PodSandboxConfig } from "../../../src/proto/types.ts";
import { containerSpec } from "../../../src/spec/oci.ts";
import { runsSystemd, withSystemd } from "../../../src/spec/systemd_container.ts";
import {
  codeAndMessage,
  host,
  nothingResolved,
  sandboxInfo,
  specInput,
} from "../../spec/inputs.ts";

const { NamespaceMode } = runtime.v1;
const image = { Entrypoint: null, Cmd: ["/sbin/init"] };
const env = (entries: Record<string, string>) =>
  Object.entries(entries).map(([key, value]) => ({ key, value: Buffer.from(value) }));

function decided(
  config: ContainerConfig,
  pod: PodSandboxConfig = {},
  hasSharedPid = false,
): boolean {
  const named = { metadata: { name: "main" }, ...config };
  return runsSystemd({ config: named, pod, hasSharedPid, image });
}

function pidMode(pid: runtime.v1.NamespaceMode) {
  return { linux: { security_context: { namespace_options: { pid } } } };
}

describe("runsSystemd", () => {
  test.each<[boolean, string[]]>([
    [true, ["/sbin/init"]],
    [true, ["/usr/sbin/init", "--log-level=debug"]],
    [true, ["/usr/local/sbin/init"]],
    [true, ["/lib/systemd/systemd"]],
    [true, ["systemd", "--system"]],
    [true, ["/bin/sh", "-c", "/sbin/init"]],
    [false, ["/bin/sh", "-c"]],
    [false, ["/bin/sh", "/sbin/init"]],
    [false, ["/init"]],
    [false, ["/usr/bin/systemd-cat", "ls"]],
    [false, ["dumb-init", "/sbin/init"]],
  ])("is %p for the command %j", (expected, command) => {
    expect(decided({ command })).toBe(expected);
  });

  test("looks at the image's command where the container names none", () => {
    expect(decided({})).toBeTrue();
    expect(decided({ args: ["ls"] })).toBeFalse();
  });

  test("goes by the annotation first: the container's, the pod's for its name, the pod's", () => {
    const key = "io.isulad.systemd";
    const other = { command: ["/app"] };
    expect(decided(other, { annotations: { [key]: "true" } })).toBeTrue();
    expect(decided(other, { annotations: { [`${key}.main`]: "true" } })).toBeTrue();
    expect(decided(other, { annotations: { [`${key}.else`]: "true" } })).toBeFalse();
    const pod = { annotations: { [key]: "true", [`${key}.main`]: "false" } };
    expect(decided({}, pod)).toBeFalse();
    expect(decided({ annotations: { [key]: "true" } }, pod)).toBeTrue();
    expect(codeAndMessage(() => decided({}, { annotations: { [key]: "yes" } }))).toBe(
      'INVALID_ARGUMENT: annotation io.isulad.systemd must be "true" or "false", not "yes"',
    );
  });

  test("takes PouchContainer's variables of the modes systemd and sbin-init", () => {
    for (const [mode, expected] of [
      ["systemd", true],
      ["sbin-init", true],
      ["dumb-init", false],
    ] as const) {
      const rich = { rich_mode: "true", rich_mode_launch_manner: mode };
      expect(decided({ command: ["/app"], envs: env(rich) })).toBe(expected);
      expect(
        decided({ command: ["/app"], envs: env({ ...rich, rich_mode: "false" }) }),
      ).toBeFalse();
    }
  });

  test("is false where the container is not the first process of its pid namespace", () => {
    const { NODE, POD, TARGET, CONTAINER } = NamespaceMode;
    expect(decided(pidMode(CONTAINER), pidMode(POD), true)).toBeTrue();
    for (const mode of [NODE, TARGET, POD]) {
      expect(decided(pidMode(mode), pidMode(POD), true)).toBeFalse();
    }
    expect(decided({}, {}, true)).toBeFalse();
    expect(decided({}, pidMode(NODE))).toBeFalse();
  });
});

const cgroup = { unified: "/sys/fs/cgroup/kubepods/pod1/c1" };
const named = {
  memory: "/sys/fs/cgroup/memory/pod1/c1",
  "name=systemd": "/sys/fs/cgroup/systemd/pod1/c1",
};
const v2 = { ...host, cgroupOptions: ["nsdelegate"] };
const v1 = { ...host, cgroupVersion: 1 as const };

type Options = {
  config?: ContainerConfig;
  host?: typeof host;
  cgroup?: Record<string, string>;
  userns?: boolean;
  privileged?: boolean;
};

function systemdSpec(o: Options = {}) {
  const ids = [{ container_id: 0, host_id: 400_000, length: 65_536 }];
  const userns_options = { mode: NamespaceMode.POD, uids: ids, gids: ids };
  const privileged = o.privileged ?? false;
  const namespace_options = { pid: NamespaceMode.CONTAINER, ...(o.userns && { userns_options }) };
  const pod = { linux: { security_context: { namespace_options, privileged } } };
  const sandbox = sandboxInfo(pod);
  if (o.userns) sandbox.namespaces.user = "/run/userns";
  const linux = { security_context: { namespace_options, privileged } };
  const config = { command: ["/sbin/init"], linux, ...o.config };
  const input = specInput(config, { host: o.host ?? v2, sandbox });
  input.resolved = {
    ...nothingResolved,
    mounts: (config.mounts ?? []).map(() => ({ source: "/data", propagation: "private" })),
  };
  const parts = { host: input.host, cgroup: o.cgroup ?? cgroup, privileged };
  return withSystemd(containerSpec(input), parts);
}

const mountAt = (spec: ReturnType<typeof systemdSpec>, destination: string) =>
  spec.mounts.filter((mount) => mount.destination === destination);

describe("the spec of a container that runs systemd", () => {
  test("has folders in memory first, with the image's files, but for what the pod mounts", () => {
    const { mounts } = systemdSpec();
    const folders = ["/run", "/run/lock", "/tmp", "/var/log/journal"];
    expect(mounts.slice(0, 4).map(({ destination }) => destination)).toEqual(folders);
    for (const { type, options } of mounts.slice(0, 4)) {
      expect([type, options]).toEqual([
        "tmpfs",
        expect.arrayContaining(["nosuid", "nodev", "tmpcopyup"]),
      ]);
    }
    const own = systemdSpec({
      config: { mounts: [{ container_path: "/tmp", host_path: "/data" }] },
    });
    expect(mountAt(own, "/tmp").map(({ type }) => type)).toEqual(["bind"]);
  });

  test("has container in its environment, unless it is set", () => {
    expect(systemdSpec().process.env).toContain("container=oci");
    const envs = env({ container: "podman" });
    const set = systemdSpec({ config: { envs } }).process.env;
    expect(set.filter((line) => line.startsWith("container="))).toEqual(["container=podman"]);
  });

  test("has under v2 its own cgroup, writable and bounded, in a namespace of its own", () => {
    for (const privileged of [false, true]) {
      const spec = systemdSpec({ privileged });
      const [mount, ...more] = mountAt(spec, "/sys/fs/cgroup");
      expect([mount?.type, mount?.options, more]).toEqual([
        "cgroup",
        ["nosuid", "noexec", "nodev", "relatime", "rw"],
        [],
      ]);
      expect(spec.linux.namespaces.filter(({ type }) => type === "cgroup")).toEqual([
        { type: "cgroup" },
      ]);
      expect(spec.linux.resources.unified).toEqual({ "cgroup.max.descendants": "1000" });
      expect(spec.hooks).toBeUndefined();
    }
  });

  test("is refused under v2 where the container could raise its own limits", () => {
    const plain = { ...host, cgroupOptions: [] };
    expect(codeAndMessage(() => systemdSpec({ host: plain }))).toMatch(
      /^FAILED_PRECONDITION: .* mount -o remount,nsdelegate \/sys\/fs\/cgroup/,
    );
    systemdSpec({ host: plain, userns: true });
    systemdSpec({ host: plain, privileged: true });
  });

  test("has under v1 only its own folder of name=systemd writable", () => {
    const spec = systemdSpec({ host: v1, cgroup: named });
    expect(mountAt(spec, "/sys/fs/cgroup")[0]?.options).toContain("ro");
    expect(mountAt(spec, "/sys/fs/cgroup/systemd")).toEqual([
      {
        destination: "/sys/fs/cgroup/systemd",
        type: "bind",
        source: named["name=systemd"],
        options: ["bind", "rprivate", "nosuid", "noexec", "nodev", "relatime", "rw"],
      },
    ]);
    const order = spec.mounts.map(({ destination }) => destination);
    expect(order.indexOf("/sys/fs/cgroup/systemd")).toBe(order.indexOf("/sys/fs/cgroup") + 1);
    expect(spec.linux.namespaces).toContainEqual({ type: "cgroup" });
    expect(spec.linux.resources.unified).toBeUndefined();
  });

  test("has under v1 without name=systemd no writable cgroup", () => {
    const spec = systemdSpec({ host: v1, cgroup: { memory: named.memory } });
    expect(mountAt(spec, "/sys/fs/cgroup/systemd")).toEqual([]);
  });

  test.each([
    [
      "v2",
      v2,
      cgroup,
      cgroup.unified,
      ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"],
    ],
    ["v1", v1, named, named["name=systemd"], ["cgroup.procs", "tasks"]],
  ] as const)(
    "gives under %s a user namespace's root its cgroup, but not the limits",
    (_, ...rest) => {
      const [node, folders, folder, files] = rest;
      const spec = systemdSpec({ host: node, cgroup: folders, userns: true });
      const paths = [folder, ...files.map((name) => `${folder}/${name}`)];
      expect(spec.hooks?.createRuntime).toEqual([
        { path: "/bin/chown", args: ["chown", "400000:400000", ...paths] },
      ]);
    },
  );

  test("leaves a cgroup mount of the pod's alone", () => {
    const mounts = [{ container_path: "/sys/fs/cgroup", host_path: "/data" }];
    const spec = systemdSpec({ config: { mounts }, host: { ...host, cgroupOptions: [] } });
    expect(mountAt(spec, "/sys/fs/cgroup").map(({ type }) => type)).toEqual(["bind"]);
    expect(spec.linux.resources.unified).toBeUndefined();
  });
});
