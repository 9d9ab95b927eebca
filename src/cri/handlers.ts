// Runtime handlers (RuntimeClass): what daemon.json says of each under runtimes and cri-runtimes.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../base/config.ts";
import { CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { jsonText } from "../base/json.ts";
import { RuntimeFeatures } from "../node/runtime_features.ts";
import { parseBaseSpec, type BaseSpec } from "../spec/base_spec.ts";
import { readTextBounded } from "../sys/file.ts";
import type { Handler } from "./context.ts";

const baseSpecBytesMax = 4 << 20;

/**
 * Each handler by its name, and the default one by "" too; what their runtimes can do is asked.
 * @throws CriError INVALID_ARGUMENT for a base spec that cannot be used.
 */
export async function openHandlers(config: Config, log: Log): Promise<Map<string, Handler>> {
  const handlers = new Map<string, Handler>();
  /** Names of one runtime share its answer. */
  const asked = new Map<string, RuntimeFeatures>();
  for (const [name, entry] of Object.entries(config.runtimes)) {
    const argv = [entry.path, ...entry.runtimeArgs];
    const key = jsonText(argv);
    const onProblem = (problem: string) => log.warn(problem, { handler: name });
    const features = asked.get(key) ?? new RuntimeFeatures(argv, onProblem);
    asked.set(key, features);
    const root = join(config.state, "runtime", name);
    mkdirSync(root, { recursive: true, mode: 0o700 });
    const { path, runtimeArgs: args, baseRuntimeSpec } = entry;
    handlers.set(name, {
      command: { path, args, root, systemdCgroup: config.systemdCgroup },
      get facts() {
        return features.facts;
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
