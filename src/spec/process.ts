// Computes a container process's command line, environment and working directory.
import { posix } from "node:path";
import type { ContainerConfig, KeyValue } from "../proto/types.ts";
import type { ImageProcess } from "./spec_inputs.ts";
import type { OciProcess } from "./oci_types.ts";
import { invalid } from "./refusals.ts";

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/**
 * Returns the command line: command replaces the image's Entrypoint and Cmd; args alone replace only Cmd. An
 * Entrypoint of [""] is none: `docker build` clears an inherited one with it.
 * @throws CriError INVALID_ARGUMENT if the command line is empty.
 */
export function processArgs(config: ContainerConfig, image: ImageProcess): string[] {
  const command = config.command ?? [];
  const args = config.args ?? [];
  const own = image.Entrypoint ?? [];
  const entrypoint = own.length === 1 && own[0] === "" ? [] : own;
  const result =
    command.length > 0
      ? [...command, ...args]
      : [...entrypoint, ...(args.length > 0 ? args : (image.Cmd ?? []))];
  if (result.length === 0 || result[0] === "") {
    throw invalid(
      "no command to run: the container's command and args and the image's Entrypoint and Cmd are all empty",
    );
  }
  for (const arg of result) rejectNul(arg, "command line");
  return result;
}

/** Returns the environment; a later entry replaces an earlier one of the same name, in its position. */
export function processEnv(input: {
  config: ContainerConfig;
  image: ImageProcess;
  hostname: string;
}): string[] {
  const env = new Map<string, string>();
  put(env, defaultPath);
  if (input.config.tty) put(env, "TERM=xterm");
  if (input.hostname !== "") put(env, `HOSTNAME=${input.hostname}`);
  for (const entry of input.image.Env ?? []) put(env, entry);
  for (const entry of input.config.envs ?? []) put(env, criEnv(entry));
  return [...env].map(([name, value]) => `${name}=${value}`);
}

/** @throws CriError INVALID_ARGUMENT for a relative working_dir. */
export function workingDir(config: ContainerConfig, image: ImageProcess): string {
  const { working_dir: requested } = config;
  if (!requested) return cleaned(posix.join("/", image.WorkingDir ?? ""));
  if (posix.isAbsolute(requested)) return cleaned(requested);
  throw invalid(`working_dir "${requested}" is not an absolute path`);
}

/**
 * Returns the process of an exec: the container's user, environment and limits, with another command.
 * @throws CriError INVALID_ARGUMENT for an empty command.
 */
export function execProcess(container: OciProcess, cmd: string[], tty: boolean): OciProcess {
  if (cmd.length === 0 || cmd[0] === "") throw invalid("no command to execute");
  for (const arg of cmd) rejectNul(arg, "command line");
  const env = [...container.env];
  if (tty && !env.some((entry) => entry.startsWith("TERM="))) env.push("TERM=xterm");
  return { ...container, args: [...cmd], env, terminal: tty };
}

function put(env: Map<string, string>, entry: string): void {
  rejectNul(entry, "environment");
  const split = entry.indexOf("=");
  // An image may have a name without "="; runtimes expect "name=".
  const name = split === -1 ? entry : entry.slice(0, split);
  if (name !== "") env.set(name, split === -1 ? "" : entry.slice(split + 1));
}

function criEnv(entry: KeyValue): string {
  const key = entry.key ?? "";
  if (key === "" || key.includes("=")) {
    throw invalid(`"${key}" is not a valid environment variable name`);
  }
  try {
    // CRI sends bytes, but OCI's JSON holds only text: reject rather than alter the value.
    return `${key}=${new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(entry.value ?? new Uint8Array())}`;
  } catch (cause) {
    throw invalid(
      `the value of environment variable ${key} is not UTF-8; an OCI runtime's config.json cannot hold it`,
      cause,
    );
  }
}

function rejectNul(text: string, where: string): void {
  if (text.includes("\0")) throw invalid(`the container's ${where} has a NUL character`);
}

function cleaned(path: string): string {
  rejectNul(path, "working directory");
  const normal = posix.normalize(path);
  return normal.length > 1 && normal.endsWith("/") ? normal.slice(0, -1) : normal;
}
