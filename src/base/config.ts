// Loads the daemon's configuration: flags override the files (config_files.ts), which override the defaults.
// Decision: the error lists all mistakes, each with file, line, key and allowed values; an unknown key stops
// the start, because a misspelt one would silently have no effect.
import { hostFacts, type HostInfo } from "./config_host.ts";
import { readConfigFiles, type Given } from "./config_files.ts";
import type { IdleKey } from "./config_idle_keys.ts";
import type { Key } from "./config_key.ts";
import { allKeys, daemonKeys, findKey, tlsServerNames, type TlsServerName } from "./config_keys.ts";
import { nriKeys } from "./config_nri_keys.ts";
import { checkConflicts, plainPath } from "./config_conflicts.ts";
import { clipped, programPath, type Resolution } from "./config_resolution.ts";
import { resolveStorage } from "./config_storage.ts";
import { resolveRuntimes, type GivenRuntimes } from "./config_runtimes.ts";
import { pathOfSocket, type Shape } from "./config_values.ts";
import { CriError } from "./errors.ts";
import { jsonValue, placeAt } from "./json.ts";
import type { RuntimeEntry } from "./runtime_values.ts";
import { check } from "./schema.ts";
import { withoutEnding } from "./text.ts";

type Values<T> = { -readonly [F in keyof T]: T[F] extends Key<infer Output> ? Output : never };

/** The effective configuration; durations in milliseconds. */
export type Config = Omit<
  Values<typeof daemonKeys>,
  "criRuntimes" | "enableCriV1" | "runtimes" | "systemdCgroup"
> & {
  /** By handler. */
  runtimes: Record<string, RuntimeEntry>;
  /** Selects systemd's cgroup driver; "auto" is resolved. */
  systemdCgroup: boolean;
  /** Bytes that a container may write into its own layer (storage-opts); 0: no limit. */
  containerBytes: number;
  /** Options of overlayfs mounts (storage-opts). */
  overlayOptions: [key: string, value: string][];
  nri: Values<typeof nriKeys>;
};

export type LoadedConfig = {
  config: Config;
  /** The source of each key's value: "default", "flag", or "FILE:LINE", several of a map merged of files. */
  origin: Map<string, string>;
  warnings: string[];
  /** The files that were read, in the order in which they merge. */
  files: string[];
};

/** Flags of the command line, as text. */
export type Flags = ReadonlyMap<Key | IdleKey, string>;

/**
 * Reads the file (the default one may be missing) and its drop-ins, and overrides them with the flags.
 * @throws CriError INVALID_ARGUMENT that lists every mistake.
 */
export function loadConfig(
  file: string | undefined,
  flags: Flags = new Map(),
  host: HostInfo = hostFacts,
): LoadedConfig {
  const { given, replaced, problems, files } = readConfigFiles(file);
  for (const [key, from] of replaced) if (from.value !== "") checked(key, from, problems);
  for (const [key, text] of flags) {
    const value = flagValue(key.kind.shape, text);
    given.set(key, { value, where: `--${key.key}`, origin: "flag" });
  }

  const values = new Map<string, unknown>();
  const origin = new Map<string, string>();
  const warnings: string[] = [];
  for (const key of allKeys) {
    const from = given.get(key);
    const value = from && from.value !== "" ? checked(key, from, problems) : undefined;
    if ("why" in key) {
      if (from && value !== undefined && !hasNoEffect(value, key.same)) {
        warnings.push(`${from.where}: "${key.key}" has no effect: ${key.why}`);
      }
      continue;
    }
    values.set(key.key, value === undefined ? key.fallback : value);
    origin.set(key.key, from && value !== undefined ? from.origin : "default");
  }
  const loaded = { config: configOf(values), origin, warnings, files };
  if (problems.length === 0) {
    const place = (name: string, ...steps: string[]) => placeOf(given.get(findKey(name)!), steps);
    resolveValues(loaded.config, values, { host, place, problems, warnings });
  }
  if (problems.length > 0) throw new CriError("INVALID_ARGUMENT", problems.join("\n"));
  return loaded;
}

