// Merges containers' specs over a handler's base spec: an OCI config.json, like containerd's
// base_runtime_spec. It adds what CRI cannot express (hooks, more mounts and devices, limits, a scheduler)
// and sets defaults.
//
// Decision: CRI always overrides the base, and fields that identify the container (root, command, user,
// capabilities, namespaces, cgroup, masked paths, hostname) are never taken from it. So the output of
// `runc spec` or `ctr oci spec` can be edited and used.
import * as v from "valibot";
import { messageOf } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import { check, mapOf } from "../base/schema.ts";
import { nonEmpty, bigIntegers, type OciMount, type OciSpec } from "./oci_types.ts";
import { invalid } from "./refusals.ts";

/** An object; valibot alone would accept an array too. */
function section<Entries extends v.ObjectEntries>(entries: Entries) {
  const isSection = (value: unknown) => !Array.isArray(value);
  return v.pipe(v.unknown(), v.check(isSection, "Expected Object"), v.looseObject(entries));
}

const BaseSpec = section({
  process: v.optional(
    section({
      env: v.optional(v.array(v.pipe(v.string(), v.regex(/^[^=\0]+=[^\0]*$/)))),
      rlimits: v.optional(
        v.array(v.object({ type: v.string(), soft: v.bigint(), hard: v.bigint() })),
      ),
    }),
  ),
  mounts: v.optional(
    v.array(
      section({
        destination: v.pipe(v.string(), v.regex(/^\/[^\0]*$/)),
        type: v.optional(v.string()),
        source: v.optional(v.string()),
        options: v.optional(v.array(v.string())),
      }),
    ),
  ),
  hooks: v.optional(section({})),
  annotations: v.optional(mapOf(v.string(), v.string())),
  linux: v.optional(
    section({
      devices: v.optional(v.array(section({ path: v.string() }))),
      resources: v.optional(
        section({
          devices: v.optional(
            v.array(section({ allow: v.boolean(), access: v.optional(v.string()) })),
          ),
          memory: v.optional(section({})),
          cpu: v.optional(section({})),
          unified: v.optional(mapOf(v.string(), v.string())),
          pids: v.optional(section({ limit: v.bigint() })),
        }),
      ),
      seccomp: v.optional(section({ defaultAction: v.string() })),
      sysctl: v.optional(mapOf(v.string(), v.string())),
    }),
  ),
});
export type BaseSpec = v.InferOutput<typeof BaseSpec>;

/** @throws CriError INVALID_ARGUMENT naming the invalid key. */
export function parseBaseSpec(text: string): BaseSpec {
  let json: unknown;
  try {
    json = jsonValue(text, bigIntegers);
  } catch (cause) {
    throw invalid(`is not JSON: ${messageOf(cause)}`, cause);
  }
  const parsed = check(BaseSpec, json);
  if (parsed.success) return parsed.output;
  const [issue] = parsed.issues;
  throw invalid(`is not an OCI spec: ${v.getDotPath(issue) ?? "it"}: ${issue.message}`);
}

/**
 * Returns the system mounts with the base's options, and the base's other mounts.
 * A tmpfs on /run is dropped, as containerd does: it would hide the image's files there.
 */
export function baseMounts(
  base: BaseSpec | undefined,
  system: OciMount[],
): { system: OciMount[]; more: OciMount[] } {
  const mounts = (base?.mounts ?? []).filter(
    ({ destination, type }) => !(destination === "/run" && type === "tmpfs"),
  );
  const known = new Set(system.map(({ destination }) => destination));
  return {
    system: system.map((own) => {
      // Cgroup mount options depend on the cgroup namespace, which the base does not choose.
      const same = ({ destination, type }: OciMount) =>
        destination === own.destination && type === own.type && type !== "cgroup";
      const options = mounts.findLast(same)?.options;
      return options === undefined ? own : { ...own, options: withAccess(options, own) };
    }),
    more: mounts.filter(({ destination }) => !known.has(destination)),
  };
}

/** Keeps the mount's own ro or rw, which depends on whether the container is privileged. */
function withAccess(options: string[], own: OciMount): string[] {
  const isAccess = (option: string) => option === "ro" || option === "rw";
  const access = (own.options ?? []).filter(isAccess);
  return access.length === 0 ? options : [...options.filter((o) => !isAccess(o)), ...access];
}

/** Fields that are never taken from the base. */
const ownOfProcess =
  "terminal consoleSize user args commandLine cwd capabilities noNewPrivileges apparmorProfile selinuxLabel oomScoreAdj";
const ownOfLinux =
  "namespaces uidMappings gidMappings cgroupsPath maskedPaths readonlyPaths mountLabel";

/** Returns the container's spec merged over the base; its mounts already include the base's (baseMounts). */
export function overBase(base: BaseSpec | undefined, own: OciSpec, privileged: boolean): OciSpec {
  if (base === undefined) return own;
  const { hostname: _, domainname: __, ...start } = base;
  return {
    ...start,
    ...own,
    process: {
      ...without(base.process ?? {}, ownOfProcess),
      ...own.process,
      env: joined(base.process?.env, own.process.env, (line) => line.split("=")[0]!),
      rlimits: joined(base.process?.rlimits, own.process.rlimits, ({ type }) => type),
    },
    annotations: { ...base.annotations, ...own.annotations },
    linux: linuxOverBase(base.linux ?? {}, own.linux, privileged),
  };
}

function linuxOverBase(
  base: NonNullable<BaseSpec["linux"]>,
  own: OciSpec["linux"],
  privileged: boolean,
): OciSpec["linux"] {
  const { resources = {}, ...rest } = base;
  const { memory, cpu, unified } = own.resources;
  const rules = [...own.resources.devices, ...(resources.devices ?? []).filter((r) => r.allow)];
  return {
    ...without(rest, privileged ? `${ownOfLinux} seccomp` : ownOfLinux),
    ...own,
    devices: joined(base.devices, own.devices, ({ path }) => path) as typeof own.devices,
    resources: {
      ...resources,
      ...own.resources,
      ...nonEmpty("memory", { ...resources.memory, ...memory }),
      ...nonEmpty("cpu", { ...resources.cpu, ...cpu }),
      ...nonEmpty("unified", { ...resources.unified, ...unified }),
      devices: rules as typeof own.resources.devices,
    },
  };
}

/** Concatenates the lists; on equal names the second list wins. */
function joined<Base, Own>(
  base: Base[] | undefined,
  own: Own[] | undefined,
  nameOf: (item: Base | Own) => string,
): (Base | Own)[] {
  const names = new Set((own ?? []).map(nameOf));
  return [...(base ?? []).filter((item) => !names.has(nameOf(item))), ...(own ?? [])];
}

function without(value: object, names: string): object {
  const dropped = new Set(names.split(" "));
  return Object.fromEntries(Object.entries(value).filter(([name]) => !dropped.has(name)));
}
