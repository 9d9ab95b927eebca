// Runs one CNI plugin with environment, input and deadline, and converts its error to a CriError.
import { accessSync, constants } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { activity } from "../base/activity.ts";
import { CriError, codeOf, errnoOf, messageOf, type ErrorCode } from "../base/errors.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { clip, printable, shorten } from "../base/text.ts";
import { type RunResult, run } from "../sys/run.ts";

export type PluginCall = {
  command: "ADD" | "DEL" | "STATUS" | "GC";
  plugin: string;
  binDirs: string[];
  /** Set for ADD and DEL. */
  pod?: {
    containerId: string;
    /** "" when the namespace no longer exists. */
    netnsPath: string;
    ifName: string;
    args: [string, string][];
  };
  input: Record<string, unknown>;
};

/** Cause of execPlugin()'s error: the plugin's own error code (CNI specification, Error). */
export type CniErrorCause = { cniCode: number | undefined };

/** Finds the plugin's executable in the first folder that has it. */
export function findPlugin(plugin: string, binDirs: string[]): string | undefined {
  for (const dir of binDirs) {
    const path = join(dir, plugin);
    try {
      accessSync(path, constants.X_OK);
      return path;
    } catch {
      // the next folder
    }
  }
  return undefined;
}

/**
 * Runs the plugin and returns its output.
 * @throws CriError with plugin, command, pid and duration: FAILED_PRECONDITION when the plugin is not
 * installed, DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE when its error code says to retry, else INTERNAL.
 */
export async function execPlugin(
  call: PluginCall,
  signal: AbortSignal,
): Promise<{ stdout: string; stderr: string }> {
  const { command, plugin } = call;
  const answer = await activity("cni", { command, plugin }, () =>
    tryPlugin(call, signal).catch((error: unknown) => {
      // No failure: the daemon asks for STATUS every few seconds, and an alert counts failures.
      if (call.pod === undefined && isUnknownCommand(error)) return error as CriError;
      throw error;
    }),
  );
  if (answer instanceof CriError) throw answer;
  return answer;
}

/** Plugins built with a library older than CNI 1.1 reject STATUS and GC, whatever versions they claim. */
export function isUnknownCommand(error: unknown): boolean {
  const unknownCommand = 4; // "Invalid necessary environment variables, like CNI_COMMAND"
  const cause = error instanceof CriError ? (error.cause as Partial<CniErrorCause>) : undefined;
  return cause?.cniCode === unknownCommand;
}

/**
 * True if a DEL's error says that there is nothing to remove. By the specification such a DEL succeeds, but some
 * plugins fail, now and at each retry: with "not found", or, without a namespace, with the ENOENT of its empty path
 * (go-cni ignores both, too). False if a plugin found no program, page or agent's socket: it has removed nothing.
 */
export function isAlreadyGone(error: unknown, netnsPath: string): boolean {
  const cause = error instanceof CriError ? (error.cause as Partial<CniErrorCause>) : undefined;
  if (cause?.cniCode === undefined) return false;
  const text = messageOf(error);
  if (/(executable file|command|page) not found/i.test(text)) return false;
  return text.includes("not found") || (netnsPath === "" && ofEmptyPath.test(text));
}

/** `failed to Statfs "": no such file or directory`, `open : no such file or directory` */
const ofEmptyPath = /(?:""|\b(?:open|stat|statfs)) ?: no such file or directory/i;

async function tryPlugin(call: PluginCall, signal: AbortSignal): Promise<RunResult> {
  const sandbox = call.pod === undefined ? "" : ` of sandbox ${call.pod.containerId}`;
  const what = `CNI plugin ${call.plugin}: ${call.command}${sandbox}`;
  const path = findPlugin(call.plugin, call.binDirs);
  if (path === undefined) {
    const dirs = call.binDirs.join(", ");
    const message = `${what}: not found in ${dirs}; install it or set cni-bin-dir`;
    throw new CriError("FAILED_PRECONDITION", message);
  }
  const start = performance.now();
  let result: RunResult;
  try {
    result = await runRetrying(path, call, signal);
  } catch (error) {
    // NOT_FOUND: a script whose interpreter is missing. To a client this code would mean that the pod is missing.
    const code = codeOf(error) === "NOT_FOUND" ? "FAILED_PRECONDITION" : codeOf(error);
    throw new CriError(code, `${what}: ${messageOf(error)}`, { cause: error });
  }
  if (result.exitCode === 0) return result;
  const after = `(pid ${result.pid}, ${Math.round(performance.now() - start)} ms)`;
  const { code, message, cniCode } = pluginError(result);
  const cause: CniErrorCause = { cniCode };
  throw new CriError(code, `${what} failed: ${message} ${after}`, { cause });
}

/** Retries ETXTBSY: an installer may still have the executable open for writing. */
async function runRetrying(
  path: string,
  call: PluginCall,
  signal: AbortSignal,
): Promise<RunResult> {
  const options = { input: jsonText(call.input), env: environmentOf(call), signal };
  for (let attempt = 1; ; attempt++) {
    try {
      return await run([path], options);
    } catch (error) {
      // Bun throws it from spawn itself; Node and Deno emit an event, which run() wraps.
      const errno =
        errnoOf(error) ?? (error instanceof CriError ? errnoOf(error.cause) : undefined);
      if (errno !== "ETXTBSY" || attempt === 10) throw error;
      await sleep(100);
    }
  }
}

function environmentOf({ command, binDirs, pod }: PluginCall): Record<string, string> {
  return {
    ...(process.env as Record<string, string>),
    CNI_COMMAND: command,
    CNI_PATH: binDirs.join(":"),
    ...(pod && {
      CNI_CONTAINERID: pod.containerId,
      CNI_NETNS: pod.netnsPath,
      CNI_IFNAME: pod.ifName,
      CNI_ARGS: pod.args.map(([key, value]) => `${key}=${value}`).join(";"),
    }),
  };
}

const messageBytesMax = 2_000;

/** CNI specification: "try again later", and the two "not available" codes of STATUS. */
const retryCodes = [11, 50, 51];

/** Reads the error object that a plugin prints on stdout; without one, uses its stderr or stdout. */
export function pluginError(result: { exitCode: number; stdout: string; stderr: string }): {
  code: ErrorCode;
  message: string;
  cniCode?: number;
} {
  try {
    const error = jsonValue(result.stdout) as { code?: unknown; msg?: unknown; details?: unknown };
    if (typeof error.msg === "string" && error.msg !== "") {
      const cniCode = typeof error.code === "number" ? error.code : undefined;
      const isTemporary = cniCode !== undefined && retryCodes.includes(cniCode);
      const details =
        typeof error.details === "string" && error.details ? `: ${error.details}` : "";
      const number = cniCode === undefined ? "" : ` [CNI error ${cniCode}]`;
      return {
        code: isTemporary ? "UNAVAILABLE" : "INTERNAL",
        message: `${shorten(printable(`${error.msg}${details}`), messageBytesMax)}${number}`,
        cniCode,
      };
    }
  } catch {
    // no error object
  }
  const output = clip(printable(result.stderr.trim() || result.stdout.trim()), messageBytesMax);
  const message = `exit code ${result.exitCode}${output === "" ? "" : `: ${output}`}`;
  return { code: "INTERNAL", message };
}
