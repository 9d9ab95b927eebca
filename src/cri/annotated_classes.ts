// Applies the classes of block I/O and RDT that annotations name, as containerd and CRI-O do.
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../base/config.ts";
import { CriError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { quoted } from "../base/text.ts";
import { resctrlFolder } from "../node/resctrl.ts";
import { annotatedClass } from "../spec/annotations.ts";
import type { OciSpec } from "../spec/oci.ts";
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";

type Kind = "blockio" | "rdt";
type Keys = "blockioConfigFile" | "rdtConfigFile" | "ignoreBlockioErrors" | "ignoreRdtErrors";
type Node = { config: Pick<Config, Keys>; log: Log };
type Made = { container: Container; spec: OciSpec };

/**
 * Returns the container with its classes, and the spec with what they stand for. resctrl: the folder of the
 * kernel's resctrl file system.
 * @throws CriError FAILED_PRECONDITION for an unknown class, and for a class on a node without classes unless
 * daemon.json lets those be ignored.
 */
export async function withAnnotatedClasses(
  { config, log }: Node,
  sandbox: Pick<Sandbox, "config">,
  { container, spec, resctrl = resctrlFolder }: Made & { resctrl?: string },
): Promise<Made> {
  const { id } = container;
  const { blockioConfigFile, rdtConfigFile } = config;
  const chosen = (kind: Kind, problem: string | undefined, isIgnored: boolean) => {
    const name = annotatedClass(kind, container.config, sandbox.config);
    if (name === undefined || problem === undefined) return name;
    if (!isIgnored) throw refused(kind, name, problem);
    log.debug("the class of an annotation is ignored", { container: id, kind, name, why: problem });
    return undefined;
  };
  const noBlockio = blockioConfigFile === "" ? 'no "blockio-config-file" is set' : undefined;
  const blockio = chosen("blockio", noBlockio, config.ignoreBlockioErrors);
  const rdt = chosen("rdt", rdtProblem(rdtConfigFile, resctrl), config.ignoreRdtErrors);
  const { resources } = spec.linux;
  const linux = { ...spec.linux };
  // Imported only here, where they are used: the YAML parser takes more than a megabyte of memory.
  if (blockio !== undefined) {
    const { blockioClass } = await import("../node/blockio.ts");
    linux.resources = { ...resources, blockIO: blockioClass(blockioConfigFile, blockio) };
  }
  if (rdt !== undefined) {
    const { prepareRdtClass } = await import("../node/rdt.ts");
    prepareRdtClass(rdtConfigFile, rdt, resctrl);
    linux.intelRdt = { ...linux.intelRdt, closID: rdt };
  }
  return { container: withClasses(container, { blockio, rdt }), spec: { ...spec, linux } };
}

function rdtProblem(file: string, resctrl: string): string | undefined {
  if (file === "") return 'no "rdt-config-file" is set';
  return existsSync(join(resctrl, "schemata")) ? undefined : `${resctrl} is not mounted`;
}

function refused(kind: Kind, name: string, problem: string): CriError {
  const text = `an annotation names the ${kind} class ${quoted(name)}, but ${problem}`;
  const mend = `set it, remove the annotation, or let "ignore-${kind}-not-enabled-errors" be true`;
  return new CriError("FAILED_PRECONDITION", `${text}: ${mend}`);
}

/** Returns the container with the classes that are set now; undefined keeps one, "" removes it. */
export function withClasses(
  container: Container,
  changed: Record<Kind, string | null | undefined>,
): Container {
  const { blockio = container.classes?.blockio, rdt = container.classes?.rdt } = changed;
  const { classes: _, ...rest } = container;
  if (!blockio && !rdt) return rest;
  return { ...rest, classes: { ...(blockio ? { blockio } : {}), ...(rdt ? { rdt } : {}) } };
}
