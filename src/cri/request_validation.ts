// Validates requests before their handlers run: one table of rules by RPC. config_validation.ts has the
// rules for pod and container configurations; spec/ and node/ check what depends on host, image or pod.
import { isIP } from "node:net";
import { CriError } from "../base/errors.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import {
  absolutePath,
  arg,
  argsMax,
  containerConfig,
  handler,
  image,
  imageSpec,
} from "./config_validation.ts";
import {
  listMax,
  metadata,
  podConfig,
  podResources,
  resources,
  token,
} from "./config_validation.ts";
import {
  all,
  list,
  message,
  oneOf,
  range,
  refuse,
  required,
  secret,
  type Rule,
} from "../base/validation_rules.ts";

const { PodSandboxState, ContainerState } = runtime.v1;

const seconds = range(0n, 2n ** 63n - 1n);

const port: Rule<number> = (value, at) => {
  if (value < 1 || value > 65_535) refuse(at, value, "must be 1 to 65535");
};

const profileSeconds: Rule<number> = (value, at) => {
  if (value < 1 || value > 300) refuse(at, value, "must be 1 to 300");
};

const auth = message<cri.AuthConfig>({
  username: secret(1 << 16),
  password: secret(1 << 16),
  auth: secret(1 << 16),
  server_address: token,
  identity_token: secret(1 << 16),
  registry_token: secret(1 << 16),
});

const nonEmpty: Rule<readonly string[]> = (values, at) => {
  if (values.length === 0) throw new CriError("INVALID_ARGUMENT", `${at} is empty`);
};
const imageName: Rule<string> = (value, at) => {
  if (value === "") throw new CriError("INVALID_ARGUMENT", `${at} is missing`);
  image(value, at);
};

/** Splits a pod_cidr; blanks around a CIDR do not count, as with containerd. */
export function cidrsOf(podCidr: string): string[] {
  return podCidr.split(",").map((part) => part.trim());
}

const cidrs: Rule<string> = (value, at) => {
  const parts = cidrsOf(value);
  const isCidr = (part: string) => {
    const [address = "", bits = "", rest] = part.split("/");
    const bitsMax = isIP(address) === 4 ? 32 : 128;
    return (
      isIP(address) > 0 && /^\d{1,3}$/.test(bits) && Number(bits) <= bitsMax && rest === undefined
    );
  };
  if (parts.length > 16 || !parts.every(isCidr)) {
    refuse(at, value, 'must be CIDRs joined by commas, such as "10.1.0.0/24,fd00::/64"');
  }
};

const labels = { label_selector: metadata };
const images = message<cri.ListImagesRequest>({
  filter: message<cri.ImageFilter>({ image: message<cri.ImageSpec>({ image }) }),
});
const sandboxes = message<cri.ListPodSandboxRequest>({
  filter: message<cri.PodSandboxFilter>({
    ...labels,
    state: message<cri.PodSandboxStateValue>({ state: oneOf(PodSandboxState) }),
  }),
});
const containers = message<cri.ListContainersRequest>({
  filter: message<cri.ContainerFilter>({
    ...labels,
    state: message<cri.ContainerStateValue>({ state: oneOf(ContainerState) }),
  }),
});
const containerStats = message<cri.ListContainerStatsRequest>({
  filter: message<cri.ContainerStatsFilter>(labels),
});
const podStats = message<cri.ListPodSandboxStatsRequest>({
  filter: message<cri.PodSandboxStatsFilter>(labels),
});

/** RPCs without rules take only ids, which are only looked up. */
const rules: { [Name: string]: Rule<never> } = {
  RunPodSandbox: message<cri.RunPodSandboxRequest>({
    config: required(podConfig),
    runtime_handler: handler,
  }),
  ListPodSandbox: sandboxes,
  StreamPodSandboxes: sandboxes,
  CreateContainer: message<cri.CreateContainerRequest>({ config: required(containerConfig) }),
  StopContainer: message<cri.StopContainerRequest>({ timeout: seconds }),
  ListContainers: containers,
  StreamContainers: containers,
  UpdateContainerResources: message<cri.UpdateContainerResourcesRequest>({
    linux: resources,
    annotations: metadata,
  }),
  UpdatePodSandboxResources: message<cri.UpdatePodSandboxResourcesRequest>({
    overhead: resources,
    resources: podResources,
  }),
  ExecSync: message<cri.ExecSyncRequest>({ cmd: list(argsMax, arg), timeout: seconds }),
  Exec: message<cri.ExecRequest>({ cmd: list(argsMax, arg) }),
  PortForward: message<cri.PortForwardRequest>({ port: list(listMax, port) }),
  CheckpointContainer: message<cri.CheckpointContainerRequest>({
    location: required(absolutePath),
    timeout: seconds,
  }),
  ListContainerStats: containerStats,
  StreamContainerStats: containerStats,
  ListPodSandboxStats: podStats,
  StreamPodSandboxStats: podStats,
  UpdateRuntimeConfig: message<cri.UpdateRuntimeConfigRequest>({
    runtime_config: message<cri.RuntimeConfig>({
      network_config: message<cri.NetworkConfig>({ pod_cidr: cidrs }),
    }),
  }),
  ListImages: images,
  StreamImages: images,
  ImageStatus: message<cri.ImageStatusRequest>({ image: required(imageSpec) }),
  PullImage: message<cri.PullImageRequest>({ image: required(imageSpec), auth }),
  RemoveImage: message<cri.RemoveImageRequest>({ image: required(imageSpec) }),
  Pull: message<cri.PullRequest>({ image: required(image), auth }),
  CheckRegistry: message<cri.CheckRegistryRequest>({
    image: required(image),
    username: secret(1 << 16),
    password: secret(1 << 16),
  }),
  Profile: message<cri.ProfileRequest>({ seconds: profileSeconds }),
  Load: message<cri.LoadRequest>({ path: required(absolutePath), name: image }),
  VerifyImages: message<cri.VerifyImagesRequest>({ image }),
  Save: message<cri.SaveRequest>({
    images: all(nonEmpty, list(listMax, imageName)),
    path: required(absolutePath),
  }),
};

/** @throws CriError INVALID_ARGUMENT with the first invalid field and its value. */
export function validateRequest(rpc: string, request: object): void {
  rules[rpc]?.(request as never, "");
}
