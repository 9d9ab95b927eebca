// Container Device Interface: parses device names "vendor/class=name" and applies their edits to a spec
// (cncf-tags/container-device-interface, SPEC.md 0.3 to 1.1). Pure; node/cdi.ts reads the node's files.
import * as v from "valibot";
import { mapOf } from "../base/schema.ts";
import { quoted } from "../base/text.ts";
import type { ContainerConfig } from "../proto/types.ts";
import { deviceRule, placeDevices } from "./devices.ts";
import { byDepth } from "./mounts.ts";
import type { CdiEdits } from "./spec_inputs.ts";
import { ociHookNames, type OciMount, type OciSpec } from "./oci_types.ts";
import { invalid } from "./refusals.ts";
import type { UserNamespace } from "./userns.ts";

const devicesMax = 1_000;
const annotationPrefix = "cdi.k8s.io/";
const listMax = 10_000;

function list<const Item extends v.GenericSchema>(item: Item) {
  return v.optional(v.pipe(v.array(item), v.maxLength(listMax)), []);
}

const Id = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(0xffff_fffe));
const Path = v.pipe(v.string(), v.startsWith("/"), v.check(hasNoNul, "has a NUL"));
const EnvEntry = v.pipe(v.string(), v.regex(/^[^=\0]+=[^\0]*$/, "must be NAME=value"));

const DeviceNode = v.strictObject({
  path: Path,
  hostPath: v.optional(Path),
  type: v.optional(v.picklist(["", "b", "c", "u", "p"])),
  major: v.optional(Id),
  minor: v.optional(Id),
  fileMode: v.optional(v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(0o7777))),
  permissions: v.optional(v.pipe(v.string(), v.regex(/^(none|[rwm]{0,3})$/))),
  uid: v.optional(Id),
  gid: v.optional(Id),
});

const Edits = v.strictObject({
  env: list(EnvEntry),
  deviceNodes: list(DeviceNode),
  mounts: list(
    v.strictObject({
      hostPath: v.pipe(v.string(), v.minLength(1)),
      containerPath: Path,
      options: list(v.string()),
      type: v.optional(v.string()),
    }),
  ),
  hooks: list(
    v.strictObject({
      hookName: v.picklist(ociHookNames),
      path: Path,
      args: v.optional(v.array(v.string())),
      env: v.optional(v.array(EnvEntry)),
      timeout: v.optional(v.pipe(v.number(), v.integer(), v.minValue(1))),
    }),
  ),
  additionalGids: list(Id),
  // Unsupported: accepted so that the file parses, but devices with these edits are rejected.
  netDevices: list(v.unknown()),
  intelRdt: v.optional(v.unknown()),
});

