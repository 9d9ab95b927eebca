// Launches pre-installed plugins: executables "NN-name" of one folder. They get a socket on descriptor 3, are
// restarted with backoff when they exit, and end with the daemon.
import type { ChildProcess } from "node:child_process";
import { accessSync, constants, existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { errnoOf, messageOf } from "../base/errors.ts";
import { type Log, logFailure } from "../base/log.ts";
import { readSettingsIfExists } from "../base/settings_file.ts";
import { spawn } from "../sys/children.ts";
import { failureOutput, run } from "../sys/run.ts";
import { endWithin } from "../sys/supervise.ts";
import { checkIdentity, type Plugin } from "./plugin.ts";

const backoffMsMin = 1_000;
const backoffMsMax = 60_000;
/** A plugin that ran for longer resets its backoff. */
const steadyMs = 60_000;
/** Deadline of Shutdown, and time between SIGTERM and SIGKILL. */
const endMs = 1_000;
/** Limit for a program that does nothing. */
const probeMs = 10_000;

export type PluginFile = { path: string; index: string; name: string };

/** Returns a folder's plugins sorted by name; logs and skips other entries. */
export function discoverPlugins(folder: string, log: Log): PluginFile[] {
  const found: PluginFile[] = [];
  for (const entry of existsSync(folder) ? readdirSync(folder).sort() : []) {
    const path = join(folder, entry);
    try {
      const [index = "", ...rest] = entry.split("-");
      const name = rest.join("-");
      checkIdentity(index, name);
      if (!statSync(path).isFile()) throw new Error("not a file");
      accessSync(path, constants.X_OK);
      found.push({ path, index, name });
    } catch (error) {
      const reason = errnoOf(error) === "EACCES" ? "not executable" : messageOf(error);
      log.warn("skipped: not an executable NRI plugin NN-name", { file: path, reason });
    }
  }
  return found;
}

/** Reads `NN-name.conf`, else `name.conf`; "" if neither exists. */
export function pluginConfig(folder: string, id: string, name: string): string {
  for (const file of [`${id}.conf`, `${name}.conf`]) {
    const text = readSettingsIfExists(join(folder, file));
    if (text !== undefined) return text;
  }
  return "";
}

type LaunchOptions = {
  files: PluginFile[];
  log: Log;
  /** Wraps a new connection. */
  connect: (socket: Duplex, file: PluginFile) => Plugin;
  /** Resolves when the plugin is in service. */
  admit: (plugin: Plugin) => Promise<void>;
};

export class Launcher implements AsyncDisposable {
  readonly #options: LaunchOptions;
  readonly #ending = new AbortController();
  #supervised: Promise<void>[] = [];
  /** Of each plugin's command line. */
  #prefix: string[] = [];

  constructor(options: LaunchOptions) {
    this.#options = options;
  }

  /** Starts all plugins; resolves when each is in service or has failed once. */
  async start(): Promise<void> {
    const { files, log } = this.#options;
    if (files.length > 0) this.#prefix = await pdeathsig(log);
    const first = files.map((file) => {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#supervised.push(this.#supervise(file, resolve));
      return promise;
    });
    await Promise.all(first);
  }

  async #supervise(file: PluginFile, onFirst: () => void): Promise<void> {
    const { signal } = this.#ending;
    let delayMs = backoffMsMin;
    while (!signal.aborted) {
      const start = performance.now();
      const reason = await this.#run(file, onFirst);
      onFirst();
      if (signal.aborted) return;
      if (performance.now() - start > steadyMs) delayMs = backoffMsMin;
      const fields = { plugin: `${file.index}-${file.name}`, reason, delayMs };
      this.#options.log.warn("NRI plugin ended, restarting after a delay", fields);
      await sleep(delayMs, undefined, { signal }).catch(() => {});
      delayMs = Math.min(2 * delayMs, backoffMsMax);
    }
  }

  /** Runs a plugin until it ends; returns the reason of the end. */
  async #run(file: PluginFile, onAdmitted: () => void): Promise<string> {
    const { connect, admit, log } = this.#options;
    let child: ChildProcess;
    try {
      child = startPlugin(file, this.#prefix);
    } catch (error) {
      return `cannot start: ${messageOf(error)}`;
    }
    const ended = Promise.withResolvers<string>();
    child.once("error", (error) => ended.resolve(`cannot start: ${messageOf(error)}`));
    child.once("exit", (code, signal) => ended.resolve(`exited (${signal ?? code})`));
    const socket = child.stdio[3] as Duplex | undefined;
    if (socket === undefined || child.pid === undefined) return await ended.promise;
    const plugin = connect(socket, file);
    const onEnd = () => {
      this.#shutDown(plugin, child).catch(logFailure(log, "cannot shut down an NRI plugin"));
    };
    this.#ending.signal.addEventListener("abort", onEnd, { once: true });
    // The process's exit closes the connection, and the connection's end stops the process.
    Promise.all([
      ended.promise.then((reason) => plugin.close(reason)),
      plugin.whenClosed.then(() => endProcess(child)),
    ]).catch(logFailure(log, "cannot stop an NRI plugin"));
    try {
      await admit(plugin);
      onAdmitted();
    } catch (error) {
      const fields = { plugin: plugin.id, file: file.path, error: messageOf(error) };
      log.warn("closing NRI plugin that was not admitted", fields);
      plugin.close(messageOf(error));
    }
    const reason = await ended.promise;
    this.#ending.signal.removeEventListener("abort", onEnd);
    return plugin.closed ?? reason;
  }

  async #shutDown(plugin: Plugin, child: ChildProcess): Promise<void> {
    // Best effort: the process is stopped anyway.
    await plugin.call("Shutdown", new Uint8Array(), endMs).catch(() => {});
    plugin.close("the daemon has ended it");
    await endProcess(child);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#ending.abort();
    await Promise.all(this.#supervised);
  }
}

/**
 * Returns the words before a plugin's path that make the kernel kill the plugin when the daemon is killed with SIGKILL;
 * none without setpriv(1), or with one that lacks the option (BusyBox's, that of util-linux before 2.33): the plugin
 * then only sees its connection close.
 */
async function pdeathsig(log: Log): Promise<string[]> {
  const prefix = ["setpriv", "--pdeathsig", "KILL", "--"];
  let problem: string;
  try {
    const result = await run([...prefix, "true"], { signal: AbortSignal.timeout(probeMs) });
    if (result.exitCode === 0) return prefix;
    problem = failureOutput(result);
  } catch (error) {
    problem = messageOf(error);
  }
  log.info("NRI plugins outlive a daemon that is killed: no setpriv --pdeathsig", { problem });
  return [];
}

function startPlugin({ path, index, name }: PluginFile, prefix: string[]): ChildProcess {
  const argv = [...prefix, path];
  return spawn(argv[0]!, argv.slice(1), {
    stdio: ["ignore", "inherit", "inherit", "pipe"],
    env: {
      PATH: process.env["PATH"],
      NRI_PLUGIN_NAME: name,
      NRI_PLUGIN_IDX: index,
      NRI_PLUGIN_SOCKET: "3",
    },
    detached: true, // keeps a terminal's ^C from the plugin: the daemon shuts it down
  });
}

/** Sends SIGTERM, then SIGKILL; resolves when the process has exited. */
async function endProcess(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  child.once("exit", () => resolve());
  child.kill("SIGTERM");
  await endWithin(promise, endMs, () => child.kill("SIGKILL"));
}
