// Finds the daemon's socket: --host, $ISULAD_HOST, $CONTAINER_RUNTIME_ENDPOINT, crictl's file, the default.
import { readFile } from "node:fs/promises";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { printable, quoted } from "../base/text.ts";
import { defaultHost } from "./client.ts";
import { UsageError } from "./options.ts";

const crictlFile = "/etc/crictl.yaml";

type Environment = Record<string, string | undefined>;

/**
 * Returns the first that is set; an empty one counts as unset. crictl's file is $CRI_CONFIG_FILE, else
 * /etc/crictl.yaml, which need not exist.
 * @throws CriError INVALID_ARGUMENT for a file that cannot be read, UsageError for what is no unix socket
 */
export async function hostOf(
  given: string | undefined,
  environment: Environment,
  usualFile: string = crictlFile,
): Promise<string> {
  const host = await firstHost(given, environment, usualFile);
  if (host.startsWith("unix:") || !host.includes(":")) return host;
  throw new UsageError(`the daemon's socket has the form unix:///path, not ${quoted(host)}`);
}

async function firstHost(
  given: string | undefined,
  environment: Environment,
  usualFile: string,
): Promise<string> {
  const set = given || environment["ISULAD_HOST"] || environment["CONTAINER_RUNTIME_ENDPOINT"];
  if (set) return set;
  const named = environment["CRI_CONFIG_FILE"];
  const text = await textOf(named || usualFile, Boolean(named));
  return (text === undefined ? undefined : await endpointIn(text)) || defaultHost;
}

async function textOf(file: string, isNamed: boolean): Promise<string | undefined> {
  try {
    return await readFile(file, "utf8");
  } catch (error) {
    if (!isNamed && errnoOf(error) === "ENOENT") return undefined;
    const advice = "use --host, or set ISULAD_HOST";
    const message = `cannot read crictl's file ${file}: ${messageOf(error)}; ${advice}`;
    throw new CriError("INVALID_ARGUMENT", message, { cause: error });
  }
}

/** @throws CriError INVALID_ARGUMENT */
async function endpointIn(text: string): Promise<string | undefined> {
  const { parse } = await import("yaml");
  try {
    const data = parse(text) as Record<string, unknown> | null;
    const endpoint = data?.["runtime-endpoint"];
    return typeof endpoint === "string" ? endpoint : undefined;
  } catch (error) {
    const message = `crictl's file is not YAML: ${printable(messageOf(error))}; use --host`;
    throw new CriError("INVALID_ARGUMENT", message, { cause: error });
  }
}