const name = /^[A-Za-z]([\w.-]*[A-Za-z0-9])?$/;
const deviceName = /^[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?$/;

/** One CDI file. */
export const CdiSpec = v.strictObject({
  cdiVersion: v.pipe(v.string(), v.regex(/^v?(0\.[3-9]|1\.[01])\.\d+$/, "is not 0.3 to 1.1")),
  kind: v.pipe(
    v.string(),
    v.check((kind) => {
      const parts = kind.split("/");
      return parts.length === 2 && parts.every((part) => name.test(part));
    }, "must be VENDOR/CLASS"),
  ),
  annotations: v.optional(mapOf(v.string(), v.string())),
  devices: v.pipe(
    v.array(
      v.strictObject({
        name: v.pipe(v.string(), v.regex(deviceName)),
        annotations: v.optional(mapOf(v.string(), v.string())),
        containerEdits: Edits,
      }),
    ),
    v.minLength(1),
    v.maxLength(listMax),
  ),
  containerEdits: v.optional(Edits, {}),
});
export type CdiSpec = v.InferOutput<typeof CdiSpec>;
export type CdiFileEdits = v.InferOutput<typeof Edits>;
export type CdiDeviceNode = v.InferOutput<typeof DeviceNode>;

/**
 * Returns the devices that a container requests in CDI_devices and annotations, without duplicates.
 * @throws CriError INVALID_ARGUMENT for a malformed name.
 */
export function cdiNames(config: ContainerConfig): string[] {
  const names = new Set<string>();
  for (const [index, device] of (config.CDI_devices ?? []).entries()) {
    names.add(checkedName(device.name ?? "", `CDI_devices[${index}].name`));
  }
  for (const [key, value] of Object.entries(config.annotations ?? {})) {
    if (!key.startsWith(annotationPrefix)) continue;
    for (const one of value.split(",")) names.add(checkedName(one.trim(), `annotation ${key}`));
  }
  if (names.size > devicesMax) {
    throw invalid(`${names.size} CDI devices, more than ${devicesMax}`);
  }
  return [...names];
}

function checkedName(text: string, field: string): string {
  const [kind = "", device = "", ...more] = text.split("=");
  const parts = kind.split("/");
  const isName = parts.length === 2 && parts.every((part) => name.test(part));
  if (isName && deviceName.test(device) && more.length === 0) return text;
  throw invalid(`${field}: ${quoted(text)} is not VENDOR/CLASS=DEVICE`);
}

/** Returns the spec with the edits applied; later edits of the same name or path win. */
export function applyCdi(spec: OciSpec, edits: CdiEdits, userns?: UserNamespace): OciSpec {
  const { process, linux } = spec;
  const devices = edits.devices.map(({ node, hostPath, access, uid, gid }) => {
    const { user } = process;
    return { node: { ...node, uid: uid ?? user.uid, gid: gid ?? user.gid }, hostPath, access };
  });
  const placed = placeDevices(devices, userns !== undefined);
  const nodes = replaced(linux.devices, placed.nodes, (node) => node.path);
  const rules = devices.flatMap(({ node, access }) =>
    access === "" ? [] : (deviceRule(node, access) ?? []),
  );
  const gids = [...(process.user.additionalGids ?? []), ...edits.gids.filter((gid) => gid !== 0)];
  return {
    ...spec,
    process: {
      ...process,
      user: { ...process.user, additionalGids: [...new Set(gids)] },
      env: replaced(process.env, edits.env, (entry) => entry.slice(0, entry.indexOf("="))),
    },
    mounts: withMounts(spec.mounts, edits.mounts, { devices: placed.mounts, userns }),
    ...(edits.hooks.length === 0 ? {} : { hooks: withHooks(spec.hooks, edits.hooks) }),
    linux: {
      ...linux,
      devices: nodes,
      resources: { ...linux.resources, devices: [...linux.resources.devices, ...rules] },
    },
  };
}

function replaced<T>(old: T[], edits: T[], keyOf: (item: T) => string): T[] {
  const all = new Map(old.map((item) => [keyOf(item), item]));
  for (const item of edits) all.set(keyOf(item), item);
  return [...all.values()];
}

/** Sorts parents before children; bind mounts get the user namespace's id mappings. */
function withMounts(
  old: OciMount[],
  edits: OciMount[],
  { devices, userns }: { devices: OciMount[]; userns?: UserNamespace },
): OciMount[] {
  if (edits.length + devices.length === 0) return old;
  const isBind = ({ options = [] }: OciMount) =>
    options.includes("bind") || options.includes("rbind");
  const own = edits.map((mount) => (isBind(mount) ? { ...mount, ...userns } : mount));
  return replaced(old, [...own, ...devices], (mount) => mount.destination).sort(byDepth);
}

function withHooks(old: OciSpec["hooks"], edits: CdiEdits["hooks"]): OciSpec["hooks"] {
  const hooks = { ...old };
  for (const { name: at, hook } of edits) hooks[at] = [...(hooks[at] ?? []), hook];
  return hooks;
}

function hasNoNul(text: string): boolean {
  return !text.includes("\0");
}
