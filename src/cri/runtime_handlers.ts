// Runtime handlers (RuntimeClass): each one that daemon.json defines under runtimes or cri-runtimes.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../base/config.ts";
import { CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { jsonText } from "../base/json.ts";
import { quoted } from "../base/text.ts";
import type { RuntimeCommand } from "../node/oci_runtime.ts";
import { RuntimeFeatures } from "../node/runtime_features.ts";
import { parseBaseSpec, type BaseSpec } from "../spec/base_spec.ts";
import { readTextBounded } from "../sys/file.ts";
import type { Context, Handler } from "./context.ts";

const baseSpecBytesMax = 4 << 20;

/**
 * Opens every handler under its name, the default one under "" as well, and detects their runtimes' features.
 * @throws CriError INVALID_ARGUMENT for an unusable base spec.
 */
export async function openHandlers(config: Config, log: Log): Promise<Map<string, Handler>> {
  const handlers = new Map<string, Handler>();
  /** By command line: handlers with the same runtime share its features. */
  const featuresOf = new Map<string, RuntimeFeatures>();
  for (const [name, entry] of Object.entries(config.runtimes)) {
    const argv = [entry.path, ...entry.runtimeArgs];
    const key = jsonText(argv);
    const onProblem = (problem: string) => log.warn(problem, { handler: name });
    const features = featuresOf.get(key) ?? new RuntimeFeatures(argv, onProblem);
    featuresOf.set(key, features);
    const root = join(config.state, "runtime", name);
    mkdirSync(root, { recursive: true, mode: 0o700 });
    const { path, runtimeArgs: args, baseRuntimeSpec } = entry;
    handlers.set(name, {
      kind: "oci",
      sandboxed: false,
      command: { path, args, root, systemdCgroup: config.systemdCgroup },
      get support() {
        return features.support;
      },
      refresh: () => features.refresh(),
      rules: {
        baseSpec: baseRuntimeSpec === undefined ? undefined : readBaseSpec(name, baseRuntimeSpec),
        podAnnotations: entry.podAnnotations ?? [],
        containerAnnotations: entry.containerAnnotations ?? [],
        privilegedWithoutHostDevices: entry.privilegedWithoutHostDevices ?? false,
      },
      cniConfDir: entry.cniConfDir,
    });
  }
  handlers.set("", handlers.get(config.defaultRuntime)!);
  await Promise.all([...handlers.values()].map((handler) => handler.refresh()));
  return handlers;
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

/** True for pods and containers that run in a guest (Handler.sandboxed). */
export function isSandboxed(
  { handlers }: Pick<Context, "handlers">,
  { runtimeHandler }: { runtimeHandler: string },
): boolean {
  return handlers.get(runtimeHandler)?.sandboxed ?? false;
}

/**
 * The runtime that removes a handler's containers. If daemon.json no longer defines the handler, any runtime
 * will do: the monitor remembers the one that it started a container with.
 */
export function removalRuntime(
  { handlers }: Pick<Context, "handlers">,
  name: string,
): RuntimeCommand {
  return (handlers.get(name) ?? handlers.get("")!).command;
}

/** Returns true if pods of this handler can have a user namespace of their own. */
export function supportsUserNamespaces(
  { host, images }: Pick<Context, "host" | "images">,
  { support }: Handler,
): boolean {
  const canMapLayers = host.idmappedLayers || images.storage.driver === "native";
  return canMapLayers && support.idmapMounts;
}
