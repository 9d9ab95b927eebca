// RPCs on the runtime itself: Version, Status, RuntimeConfig, UpdateRuntimeConfig.
import { fullVersion, version } from "../base/build.ts";
import type { Config } from "../base/config.ts";
import { jsonText } from "../base/json.ts";
import { runtime } from "../proto/messages.js";
import type * as cri from "../proto/types.ts";
import type { Context } from "./context.ts";
import { textOf, type Problem } from "../node/health.ts";
import { handlersInfo } from "./handler_info.ts";
import { networkCondition } from "./network_condition.ts";
import { cidrsOf } from "./request_validation.ts";
import { supportsUserNamespaces } from "./runtime_handlers.ts";

const { CgroupDriver } = runtime.v1;

/** The release of containerd whose CRI plugin isulad-ts is measured by: callers compare it with 1.6.2 and the like. */
const containerdRelease = "2.4.2";

/** version: that of the kubelet's runtime API, which never changed. */
export function versionOf({ config }: Context): cri.VersionResponse {
  return {
    version: "0.1.0",
    runtime_name: config.runtimeName,
    runtime_version: runtimeVersion(config),
    runtime_api_version: "v1",
  };
}

/** Returns the version that fits the name: with containerd's name, a release of containerd that names ours behind it. */
export function runtimeVersion({ runtimeName }: Config): string {
  if (runtimeName === "isulad-ts") return fullVersion;
  return `${containerdRelease}+isulad-ts.${version}`;
}

export async function status(
  context: Context,
  request: cri.StatusRequest,
): Promise<cri.StatusResponse> {
  await Promise.all([...context.handlers.values()].map((handler) => handler.refresh()));
  const [problems, network] = await Promise.all([
    context.health.problems(),
    networkCondition(context),
  ]);
  return {
    status: {
      conditions: [runtimeReady(problems), network],
    },
    runtime_handlers: [...context.handlers].map(([name, handler]) => ({
      name,
      features: {
        recursive_read_only_mounts: handler.support.recursiveReadOnlyMounts,
        user_namespaces: supportsUserNamespaces(context, handler),
      },
    })),
    features: {
      supplemental_groups_policy: true,
      user_namespaces_host_network: true,
      mount_options: true,
    },
    info:
      request.verbose === true
        ? {
            config: jsonText(context.config),
            handlers: handlersInfo(context),
            storage: storageInfo(context),
            swap: jsonText({ limited: context.host.swapLimit }),
          }
        : {},
  };
}

function runtimeReady(problems: readonly Problem[]): cri.RuntimeCondition {
  const [first] = problems;
  const status = first === undefined;
  return { type: "RuntimeReady", status, reason: first?.reason ?? "", message: textOf(problems) };
}

/** The storage driver, and the reason why it is not overlayfs. */
function storageInfo({ images }: Context): string {
  const { driver, problem, quota } = images.storage;
  return jsonText({ driver, problem, containerBytes: quota?.bytes });
}

/**
 * Writes the node's pod CIDR into a CNI list from the configured template. Without a template it is ignored
 * rather than refused: a kubelet sends it to every runtime.
 */
export async function updateRuntimeConfig(
  context: Context,
  request: cri.UpdateRuntimeConfigRequest,
): Promise<cri.UpdateRuntimeConfigResponse> {
  const { cniConfTemplate: template } = context.config;
  const cidrs = request.runtime_config?.network_config?.pod_cidr;
  if (cidrs && template !== "") await context.cni.writeList(template, cidrsOf(cidrs));
  return {};
}

export function runtimeConfig(context: Context): cri.RuntimeConfigResponse {
  const { SYSTEMD, CGROUPFS } = CgroupDriver;
  return { linux: { cgroup_driver: context.cgroup.name === "systemd" ? SYSTEMD : CGROUPFS } };
}
