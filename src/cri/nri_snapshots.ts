// Converts the records and specs of pods and containers to what NRI plugins see of them.
import type { ContainerSnapshot, PodSnapshot } from "../nri/convert.ts";
import { sandboxResources, type OciNamespace, type OciSpec } from "../spec/oci.ts";
import type { Container } from "../state/container.ts";
import { isInGuest, type Sandbox } from "../state/sandbox.ts";
import { hasCgroup } from "./cgroups.ts";
import type { Context } from "./context.ts";
import { sandboxInfo } from "./spec_inputs.ts";

export function pluginPod(context: Context, sandbox: Sandbox): PodSnapshot {
  const { id, config, runtimeHandler, networkSettings, pause, cgroup, torndown } = sandbox;
  // A stopped pod has none any more, though the files of some are still there.
  const { net: network, ...others } = torndown ? {} : sandboxInfo(context, sandbox).namespaces;
  return {
    id,
    config,
    runtimeHandler,
    pid: pause?.pid ?? 0,
    // Those of a stopped pod too: by them plugins find what to remove.
    ips: networkSettings.IPs,
    namespaces: Object.entries({ network, ...others }).flatMap(([type, path]) =>
      !path ? [] : [{ type: type as OciNamespace["type"], path }],
    ),
    cgroupsPath: hasCgroup(context, sandbox)
      ? context.cgroup.podCgroup(cgroup.parent, id).ociParent
      : "",
    resources: sandboxResources(context.host, isInGuest(sandbox)),
  };
}

const states = {
  creating: "created",
  created: "created",
  running: "running",
  exited: "stopped",
} as const;

export function pluginContainer(container: Container, spec: OciSpec): ContainerSnapshot {
  const { id, sandboxId, image, phase, updateAnnotations, classes } = container;
  // The specification's are what the runtime gets: those that name the image and the pod, and those of plugins.
  const annotations = {
    ...container.config.annotations,
    ...spec.annotations,
    ...updateAnnotations,
  };
  const config = { ...container.config, annotations };
  const ended = phase.phase === "exited" ? phase : undefined;
  const startedAtNs = "startedAtNs" in phase ? phase.startedAtNs : "0";
  return {
    id,
    sandboxId,
    config,
    spec,
    ...(classes === undefined ? {} : { classes }),
    image,
    state: states[phase.phase],
    pid: phase.phase === "running" ? phase.pid : 0,
    createdAtNs: BigInt(container.createdAtNs),
    startedAtNs: BigInt(startedAtNs),
    finishedAtNs: BigInt(ended?.finishedAtNs ?? "0"),
    exitCode: ended?.exitCode ?? 0,
    reason: ended?.reason ?? "",
    message: ended?.message ?? "",
  };
}
