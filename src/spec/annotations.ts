// Selects the CRI annotations that are passed to the OCI runtime, and those that name classes.
import { matchesGlob } from "../base/glob.ts";
import type { ContainerConfig, PodSandboxConfig } from "../proto/types.ts";

/**
 * Returns the annotations whose keys match a pattern; "*" and "?" match anything but "/". By default none is
 * passed: anyone who can create a pod sets annotations, and some of them configure the runtime
 * (CVE-2024-3154).
 */
export function passedAnnotations(
  annotations: Record<string, string> | null | undefined,
  patterns: readonly string[],
): Record<string, string> {
  const all = patterns.map((pattern) => pattern.split("/"));
  const entries = Object.entries(annotations ?? {});
  return Object.fromEntries(
    entries.filter(([key]) => all.some((pattern) => matchesByParts(pattern, key.split("/")))),
  );
}

function matchesByParts(pattern: string[], parts: string[]): boolean {
  if (pattern.length !== parts.length) return false;
  return pattern.every((one, index) => matchesGlob(one, parts[index]!));
}

/**
 * Returns the class of block I/O or RDT that annotations give a container; undefined: none. The names are those of
 * containerd and CRI-O (intel/goresctrl): the container's own precedes the pod's.
 */
export function annotatedClass(
  kind: "blockio" | "rdt",
  container: Pick<ContainerConfig, "annotations" | "metadata">,
  pod: Pick<PodSandboxConfig, "annotations">,
): string | undefined {
  const prefix = `${kind}.resources.beta.kubernetes.io`;
  const ofPod = pod.annotations ?? {};
  const own = container.annotations?.[`io.kubernetes.cri.${kind}-class`];
  const name = own ?? ofPod[`${prefix}/container.${container.metadata?.name}`];
  return (name ?? ofPod[`${prefix}/pod`]) || undefined;
}
