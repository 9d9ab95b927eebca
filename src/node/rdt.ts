// Creates RDT classes: groups of the kernel's resctrl file system, as the file of
// rdt-config-file defines them (spec/rdt.ts). The OCI runtime puts a container's processes into the group
// of its class.
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { RdtFile, rdtSchemata, type RdtHost } from "../spec/rdt.ts";
import { readMountTable } from "../sys/mount_table.ts";
import { resctrlFolder } from "./resctrl.ts";
import { readYamlFile } from "./yaml_file.ts";

const fileBytesMax = 1 << 20;

/**
 * Ensures that the class's group exists with the schemata of the file. file "": no file is configured, so the
 * group must exist already. @throws CriError FAILED_PRECONDITION with the class and the reason.
 */
export function prepareRdtClass(file: string, name: string, folder = resctrlFolder): void {
  try {
    if (!existsSync(join(folder, "schemata"))) {
      throw new Error(`this node has no resctrl file system (${folder} is not mounted)`);
    }
    if (name === "DEFAULT") throw new Error("DEFAULT is the root group: set no class instead");
    const group = join(folder, name);
    if (file === "") {
      if (existsSync(join(group, "schemata"))) return;
      const hint = "no classes are configured (rdt-config-file in daemon.json)";
      throw new Error(`${group} does not exist and ${hint}`);
    }
    const lines = classLines(file, name, folder);
    makeGroup(group);
    writeSchemata(folder, group, lines);
  } catch (cause) {
    const message = `rdt_class ${name}: ${messageOf(cause)}`;
    throw new CriError("FAILED_PRECONDITION", message, { cause });
  }
}

function classLines(file: string, name: string, folder: string): string[] {
  try {
    return rdtSchemata(readYamlFile(file, fileBytesMax, RdtFile), name, rdtHost(folder));
  } catch (error) {
    throw new Error(`${file}: ${messageOf(error)}`, { cause: error });
  }
}

/** Reads from the root group's schemata and info/ which resources the kernel can partition. */
export function rdtHost(folder: string): RdtHost {
  const host: RdtHost = { caches: [] };
  const info = (resource: string, name: string) =>
    readFileSync(join(folder, "info", resource, name), "utf8").trim();
  const known = readdirSync(join(folder, "info"));
  for (const line of readFileSync(join(folder, "schemata"), "utf8").split("\n")) {
    const [name = "", values = ""] = line.trim().split(":");
    if (!known.includes(name)) continue;
    const ids = values.split(";").map((one) => Number.parseInt(one));
    if (/^L[23](CODE|DATA)?$/.test(name)) {
      const bits = BigInt(`0x${info(name, "cbm_mask")}`).toString(2).length;
      host.caches.push({ name, ids, bits, bitsMin: Number(info(name, "min_cbm_bits")) });
    } else if (name === "MB") {
      const percentMin = Number(info(name, "min_bandwidth"));
      host.bandwidth = { ids, inMBps: isMountedInMBps(folder), percentMin };
    }
  }
  return host;
}

function isMountedInMBps(folder: string): boolean {
  const own = readMountTable().findLast(({ point }) => point === folder);
  return own?.options.split(",").includes("mba_MBps") ?? false;
}

function makeGroup(group: string): void {
  try {
    mkdirSync(group);
  } catch (cause) {
    if (errnoOf(cause) === "EEXIST") return;
    if (errnoOf(cause) !== "ENOSPC") throw cause;
    const message = `${group}: the hardware has no class left; remove another group`;
    throw new Error(message, { cause });
  }
}

function writeSchemata(folder: string, group: string, lines: string[]): void {
  if (lines.length === 0) return;
  try {
    writeFileSync(join(group, "schemata"), `${lines.join("\n")}\n`);
  } catch (error) {
    const status = readFileSync(join(folder, "info/last_cmd_status"), "utf8").trim();
    throw new Error(`${messageOf(error)}: ${status}`, { cause: error });
  }
}
