// Decides by systemd-containers which containers get what systemd needs as a first process.
import type { ImageRecord } from "../image/store.ts";
import type { ContainerConfig } from "../proto/types.ts";
import type { OciSpec } from "../spec/oci.ts";
import { isInGuest, type Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";

export type SystemdRules = {
  /** The stop signal where neither request nor image names one. */
  stopSignal: string;
  /** id: the container's. @throws CriError FAILED_PRECONDITION. */
  apply: (spec: OciSpec, id: string) => OciSpec;
};

type Parts = { sandbox: Sandbox; config: ContainerConfig; image: ImageRecord };

/** Returns the rules of a container that runs systemd; undefined for others. @throws CriError as runsSystemd() does. */
export async function systemdRules(
  context: Context,
  { sandbox, config, image }: Parts,
): Promise<SystemdRules | undefined> {
  const { systemdContainers: allowed } = context.config;
  if (allowed === "off" || isInGuest(sandbox)) return undefined; // a guest has cgroups of its own
  const module = await import("../spec/systemd_container.ts");
  const { config: pod, pause } = sandbox;
  const hasSharedPid = pause !== undefined;
  if (!module.runsSystemd({ config, pod, hasSharedPid, image: image.config })) return undefined;
  if (allowed === "userns" && sandbox.namespaces.user === undefined) {
    const { name } = config.metadata ?? {};
    const message =
      "systemd-containers is userns: a container without a user namespace runs like others";
    context.log.info(message, { container: name ?? "", sandbox: sandbox.id });
    return undefined;
  }
  const privileged = config.linux?.security_context?.privileged === true;
  return {
    stopSignal: module.systemdStopSignal,
    apply: (spec, id) => {
      const cgroup = context.cgroup.containerPaths(sandbox.cgroup.parent, sandbox.id, id);
      return module.withSystemd(spec, { host: context.host, cgroup, privileged });
    },
  };
}