/** Converts a flag's text to its value in the file; the check rejects text that does not fit. */
function flagValue(shape: Shape, text: string): unknown {
  if (shape === "text" || text === "") return text;
  if (shape === "switch") return text === "true" ? true : text === "false" ? false : text;
  if (shape === "number") return /^-?\d+$/.test(text) ? Number(text) : text;
  if (/^\s*[[{]/.test(text)) {
    try {
      return jsonValue(text);
    } catch {
      return text;
    }
  }
  if (shape === "list") return text.split(",");
  const pairs = text.split(",").map((pair) => pair.split("="));
  return pairs.every((pair) => pair.length === 2) ? Object.fromEntries(pairs) : text;
}

/** Returns the file and line of a part of a value. */
function placeOf(from: Given | undefined, steps: readonly (string | number)[]): string {
  if (from === undefined) return "default";
  return from.node === undefined ? from.where : placeAt(from.node, steps);
}

function checked(key: Key | IdleKey, from: Given, problems: string[]): unknown {
  const result = check(key.kind.schema, from.value);
  if (result.success) return result.output;
  const [issue] = result.issues;
  const steps = (issue.path ?? []).map((item) => item.key as string | number);
  const where = placeOf(from, steps);
  const name = [key.key, ...steps].join(".");
  const unknown = issue.type === "strict_object" && issue.expected === "never";
  const part = valueAt(from.value, steps);
  const got = unknown || part === undefined ? "" : `, not ${clipped(part)}`;
  const lead = unknown ? `unknown key "${name}"; "${key.key}"` : `"${key.key}"`;
  const at = got !== "" && steps.length > 0 ? ` (at "${name}")` : "";
  problems.push(`${where}: ${lead} must be ${key.kind.allowed}${got}${at}`);
  return undefined;
}

/** Returns the configured value, since the input of an issue may be transformed already. */
function valueAt(value: unknown, steps: readonly (string | number)[]): unknown {
  let at = value;
  for (const step of steps) at = (at as Record<string | number, unknown> | undefined)?.[step];
  return at;
}

function hasNoEffect(value: unknown, same: unknown): boolean {
  if (value === false || value === 0 || (same !== undefined && value === same)) return true;
  return typeof value === "object" && value !== null && Object.keys(value).length === 0;
}

function configOf(values: Map<string, unknown>): Config {
  const pick = (keys: Record<string, Key>) =>
    Object.fromEntries(Object.entries(keys).map(([field, { key }]) => [field, values.get(key)]));
  const { criRuntimes: _, enableCriV1: __, ...rest } = pick(daemonKeys);
  const resolved = { containerBytes: 0, overlayOptions: [] };
  return { ...rest, ...resolved, nri: pick(nriKeys) } as unknown as Config;
}

/** Resolves values that depend on the host or on several keys. */
function resolveValues(config: Config, values: Map<string, unknown>, s: Resolution): void {
  if (values.get("enable-cri-v1") === false) {
    s.problems.push(
      `${s.place("enable-cri-v1")}: "enable-cri-v1" must be true: the daemon serves CRI v1, and runtime.v1alpha2 with the same messages for kubelets 1.20 to 1.25`,
    );
  }
  if (config.group !== "" && s.host.groupId(config.group) === undefined) {
    s.warnings.push(
      `${s.place("group")}: there is no group "${config.group}", so only root may use the socket; groupadd ${config.group} creates it`,
    );
    config.group = "";
  }
  checkSockets(config, s);
  for (const server of tlsServerNames) checkTlsPair(config, server, s);
  checkServeBlobs(config, s);
  checkConflicts(config, s);
  resolveStorage(config, s);
  if (values.get("systemd-cgroup") === "auto") config.systemdCgroup = s.host.systemdRuns();
  if (config.systemdCgroup && !s.host.systemdRuns()) {
    s.warnings.push(
      `${s.place("systemd-cgroup")}: "systemd-cgroup": true needs systemd as the init of the host, which it is not here: no pod can start; set it to "auto" or false`,
    );
  }
  const runtimes = values.get("runtimes") as GivenRuntimes["runtimes"];
  const aliases = values.get("cri-runtimes") as GivenRuntimes["aliases"];
  const { systemdCgroup, defaultRuntime } = config;
  config.runtimes = resolveRuntimes({ runtimes, aliases, systemdCgroup, defaultRuntime }, s);
  resolveDefaultRuntime(config, s);
  resolveProcessors(config, s);
  if (!/^(127\.|::1$)/.test(config.streamServerAddress) && config.streamTlsCert === "") {
    s.warnings.push(
      `${s.place("stream-server-address")}: "stream-server-address": streams, and the secrets of their URLs, cross the network in plain text: set stream-tls-cert and stream-tls-key`,
    );
  }
  if (config.imageVerifierRequired && config.imageVerifierDir === "") {
    s.problems.push(
      `${s.place("image-verifier-required")}: "image-verifier-required" needs "image-verifier-dir", the folder of the verifiers`,
    );
  }
  resolveCgroupParent(config, s);
}

/** Refuses a socket for a group or user in a folder that only root may enter. */
function checkSockets({ group, socketUid, hosts, graph, state }: Config, s: Resolution): void {
  if (group === "" && socketUid === 0) return;
  const whom = group === "" ? `user ${socketUid} ("socket-uid")` : `group "${group}"`;
  for (const host of hosts) {
    const path = plainPath(pathOfSocket(host));
    const folder = [graph, state].find((top) => path.startsWith(`${plainPath(top)}/`));
    if (folder === undefined) continue;
    s.problems.push(
      `${s.place("hosts")}: "hosts" must not have ${clipped(host)} for the ${whom}: it lies in ${folder}, which only root can enter; use a path outside of graph and state, such as unix:///var/run/isulad.sock`,
    );
  }
}

function checkTlsPair(config: Config, server: TlsServerName, s: Resolution): void {
  const fields = [`${server}TlsCert`, `${server}TlsKey`] as const;
  const [cert, key] = fields;
  if ((config[cert] === "") === (config[key] === "")) return;
  const names = fields.map((field) => daemonKeys[field].key);
  const [given = "", missing] = config[cert] === "" ? names.toReversed() : names;
  s.problems.push(`${s.place(given)}: "${given}" needs "${missing}", too`);
}

function checkServeBlobs(config: Config, s: Resolution): void {
  if (config.serveBlobs === "") return;
  const needs = (name: string, what: string) =>
    s.problems.push(`${s.place(name)}: "${name}" needs ${what}`);
  if (!config.keepBlobs) needs("serve-blobs", '"keep-blobs": true, or there is nothing to serve');
  if (config.serveBlobsClients.length === 0) {
    needs("serve-blobs", '"serve-blobs-clients", the networks that may fetch, or nobody is served');
  }
  if (config.serveBlobsPrivate && config.serveBlobsTlsCert === "") {
    needs(
      "serve-blobs-private",
      '"serve-blobs-tls-cert", or everybody on the wire reads the images',
    );
  }
}

function resolveDefaultRuntime(config: Config, s: Resolution): void {
  if (config.defaultRuntime === "lcr") {
    s.warnings.push(
      `${s.place("default-runtime")}: lcr is not supported: runc is the default runtime`,
    );
    config.defaultRuntime = "runc";
  }
  if (!Object.hasOwn(config.runtimes, config.defaultRuntime)) {
    s.problems.push(
      `${s.place("default-runtime")}: "default-runtime" must be a name in "runtimes" (${Object.keys(config.runtimes).join(", ")}), not "${config.defaultRuntime}"`,
    );
  }
}

function resolveProcessors({ streamProcessors }: Config, s: Resolution): void {
  for (const [name, entry] of Object.entries(streamProcessors)) {
    const effect = "images that need it cannot be pulled until it is installed";
    const use = { at: ["stream-processors", name] as const, path: entry.path, effect };
    streamProcessors[name] = { ...entry, path: programPath(use, s) };
  }
}

function resolveCgroupParent(config: Config, s: Resolution): void {
  const parent = config.cgroupParent;
  if (parent === "") {
    config.cgroupParent = config.systemdCgroup ? "isulad.slice" : "/isulad";
    return;
  }
  const slice = /^[A-Za-z0-9:_.\\-]+\.slice$/.test(parent);
  const path = !parent.split("/").includes("..") && !/[\0\n]/.test(parent);
  if (config.systemdCgroup ? slice : path) {
    if (!config.systemdCgroup)
      config.cgroupParent = `/${withoutEnding(parent.replace(/^\/+/, ""), "/")}`;
    return;
  }
  const must = config.systemdCgroup
    ? 'a slice such as "isulad.slice" under "systemd-cgroup": true'
    : 'a path such as "/isulad" without ".."';
  s.problems.push(
    `${s.place("cgroup-parent")}: "cgroup-parent" must be ${must}, not ${clipped(parent)}`,
  );
}
