// Resolves CDI devices. Files are read for each container, so that a device plugin's latest changes count.
// Unusable files are reported only when a device cannot be found.
import { readdirSync } from "node:fs";
import { stat } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { withoutNulls } from "../base/json.ts";
import type { CdiDeviceNode, CdiFileEdits } from "../spec/cdi.ts";
import type { CdiDevice, CdiEdits } from "../spec/spec_inputs.ts";
import { CdiSpec } from "../spec/cdi.ts";
import { deviceNode } from "./devices.ts";
import { readYamlFile } from "./yaml_file.ts";

const fileBytesMax = 1 << 20;
const filesMax = 1_000;

type Found = { file: string; spec: CdiSpec; device: CdiSpec["devices"][number] };

/** All devices of the folders; a later folder takes precedence. */
type Devices = { found: Map<string, Found>; ambiguous: Map<string, string[]>; problems: string[] };

/**
 * Collects the container edits of the named devices.
 * @throws CriError INVALID_ARGUMENT for a device that no file in dirs defines or two files of one folder
 * define; FAILED_PRECONDITION for one that needs a missing file or an unsupported feature.
 */
export async function resolveCdi(names: string[], dirs: string[]): Promise<CdiEdits> {
  const edits: CdiEdits = { env: [], devices: [], mounts: [], hooks: [], gids: [] };
  if (names.length === 0) return edits;
  const devices = readDevices(dirs);
  const added = new Set<string>();
  for (const name of names) {
    const { file, spec, device } = deviceOf(devices, name, dirs);
    const what = `CDI device ${name} (${file})`;
    if (!added.has(file)) await addEdits(edits, spec.containerEdits, what);
    added.add(file);
    await addEdits(edits, device.containerEdits, what);
  }
  return edits;
}

function deviceOf({ found, ambiguous, problems }: Devices, name: string, dirs: string[]): Found {
  const files = ambiguous.get(name);
  if (files !== undefined) {
    throw new CriError(
      "INVALID_ARGUMENT",
      `CDI device ${name} is defined in ${files.join(" and in ")}: remove one of them`,
    );
  }
  const device = found.get(name);
  if (device !== undefined) return device;
  const unusable =
    problems.length === 0 ? "" : ` (unusable files: ${problems.slice(0, 3).join("; ")})`;
  throw new CriError(
    "INVALID_ARGUMENT",
    `CDI device ${name} is not defined in ${dirs.join(", ")}${unusable}`,
  );
}

function readDevices(dirs: string[]): Devices {
  const all: Devices = { found: new Map(), ambiguous: new Map(), problems: [] };
  for (const dir of dirs) {
    const here = new Map<string, Found>();
    for (const file of specFiles(dir)) {
      try {
        const spec = readSpec(file);
        for (const device of spec.devices) {
          const name = `${spec.kind}=${device.name}`;
          const other = here.get(name);
          if (other === undefined) {
            here.set(name, { file, spec, device });
            all.ambiguous.delete(name); // of an earlier folder
          } else all.ambiguous.set(name, [other.file, file]);
        }
      } catch (error) {
        all.problems.push(`${file}: ${messageOf(error)}`);
      }
    }
    for (const [name, device] of here) all.found.set(name, device);
  }
  return all;
}

function specFiles(dir: string): string[] {
  try {
    const names = readdirSync(dir).filter((name) => /\.(json|yaml)$/.test(name));
    const chosen = names.sort().slice(0, filesMax);
    return chosen.map((name) => join(dir, name));
  } catch (cause) {
    if (errnoOf(cause) === "ENOENT") return [];
    throw new CriError("FAILED_PRECONDITION", `cdi-spec-dirs: ${messageOf(cause)}`, { cause });
  }
}

const CdiFile = v.pipe(v.unknown(), v.transform(withoutNulls), CdiSpec);

/** @throws Error with the reason, without the file name. */
export function readSpec(file: string): CdiSpec {
  return readYamlFile(file, fileBytesMax, CdiFile);
}

async function addEdits(edits: CdiEdits, from: CdiFileEdits, what: string): Promise<void> {
  if (from.netDevices.length > 0 || from.intelRdt !== undefined) {
    const feature = from.intelRdt === undefined ? "netDevices" : "intelRdt";
    throw new CriError("FAILED_PRECONDITION", `${what}: ${feature} is not supported`);
  }
  edits.env.push(...from.env);
  for (const node of from.deviceNodes) edits.devices.push(await lookupNode(node, what));
  for (const { hostPath, containerPath, type, options } of from.mounts) {
    const kind = type || "bind";
    const isNamed = options.includes("bind") || options.includes("rbind");
    const all = kind === "bind" && !isNamed ? ["rbind", ...options] : options; // for runtimes, the type is not enough
    edits.mounts.push({ destination: containerPath, type: kind, source: hostPath, options: all });
    if (kind === "bind") await mustExist(hostPath, what);
  }
  for (const { hookName, ...hook } of from.hooks) {
    await mustExist(hook.path, what);
    edits.hooks.push({ name: hookName, hook });
  }
  edits.gids.push(...from.additionalGids);
}

/** Completes a device node with the properties of the host's device. */
async function lookupNode(node: CdiDeviceNode, what: string): Promise<CdiDevice> {
  const { path, hostPath = path, uid, gid, permissions } = node;
  const access = permissions === "none" ? "" : permissions || "rwm";
  const type = node.type === "u" ? "c" : node.type || undefined; // u: c, unbuffered
  const isIncomplete = type === undefined || (node.major === undefined && type !== "p");
  const host = isIncomplete ? await deviceNode(hostPath, path).catch(missing(what)) : undefined;
  if (isIncomplete && host === undefined) {
    throw new CriError("FAILED_PRECONDITION", `${what}: ${hostPath} is not a device`);
  }
  if (type !== undefined && host !== undefined && host.type !== type) {
    const message = `${what}: ${hostPath} has type ${host.type}, but the file says ${type}`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  const device = {
    path,
    type: type ?? host!.type,
    major: node.major ?? host?.major ?? 0,
    minor: (node.major === undefined ? host?.minor : node.minor) ?? 0,
    fileMode: node.fileMode ?? host?.fileMode ?? 0o666,
  };
  return { node: device, hostPath, access, uid, gid };
}

async function mustExist(path: string, what: string): Promise<void> {
  await stat(path).catch(missing(what));
}

function missing(what: string): (error: unknown) => never {
  return (cause) => {
    throw new CriError("FAILED_PRECONDITION", `${what}: ${messageOf(cause)}`, { cause });
  };
}
