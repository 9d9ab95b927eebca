// Runtime handlers (RuntimeClass): each one that daemon.json defines under runtimes or cri-runtimes.
import { systemdRuns } from "../base/config_host.ts";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../base/config.ts";
import { hostFacts } from "../base/config_host.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { type Log, logFailure } from "../base/log.ts";
import { jsonText } from "../base/json.ts";
import { quoted } from "../base/text.ts";
import type { RuntimeEntry } from "../base/runtime_values.ts";
import { isRuncShim, missingShim } from "../base/shim_program.ts";
import type { RuntimeCommand, ShimSettings } from "../node/oci_runtime.ts";
import { noSupport, ociProbe, RuntimeFeatures } from "../node/runtime_features.ts";
import { parseBaseSpec, type BaseSpec } from "../spec/base_spec.ts";
import { isInGuest, type RuntimeKind, type Sandbox } from "../state/sandbox.ts";
import { readTextBounded } from "../sys/file.ts";
import type { Context, Handler } from "./context.ts";

const baseSpecBytesMax = 4 << 20;

/**
 * Opens every handler under its name, the default one under "" as well. @throws CriError INVALID_ARGUMENT for an
 * unusable base spec.
 */
export function openHandlers(config: Config, log: Log): Map<string, Handler> {
  const handlers = new Map<string, Handler>();
  /** By command line: handlers with the same runtime share its features. */
  const featuresOf = new Map<string, RuntimeFeatures>();
  for (const [name, entry] of Object.entries(config.runtimes)) {
    const command = commandOf(config, name, entry);
    const { path, args } = command;
    mkdirSync(command.root, { recursive: true, mode: 0o700 });
    const onProblem = (problem: string) => log.warn(problem, { handler: name });
    if (entry.shim !== undefined) {
      command.shim = entry.shim;
      handlers.set(name, shimHandler({ name, entry, command, shim: entry.shim }, onProblem));
      continue;
    }
    const argv = [path, ...args];
    const key = jsonText(argv);
    const features = featuresOf.get(key) ?? new RuntimeFeatures(ociProbe(argv), onProblem);
    featuresOf.set(key, features);
    handlers.set(name, {
      runtimeKind: "oci",
      command,
      get support() {
        return features.support;
      },
      refresh: () => features.refresh(),
      ...settingsOf(name, entry, "oci"),
    });
  }
  handlers.set("", handlers.get(config.defaultRuntime)!);
  return handlers;
}

/**
 * Begins to detect the features of all runtimes, for which whoever needs them waits by another refresh(). Each is a
 * process, so this follows the start's own work.
 */
export function detectFeatures(handlers: ReadonlyMap<string, Handler>, log: Log): void {
  const failed = logFailure(log, "detecting the features of a runtime failed");
  for (const handler of handlers.values()) handler.refresh().catch(failed);
}

type Options = Partial<{ [Name in "root" | "criu_image_path" | "criu_work_path"]: string }> & {
  no_new_keyring?: boolean;
  io_uid?: number;
  io_gid?: number;
};

function commandOf(config: Config, name: string, entry: RuntimeEntry): RuntimeCommand {
  const { path, runtimeArgs: args, shim } = entry;
  const options: Options = shim?.options ?? entry.options ?? {};
  const command: RuntimeCommand = {
    path,
    args,
    root: stateFolder(config, name, shim === undefined ? options.root : undefined),
    systemdCgroup: config.systemdCgroup,
    noNewKeyring: options.no_new_keyring,
  };
  const { io_uid: uid, io_gid: gid, criu_image_path: images, criu_work_path: work } = options;
  // Where a shim runs the containers, the shim itself gives their streams to this owner.
  const hasOwner = shim === undefined && (uid !== undefined || gid !== undefined);
  if (hasOwner) command.streamOwner = { uid: uid ?? 0, gid: gid ?? 0 };
  if (images !== undefined || work !== undefined) command.criu = { images, work };
  return command;
}

/** Under another root, a folder that no other daemon has: whatever is left in it is deleted. */
function stateFolder({ state }: Config, name: string, root: string | undefined): string {
  return root === undefined ? join(state, "runtime", name) : join(root, state, name);
}

type OpenedShim = {
  name: string;
  entry: RuntimeEntry;
  command: RuntimeCommand;
  shim: ShimSettings;
};

