// Finds the shims that test/shims has built, and describes them as runtime handlers.
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";

const folder = join(import.meta.dirname, ".cache/shims");

/** Versions of containerd, whose containerd-shim-runc-v2 it is; the newest first. */
export const runcShimVersions = ["2.4.2", "2.1.5", "1.7.35", "1.6.20"] as const;

export function runcShim(version: string): string {
  return join(folder, version, "containerd-shim-runc-v2");
}

export const gvisorShim = join(folder, "gvisor/containerd-shim-runsc-v1");
/** runc's shim of containerd 2.4.2, whose calls fail as the annotations of its pod say. */
export const failpointShim = join(folder, "failpoint/containerd-shim-runc-fp-v1");
export const runsc = join(folder, "gvisor/runsc");

/** The versions of runc's shim that are built. */
export function builtRuncShims(): string[] {
  return runcShimVersions.filter((version) => existsSync(runcShim(version)));
}

/** The version to test with: ISULAD_SHIM's, else the newest that is built; undefined: none is. */
export function chosenRuncShim(): string | undefined {
  return process.env["ISULAD_SHIM"] ?? builtRuncShims()[0];
}

/** Returns the handler of a runc shim, for `runtimes` of daemon.json. */
export function runcHandler(version: string): Record<string, unknown> {
  return { "runtime-type": "io.containerd.runc.v2", "runtime-path": runcShim(version) };
}

/**
 * Returns the handler of gVisor; its configuration is written to `config`. systrap needs no virtualization;
 * cgroups are ignored because runsc cannot use the mixed hierarchies of some test machines.
 */
export function gvisorHandler(config: string): Record<string, unknown> {
  const lines = [
    `binary_name = "${runsc}"`,
    "grouping = true",
    "[runsc_config]",
    'platform = "systrap"',
    'ignore-cgroups = "true"',
  ];
  writeFileSync(config, `${lines.join("\n")}\n`);
  return {
    "runtime-type": "io.containerd.runsc.v1",
    "runtime-path": gvisorShim,
    "runtime-config-path": config,
  };
}

/** Names of the sockets of all shims on this node, containerd's too. */
export function shimSockets(): Set<string> {
  const sockets = "/run/containerd/s";
  return new Set(existsSync(sockets) ? readdirSync(sockets) : []);
}
