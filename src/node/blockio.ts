// Resolves block I/O classes by name. The YAML or JSON file has the format of goresctrl
// (intel/goresctrl, pkg/blockio), which containerd reads too:
//
//   Classes:
//     Slow:
//       - Weight: 80
//       - Devices: [/dev/sd*]
//         ThrottleReadBps: 50M
import { readdirSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import * as v from "valibot";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { matchesGlob } from "../base/glob.ts";
import { mapOf } from "../base/schema.ts";
import type { OciBlockIO } from "../spec/oci_types.ts";
import { deviceNumbers } from "../sys/path.ts";
import { readYamlFile } from "./yaml_file.ts";

const fileBytesMax = 1 << 20;
const devicesMax = 1_000;

/** 50, "50" or "50k"; k, M, G and T are powers of 1000; Ki, Mi, Gi and Ti of 1024. */
const Amount = v.pipe(
  v.union([v.number(), v.string()]),
  v.transform(String),
  v.regex(
    /^\d{1,15}([kMGT]|[KMGT]i)?$/,
    "is not a whole number, with k, M, G, T, Ki, Mi, Gi or Ti",
  ),
  v.transform((text) => {
    const unit = text.replace(/^\d+/, "");
    const power = ["", "k", "m", "g", "t"].indexOf(unit.replace("i", "").toLowerCase());
    return BigInt(Number.parseInt(text)) * (unit.endsWith("i") ? 1024n : 1000n) ** BigInt(power);
  }),
);
const Weight = v.pipe(v.number(), v.integer(), v.minValue(10), v.maxValue(1000));

const Parameters = v.strictObject({
  Devices: v.optional(v.array(v.pipe(v.string(), v.regex(/^\/[^\0]+$/, "is not absolute"))), []),
  Weight: v.optional(v.union([Weight, v.pipe(v.string(), v.transform(Number), Weight)])),
  ThrottleReadBps: v.optional(Amount),
  ThrottleWriteBps: v.optional(Amount),
  ThrottleReadIOPS: v.optional(Amount),
  ThrottleWriteIOPS: v.optional(Amount),
});
const BlockioFile = v.object({ Classes: mapOf(v.string(), v.array(Parameters)) });

const throttles = {
  ThrottleReadBps: "throttleReadBpsDevice",
  ThrottleWriteBps: "throttleWriteBpsDevice",
  ThrottleReadIOPS: "throttleReadIOPSDevice",
  ThrottleWriteIOPS: "throttleWriteIOPSDevice",
} as const;

/**
 * Resolves a class for the devices of this node. file "": no file is configured.
 * @throws CriError FAILED_PRECONDITION for an unknown class or an invalid file.
 */
export function blockioClass(file: string, name: string): OciBlockIO {
  const refused = (reason: string, cause?: unknown) =>
    new CriError("FAILED_PRECONDITION", `blockio_class ${name}: ${reason}`, { cause });
  if (file === "") throw refused("no classes are configured (blockio-config-file in daemon.json)");
  let classes: v.InferOutput<typeof BlockioFile>["Classes"];
  try {
    classes = readYamlFile(file, fileBytesMax, BlockioFile).Classes;
  } catch (error) {
    throw refused(`${file}: ${messageOf(error)}`, error);
  }
  const found = new Map(Object.entries(classes)).get(name);
  if (found === undefined) {
    throw refused(`${file} defines ${Object.keys(classes).join(", ") || "no classes"}`);
  }
  const result: OciBlockIO = {};
  for (const parameters of found) addParameters(result, parameters);
  return result;
}

function addParameters(result: OciBlockIO, parameters: v.InferOutput<typeof Parameters>): void {
  const devices = parameters.Devices.flatMap(blockDevices);
  const weight = parameters.Weight;
  if (weight !== undefined && parameters.Devices.length === 0) result.weight = weight;
  else if (weight !== undefined) {
    const more = devices.map((device) => ({ ...device, weight }));
    result.weightDevice = [...(result.weightDevice ?? []), ...more];
  }
  for (const [from, to] of Object.entries(throttles)) {
    const rate = parameters[from as keyof typeof throttles];
    if (rate === undefined) continue;
    result[to] = [...(result[to] ?? []), ...devices.map((device) => ({ ...device, rate }))];
  }
}

/** Expands a path to block devices; its last element may contain `*` and `?`. */
function blockDevices(path: string): { major: number; minor: number }[] {
  const folder = dirname(path);
  const names = namesIn(folder).filter((name) => matchesGlob(basename(path), name));
  const numbers = new Map<bigint, { major: number; minor: number }>();
  for (const name of names.slice(0, devicesMax)) {
    const found = statSync(join(folder, name), { throwIfNoEntry: false, bigint: true });
    if (found?.isBlockDevice()) numbers.set(found.rdev, deviceNumbers(found.rdev));
  }
  return [...numbers.values()];
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch (error) {
    if (["ENOENT", "ENOTDIR"].includes(errnoOf(error) ?? "")) return [];
    throw error;
  }
}
