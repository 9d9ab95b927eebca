// Provides inputs for tests of src/spec: a fake host, pod and image.
import { CriError } from "../../src/base/errors.ts";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import { capabilityNames } from "../../src/spec/capabilities.ts";
import type {
  ResolvedInputs,
  HandlerSettings,
  HostInfo,
  SandboxInfo,
} from "../../src/spec/spec_inputs.ts";
import type { ContainerSpecInput } from "../../src/spec/oci.ts";

export const host: HostInfo = {
  cgroupVersion: 2,
  cgroupOptions: [],
  hugepageSizes: ["2MB", "1GB"],
  swapLimit: true,
  capabilities: capabilityNames,
  oomScoreAdj: -999,
  openFilesSoft: 1_024,
  absentControllers: [],
  idmappedLayers: true,
  arch: "x64",
};

export const nothingResolved: ResolvedInputs = {
  mounts: [],
  devices: [],
  hostDevices: [],
  passwd: "root:x:0:0:root:/root:/bin/sh\nweb:x:101:102:Web:/srv:/bin/false\n",
  group: "root:x:0:\nwheel:x:10:root,web\nweb:x:102:\nlogs:x:50000:web,other\n",
};

export function sandboxInfo(config: PodSandboxConfig = {}): SandboxInfo {
  return {
    id: "pod1",
    config: { metadata: { name: "web", namespace: "default", uid: "u1" }, ...config },
    namespaces: {
      net: "/var/run/netns/n1",
      ipc: "/run/isulad/sandboxes/pod1/ipc",
      uts: "/run/isulad/sandboxes/pod1/uts",
    },
    files: {
      hosts: "/var/lib/isulad/sandboxes/pod1/hosts",
      hostname: "/var/lib/isulad/sandboxes/pod1/hostname",
      resolvConf: "/var/lib/isulad/sandboxes/pod1/resolv.conf",
      shm: "/run/isulad/sandboxes/pod1/shm",
    },
  };
}

export const noSettings: HandlerSettings = {
  podAnnotations: [],
  containerAnnotations: [],
  privilegedWithoutHostDevices: false,
  privilegedAllDevicesAllowed: false,
};

/** Returns a complete input with the container's config; overrides replace top-level fields. */
export function specInput(
  config: ContainerConfig,
  overrides: Partial<ContainerSpecInput> = {},
): ContainerSpecInput {
  return {
    id: "container1",
    config: { metadata: { name: "main" }, ...config },
    sandbox: sandboxInfo(),
    image: {
      Env: ["PATH=/bin", "FROM_IMAGE=1"],
      Entrypoint: ["/entry"],
      Cmd: ["run"],
      User: "",
      WorkingDir: "/srv",
    },
    resolved: nothingResolved,
    host,
    runtime: { recursiveReadOnlyMounts: true, idmapMounts: false },
    handler: noSettings,
    defaults: { rlimits: [], restrictOomScoreAdj: false, deviceOwnership: false },
    cgroupsPath: "/isulad/pod1/container1",
    rootfsPath: "/var/lib/isulad/containers/container1/rootfs",
    hostname: "web-0",
    runtimeAnnotations: {},
    ...overrides,
  };
}

/** Returns "CODE: message" of the CriError that action throws. */
export function codeAndMessage(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof CriError) return `${error.code}: ${error.message}`;
    throw error;
  }
  throw new Error("expected an error");
}
