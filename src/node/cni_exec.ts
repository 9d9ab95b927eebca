// Runs one CNI plugin: environment, input, deadline, and its error told in our words.
import { accessSync, constants } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { CriError, codeOf, errnoOf, messageOf, type ErrorCode } from "../base/errors.ts";
import { jsonText, jsonValue } from "../base/json.ts";
import { clip, printable, shorten } from "../base/text.ts";
import { type RunResult, run } from "../sys/run.ts";

export type PluginCall = {
  command: "ADD" | "DEL" | "STATUS" | "GC";
  plugin: string;
  binDirs: string[];
  /** The pod, for ADD and DEL. */
  pod?: {
    containerId: string;
    /** "" where the namespace is gone. */
    netnsPath: string;
    ifName: string;
    args: [string, string][];
  };
  input: Record<string, unknown>;
};

/** A plugin's own error code (CNI specification, Error), as the cause of what execPlugin() throws. */
export type CniErrorCause = { cniCode: number | undefined };

/** The plugin's executable in the first folder that has it. */
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
 * Runs the plugin to its end and gives what it printed.
 * @throws CriError with plugin, command, pid and time: FAILED_PRECONDITION when there is no such
 * plugin, DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE when it asks for another try, else INTERNAL.
 */
export async function execPlugin(
  call: PluginCall,
  signal: AbortSignal,
): Promise<{ stdout: string; stderr: string }> {
  const of = call.pod === undefined ? "" : ` of sandbox ${call.pod.containerId}`;
  const what = `CNI plugin ${call.plugin}: ${call.command}${of}`;
  const path = findPlugin(call.plugin, call.binDirs);
  if (path === undefined) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `${what}: not found in ${call.binDirs.join(", ")}; install it or set cni-bin-dir`,
    );
  }
  const start = performance.now();
  let result: RunResult;
  try {
    result = await runRetrying(path, call, signal);
  } catch (error) {
    // A script without its interpreter: not what NOT_FOUND means to a caller of ours.
    const code = codeOf(error) === "NOT_FOUND" ? "FAILED_PRECONDITION" : codeOf(error);
    throw new CriError(code, `${what}: ${messageOf(error)}`, { cause: error });
  }
  if (result.exitCode === 0) return result;
  const after = `(pid ${result.pid}, ${Math.round(performance.now() - start)} ms)`;
  const { code, message, cniCode } = pluginError(result);
  const cause: CniErrorCause = { cniCode };
  throw new CriError(code, `${what} failed: ${message} ${after}`, { cause });
}

/** An installer may still hold the executable open for writing: ETXTBSY passes. */
async function runRetrying(
  path: string,
  call: PluginCall,
  signal: AbortSignal,
): Promise<RunResult> {
  const options = {
    input: jsonText(call.input),
    env: environmentOf(call),
    signal,
  };
  for (let attempt = 1; ; attempt++) {
    try {
      return await run([path], options);
    } catch (error) {
      // Bun throws it from spawn itself, Node and Deno give it to run() as an event.
      const errno =
        errnoOf(error) ?? (error instanceof CriError ? errnoOf(error.cause) : undefined);
      if (errno !== "ETXTBSY" || attempt === 10) throw error;
      await sleep(100);
    }
  }
}

function environmentOf(call: PluginCall): Record<string, string> {
  return {
    ...(process.env as Record<string, string>),
    CNI_COMMAND: call.command,
    CNI_PATH: call.binDirs.join(":"),
    ...(call.pod === undefined ? {} : podEnvironment(call.pod)),
  };
}

function podEnvironment(pod: NonNullable<PluginCall["pod"]>): Record<string, string> {
  return {
    CNI_CONTAINERID: pod.containerId,
    CNI_NETNS: pod.netnsPath,
    CNI_IFNAME: pod.ifName,
    CNI_ARGS: pod.args.map(([key, value]) => `${key}=${value}`).join(";"),
  };
}

/** How much of a plugin's own words a message has. */
const wordsBytesMax = 2_000;

/** Error codes of the CNI specification that say: later it may work. */
const tryAgainCodes = [11, 50, 51];

/** Reads the error object that a plugin prints on stdout, or whatever else it said. */
function pluginError(result: { exitCode: number; stdout: string; stderr: string }): {
  code: ErrorCode;
  message: string;
  cniCode?: number;
} {
  try {
    const error = jsonValue(result.stdout) as { code?: unknown; msg?: unknown; details?: unknown };
    if (typeof error.msg === "string" && error.msg !== "") {
      const cniCode = typeof error.code === "number" ? error.code : undefined;
      const again = cniCode !== undefined && tryAgainCodes.includes(cniCode);
      const details =
        typeof error.details === "string" && error.details ? `: ${error.details}` : "";
      const number = cniCode === undefined ? "" : ` [CNI error ${cniCode}]`;
      return {
        code: again ? "UNAVAILABLE" : "INTERNAL",
        message: `${shorten(printable(`${error.msg}${details}`), wordsBytesMax)}${number}`,
        cniCode,
      };
    }
  } catch {
    // no error object: its output is all there is
  }
  const said = clip(printable(result.stderr.trim() || result.stdout.trim()), wordsBytesMax);
  const message = `exit code ${result.exitCode}${said === "" ? "" : `: ${said}`}`;
  return { code: "INTERNAL", message };
}
