// Tests the specs of pods that run in a guest (gVisor, Kata): their sandbox container says what this node's
// namespaces say of other pods.
import { describe, expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import { runtime } from "../../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../../src/proto/types.ts";
import { sandboxSpec, type SandboxSpecInput } from "../../../src/spec/oci.ts";
import { checkGuestMounts, checkGuestPod } from "../../../src/spec/sandboxed.ts";
import { codeAndMessage, host, noSettings, sandboxInfo, specInput } from "../../spec/inputs.ts";

const { MountPropagation, NamespaceMode } = runtime.v1;
const guest = { sysctls: { "net.core.somaxconn": "1024" }, imageName: "" };

function spec(config: PodSandboxConfig, overrides: Partial<SandboxSpecInput> = {}) {
  return sandboxSpec({
    sandbox: sandboxInfo(config),
    image: { Entrypoint: ["/pause"], User: "65535:65535" },
    resolved: { passwd: "", group: "" },
    host,
    handler: noSettings,
    defaults: specInput({}).defaults,
    cgroupsPath: "/isulad/pod1/pod1",
    rootfsPath: "/var/lib/isulad/sandboxes/pod1/rootfs",
    hostname: "web-0",
    runtimeAnnotations: {},
    guest,
    ...overrides,
  });
}

const modes = (namespace_options: object) => ({
  linux: { security_context: { namespace_options } },
});

describe("the spec of a sandbox container", () => {
  test("joins only the pod's network namespace, and has its hostname and sysctls", () => {
    const { hostname, linux, root } = spec({ hostname: "web-0" });
    expect(hostname).toBe("web-0");
    expect(linux.sysctl).toEqual(guest.sysctls);
    expect(root.path).toStartWith("/");
    expect(linux.namespaces).toEqual([
      { type: "network", path: "/var/run/netns/n1" },
      { type: "ipc" },
      { type: "uts" },
      { type: "pid" },
      { type: "cgroup" },
      { type: "mount" },
    ]);
  });

  test("has no pid namespace for a pod with the node's", () => {
    const types = spec(modes({ pid: NamespaceMode.NODE })).linux.namespaces.map(({ type }) => type);
    expect(types).not.toContain("pid");
  });

  test("restricts no devices: its cgroup holds the virtual machine's monitor", () => {
    expect(spec({}).linux.resources.devices ?? []).toEqual([]);
    expect(spec({}, { guest: undefined }).linux.resources.devices).toHaveLength(1);
  });

  test("has containerd's annotations: the kind, the logs' folder and the sizes", () => {
    const resources = {
      cpu_period: toLong(100_000),
      cpu_quota: toLong(50_000),
      cpu_shares: toLong(512),
      memory_limit_in_bytes: toLong(2 ** 31),
    };
    const config = { log_directory: "/var/log/pods/p", linux: { resources } };
    const imageName = "example.test/pause:1";
    const { annotations } = spec(config, { guest: { ...guest, imageName } });
    expect(annotations).toMatchObject({
      "io.kubernetes.cri.container-type": "sandbox",
      "io.kubernetes.cri.sandbox-id": "pod1",
      "io.kubernetes.cri.sandbox-log-directory": "/var/log/pods/p",
      "io.kubernetes.cri.podsandbox.image-name": imageName,
      "io.kubernetes.cri.sandbox-cpu-period": "100000",
      "io.kubernetes.cri.sandbox-cpu-quota": "50000",
      "io.kubernetes.cri.sandbox-cpu-shares": "512",
      "io.kubernetes.cri.sandbox-memory": String(2 ** 31),
    });
  });

  test("binds the pod's resolv.conf, which Kata copies into the guest", () => {
    const bind = spec({}).mounts.find(({ destination }) => destination === "/etc/resolv.conf");
    expect(bind?.source).toBe("/var/lib/isulad/sandboxes/pod1/resolv.conf");
  });

  test("passes the pod's annotations that the handler allows", () => {
    const annotations = { "io.katacontainers.config.hypervisor.default_vcpus": "2", other: "x" };
    const handler = { ...noSettings, podAnnotations: ["io.katacontainers.*"] };
    const passed = spec({ annotations }, { handler }).annotations;
    expect(passed).toMatchObject({ "io.katacontainers.config.hypervisor.default_vcpus": "2" });
    expect(passed).not.toHaveProperty("other");
  });
});

describe("a pod in a guest is refused", () => {
  const check = (config: PodSandboxConfig, hostNetwork = false) =>
    codeAndMessage(() => checkGuestPod(config, { handler: "kata", hostNetwork }));

  test("with the node's network, unless its runtime can use that", () => {
    const config = modes({ network: NamespaceMode.NODE });
    expect(check(config)).toMatch(/^FAILED_PRECONDITION: .*"kata".*hostNetwork/);
    expect(() => checkGuestPod(config, { handler: "kata", hostNetwork: true })).not.toThrow();
    expect(() => checkGuestPod({}, { handler: "kata", hostNetwork: false })).not.toThrow();
  });

  test("with a user namespace", () => {
    const ids = [{ host_id: 65_536, container_id: 0, length: 65_536 }];
    const userns_options = { mode: NamespaceMode.POD, uids: ids, gids: ids };
    expect(check(modes({ userns_options }), true)).toMatch(/^FAILED_PRECONDITION: .*hostUsers/);
  });

  test("with a mount that should appear on the node", () => {
    const mount = (propagation: number) => [{ container_path: "/m", host_path: "/m", propagation }];
    expect(() =>
      checkGuestMounts(mount(MountPropagation.PROPAGATION_HOST_TO_CONTAINER)),
    ).not.toThrow();
    const shared = mount(MountPropagation.PROPAGATION_BIDIRECTIONAL);
    expect(codeAndMessage(() => checkGuestMounts(shared))).toMatch(/^FAILED_PRECONDITION: .*\/m/);
  });
});
