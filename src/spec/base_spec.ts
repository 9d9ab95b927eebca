// A handler's base spec: the OCI config.json that its containers start from, as containerd's
// base_runtime_spec. It adds what CRI has no word for (hooks, further mounts and devices, limits, a
// scheduler) and sets the defaults of the rest.
//
// Decision: what CRI says of a container always wins, and what makes it this container (its root,
// command, user, capabilities, namespaces, cgroup, masked paths, hostname) is never the base's. So a
// spec that `runc spec` or `ctr oci spec` printed can be edited and used.
import * as v from "valibot";
import { CriError } from "../base/errors.ts";
import { parseOciJson, type OciMount, type OciSpec } from "./oci_types.ts";

const texts = v.array(v.string());

/** valibot takes an array for an object. */
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
        options: v.optional(texts),
      }),
    ),
  ),
  hooks: v.optional(section({})),
  annotations: v.optional(v.record(v.string(), v.string())),
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
          unified: v.optional(v.record(v.string(), v.string())),
          pids: v.optional(section({ limit: v.bigint() })),
        }),
      ),
      seccomp: v.optional(section({ defaultAction: v.string() })),
      sysctl: v.optional(v.record(v.string(), v.string())),
    }),
  ),
});
export type BaseSpec = v.InferOutput<typeof BaseSpec>;

/** @throws CriError INVALID_ARGUMENT with the key that is wrong. */
export function parseBaseSpec(text: string): BaseSpec {
  let json: unknown;
  try {
    json = parseOciJson(text);
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new CriError("INVALID_ARGUMENT", `is no JSON: ${why}`, { cause });
  }
  const parsed = v.safeParse(BaseSpec, json);
  if (parsed.success) return parsed.output;
  const [issue] = parsed.issues;
  const key = v.getDotPath(issue) ?? "it";
  throw new CriError("INVALID_ARGUMENT", `is no OCI spec: ${key}: ${issue.message}`);
}

/**
 * The system's mounts with the base's settings, and what the base mounts beside them.
 * containerd drops the /run of such specs too: it would hide what the image has there.
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
      // How cgroups are mounted follows from their namespace, which is not the base's.
      const same = ({ destination, type }: OciMount) =>
        destination === own.destination && type === own.type && type !== "cgroup";
      const options = mounts.findLast(same)?.options;
      return options === undefined ? own : { ...own, options: withAccess(options, own) };
    }),
    more: mounts.filter(({ destination }) => !known.has(destination)),
  };
}

/** Whether it can be written to is not the base's to say: that depends on who is privileged. */
function withAccess(options: string[], own: OciMount): string[] {
  const isAccess = (option: string) => option === "ro" || option === "rw";
  const access = (own.options ?? []).filter(isAccess);
  return access.length === 0 ? options : [...options.filter((o) => !isAccess(o)), ...access];
}

/** What of a process, and of linux, is the container's alone. */
const ownOfProcess =
  "terminal consoleSize user args commandLine cwd capabilities noNewPrivileges apparmorProfile selinuxLabel oomScoreAdj";
const ownOfLinux =
  "namespaces uidMappings gidMappings cgroupsPath maskedPaths readonlyPaths mountLabel";

/** The container's spec laid over the base; its mounts are those of baseMounts() already. */
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
      ...filled("memory", { ...resources.memory, ...memory }),
      ...filled("cpu", { ...resources.cpu, ...cpu }),
      ...filled("unified", { ...resources.unified, ...unified }),
      devices: rules as typeof own.resources.devices,
    },
  };
}

/** Both lists; of two that have one name the second list's. */
function joined<Base, Own>(
  base: Base[] | undefined,
  own: Own[] | undefined,
  nameOf: (item: Base | Own) => string,
): (Base | Own)[] {
  const names = new Set((own ?? []).map(nameOf));
  return [...(base ?? []).filter((item) => !names.has(nameOf(item))), ...(own ?? [])];
}

function filled(name: string, value: object): object {
  return Object.keys(value).length === 0 ? {} : { [name]: value };
}

function without(value: object, names: string): object {
  const dropped = new Set(names.split(" "));
  return Object.fromEntries(Object.entries(value).filter(([name]) => !dropped.has(name)));
}
