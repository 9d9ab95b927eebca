// Pre-installed plugins: executables "NN-name" of one folder, started with a socket on descriptor 3,
// started again when they end, and ended with the daemon.
import type { ChildProcess } from "node:child_process";
import { accessSync, constants, existsSync, readdirSync, statSync } from "node:fs";
import { delimiter, join } from "node:path";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { errnoOf, messageOf } from "../base/errors.ts";
import { type Log, logFailure } from "../base/log.ts";
import { spawn } from "../sys/children.ts";
import { readTextIfExists } from "../sys/file.ts";
import { endWithin } from "../sys/supervise.ts";
import { checkIdentity, type Plugin } from "./plugin.ts";

const againMsMin = 1_000;
const againMsMax = 60_000;
/** One that has run for so long is started again without delay. */
const steadyMs = 60_000;
/** After Shutdown, and again after SIGTERM. */
const endMs = 1_000;
const configBytesMax = 1 << 20;

export type PluginFile = { path: string; index: string; name: string };

/** The plugins of a folder, in the order of their names; what is none is told of and left out. */
export function discoverPlugins(folder: string, log: Log): PluginFile[] {
  const found: PluginFile[] = [];
  for (const entry of existsSync(folder) ? readdirSync(folder).sort() : []) {
    const path = join(folder, entry);
    try {
      const [index = "", ...rest] = entry.split("-");
      const name = rest.join("-");
      checkIdentity(index, name);
      if (!statSync(path).isFile()) throw new Error("it is not a file");
      accessSync(path, constants.X_OK);
      found.push({ path, index, name });
    } catch (error) {
      const why = errnoOf(error) === "EACCES" ? "it is not executable" : messageOf(error);
      log.warn("not started: a plugin is an executable file NN-name", { file: path, why });
    }
  }
  return found;
}

/** `NN-name.conf`, else `name.conf`; "" without either. */
export async function pluginConfig(folder: string, id: string, name: string): Promise<string> {
  for (const file of [`${id}.conf`, `${name}.conf`]) {
    const text = await readTextIfExists(join(folder, file));
    if (text === undefined) continue;
    if (text.length > configBytesMax) {
      throw new Error(`${join(folder, file)} is over ${configBytesMax} bytes`);
    }
    return text;
  }
  return "";
}

export type LaunchOptions = {
  files: PluginFile[];
  log: Log;
  /** Makes a plugin of a new connection. */
  connect: (socket: Duplex, file: PluginFile) => Plugin;
  /** Until the plugin is in service. */
  admit: (plugin: Plugin) => Promise<void>;
};

export class Launcher implements AsyncDisposable {
  readonly #options: LaunchOptions;
  readonly #ending = new AbortController();
  #lives: Promise<void>[] = [];

  constructor(options: LaunchOptions) {
    this.#options = options;
  }

  /** Starts all; returns when each is in service, or has failed for the first time. */
  async start(): Promise<void> {
    const first = this.#options.files.map((file) => {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#lives.push(this.#keep(file, resolve));
      return promise;
    });
    await Promise.all(first);
  }

  async #keep(file: PluginFile, begun: () => void): Promise<void> {
    const { signal } = this.#ending;
    let delayMs = againMsMin;
    while (!signal.aborted) {
      const start = performance.now();
      const why = await this.#live(file, begun);
      begun();
      if (signal.aborted) return;
      if (performance.now() - start > steadyMs) delayMs = againMsMin;
      const fields = { plugin: `${file.index}-${file.name}`, why, againMs: delayMs };
      this.#options.log.warn("a plugin has ended; it is started again", fields);
      await sleep(delayMs, undefined, { signal }).catch(() => {});
      delayMs = Math.min(2 * delayMs, againMsMax);
    }
  }

  /** One life of a plugin; returns why it has ended. */
  async #live(file: PluginFile, begun: () => void): Promise<string> {
    const { connect, admit, log } = this.#options;
    let child: ChildProcess;
    try {
      child = startPlugin(file);
    } catch (error) {
      return `it cannot be started: ${messageOf(error)}`;
    }
    const ended = Promise.withResolvers<string>();
    child.once("error", (error) => ended.resolve(`it cannot be started: ${messageOf(error)}`));
    child.once("exit", (code, signal) => ended.resolve(`it has ended (${signal ?? code})`));
    const socket = child.stdio[3] as Duplex | undefined;
    if (socket === undefined || child.pid === undefined) return await ended.promise;
    const plugin = connect(socket, file);
    const onEnd = () => {
      this.#shutDown(plugin, child).catch(logFailure(log, "a plugin was not ended"));
    };
    this.#ending.signal.addEventListener("abort", onEnd, { once: true });
    // Its end closes its connection, and the end of its connection is the end of it.
    Promise.all([
      ended.promise.then((why) => plugin.close(why)),
      plugin.whenClosed.then(() => endProcess(child)),
    ]).catch(logFailure(log, "a plugin was not ended"));
    try {
      await admit(plugin);
      begun();
    } catch (error) {
      const fields = { plugin: plugin.id, file: file.path, error: messageOf(error) };
      log.warn("a plugin was not admitted", fields);
      plugin.close(messageOf(error));
    }
    const why = await ended.promise;
    this.#ending.signal.removeEventListener("abort", onEnd);
    return plugin.closed ?? why;
  }

  async #shutDown(plugin: Plugin, child: ChildProcess): Promise<void> {
    await plugin.shutdown(endMs).catch(() => {}); // it is ended all the same
    plugin.close("the daemon ends");
    await endProcess(child);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#ending.abort();
    await Promise.all(this.#lives);
  }
}

/**
 * With setpriv(1) it ends with the daemon even when that is killed with SIGKILL; without, it is told by
 * its connection alone.
 */
function startPlugin({ path, index, name }: PluginFile): ChildProcess {
  const setpriv = programPath("setpriv");
  const argv = setpriv === undefined ? [path] : [setpriv, "--pdeathsig", "KILL", "--", path];
  return spawn(argv[0]!, argv.slice(1), {
    stdio: ["ignore", "inherit", "inherit", "pipe"],
    env: {
      PATH: process.env["PATH"],
      NRI_PLUGIN_NAME: name,
      NRI_PLUGIN_IDX: index,
      NRI_PLUGIN_SOCKET: "3",
    },
    detached: true, // a terminal's ^C is the daemon's to deal with
  });
}

function programPath(name: string): string | undefined {
  const folders = (process.env["PATH"] ?? "").split(delimiter).filter(Boolean);
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}

/** SIGTERM, then SIGKILL; one that has ended is left alone. */
async function endProcess(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const { promise, resolve } = Promise.withResolvers<void>();
  child.once("exit", () => resolve());
  child.kill("SIGTERM");
  await endWithin(promise, endMs, () => child.kill("SIGKILL"));
}