function shimHandler(
  { name, entry, command, shim }: OpenedShim,
  onProblem: (problem: string) => void,
): Handler {
  let features: RuntimeFeatures | undefined;
  let problem: string | undefined;
  const runtimeKind = isRuncShim(shim.type) ? "shim" : "guest";
  return {
    runtimeKind,
    command,
    get support() {
      return features?.support ?? noSupport;
    },
    get problem() {
      return problem;
    },
    refresh: async () => {
      // The shim's executable may have been installed meanwhile.
      if (!command.path.startsWith("/")) {
        command.path = hostFacts.findExecutable(command.path) ?? command.path;
      }
      const { path } = command;
      problem = hostFacts.isExecutable(path) ? undefined : missingShim(path, shim.type);
      if (problem !== undefined) return;
      const { shimProbe } = await import("../shim/shim_info.ts");
      features ??= new RuntimeFeatures(shimProbe(command), onProblem);
      await features.refresh();
    },
    ...settingsOf(name, entry, runtimeKind),
  };
}

function settingsOf(
  name: string,
  entry: RuntimeEntry,
  runtimeKind: RuntimeKind,
): Pick<Handler, "rules" | "cniLists"> {
  const { baseRuntimeSpec } = entry;
  return {
    rules: {
      baseSpec: baseRuntimeSpec === undefined ? undefined : readBaseSpec(name, baseRuntimeSpec),
      podAnnotations: entry.podAnnotations ?? [],
      containerAnnotations: entry.containerAnnotations ?? [],
      // A guest has no use for this node's devices, and Kata fails to plug all of them in.
      privilegedWithoutHostDevices:
        entry.privilegedWithoutHostDevices ?? isInGuest({ runtimeKind }),
      privilegedAllDevicesAllowed: entry.privilegedAllDevicesAllowed ?? false,
    },
    cniLists: { confDir: entry.cniConfDir, maxConfNum: entry.cniMaxConfNum },
  };
}

function readBaseSpec(name: string, file: string): BaseSpec {
  try {
    return parseBaseSpec(readTextBounded(file, baseSpecBytesMax));
  } catch (cause) {
    const message = `"runtimes.${name}.base-runtime-spec" ${file}: ${messageOf(cause)}`;
    throw new CriError("INVALID_ARGUMENT", message, { cause });
  }
}

/** @throws CriError INVALID_ARGUMENT for a handler that daemon.json does not define. */
export function getHandler({ handlers }: Pick<Context, "handlers">, name: string): Handler {
  const handler = handlers.get(name);
  if (handler !== undefined) return handler;
  const known = [...handlers.keys()].filter((known) => known !== "").join(", ");
  throw new CriError(
    "INVALID_ARGUMENT",
    `no runtime handler ${quoted(name)}: daemon.json (runtimes, cri-runtimes) has ${known}`,
  );
}

/** @throws CriError FAILED_PRECONDITION for a handler whose shim is not installed. */
export function requireInstalled(name: string, { problem }: Handler): void {
  if (problem === undefined) return;
  const message = `runtime handler ${quoted(name)} cannot be used: ${problem}`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/**
 * Returns the handler of a pod or container.
 * @throws CriError as getHandler() does; FAILED_PRECONDITION if daemon.json has made another kind of it since.
 */
export function handlerOf(
  context: Pick<Context, "handlers">,
  { runtimeHandler, runtimeKind }: Pick<Sandbox, "runtimeHandler" | "runtimeKind">,
): Handler {
  const handler = getHandler(context, runtimeHandler);
  if (handler.runtimeKind === runtimeKind) return handler;
  const name = runtimeHandler === "" ? "the default runtime" : `runtime handler ${runtimeHandler}`;
  throw new CriError(
    "FAILED_PRECONDITION",
    `${name} was of kind "${runtimeKind}" when the pod was made and is of kind "${handler.runtimeKind}" now: remove the pod, or set daemon.json back and restart the daemon`,
  );
}

/**
 * The runtime that removes a handler's containers. If daemon.json no longer defines the handler, any runtime
 * will do: the monitor remembers the one that it started a container with.
 */
export function removalRuntime(
  { handlers }: Pick<Context, "handlers">,
  name: string,
): RuntimeCommand {
  const { command } = handlers.get(name) ?? handlers.get("")!;
  // With --systemd-cgroup a runtime removes nothing where systemd does not run.
  return { ...command, systemdCgroup: command.systemdCgroup && systemdRuns() };
}

/** Returns true if pods of this handler can have a user namespace of their own. */
export function supportsUserNamespaces(
  { host, images }: Pick<Context, "host" | "images">,
  handler: Pick<Handler, "support" | "runtimeKind">,
): boolean {
  if (isInGuest(handler)) return false;
  const canMapLayers = host.idmappedLayers || images.storage.driver === "native";
  return canMapLayers && handler.support.idmapMounts;
}
