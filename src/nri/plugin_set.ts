// Keeps the set of connected plugins: admits, launches and closes them, and handles their failures.
import { chmodSync, mkdirSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { dirname } from "node:path";
import type { Duplex } from "node:stream";
import type { Config } from "../base/config.ts";
import { Gate } from "../base/gate.ts";
import { Semaphore } from "../base/semaphore.ts";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { ContainerUpdate } from "../proto/nri_types.ts";
import { replaceStale } from "../sys/stale_socket.ts";
import { NoAnswer } from "../sys/ttrpc_calls.ts";
import type { UpdateApplier, NriBackend } from "./apply_updates.ts";
import { nriContainer, nriPod } from "./convert.ts";
import { discoverPlugins, Launcher, pluginConfig, type PluginFile } from "./launcher.ts";
import { Plugin, type EventMessage, type EventName } from "./plugin.ts";
import { synchronizeMessages } from "./synchronize.ts";

/** Most connected plugins; further external ones are rejected. */
const connectionsMax = 100;

type PluginSetOptions = {
  config: Config["nri"];
  log: Log;
  backend: NriBackend;
  updates: UpdateApplier;
};

export class PluginSet implements AsyncDisposable {
  /** Changes enter from event to record; closed while a plugin is synchronized, so that it misses none. */
  readonly gate = new Gate("the NRI plugins' synchronization");
  /** One event at a time. */
  readonly turns = new Semaphore(1, "the NRI plugins' events");
  readonly #options: PluginSetOptions;
  /** All connected plugins; those in service are also in #plugins. */
  readonly #connected = new Set<Plugin>();
  #plugins: readonly Plugin[] = [];
  /** Plugins being synchronized; they receive later events when their turn comes. */
  #synchronizing = 0;
  #launcher: Launcher;
  /** The folder whose plugins the launcher runs. */
  #folder: string;
  #isEnding = false;
  #server: Server | undefined;

  constructor(options: PluginSetOptions) {
    this.#options = options;
    this.#launcher = this.#newLauncher();
    this.#folder = options.config.pluginPath;
  }

  #newLauncher(): Launcher {
    const { config, log } = this.#options;
    return new Launcher({
      files: discoverPlugins(config.pluginPath, log),
      log,
      connect: (socket, file) => this.#connect(socket, file),
      admit: (plugin) => this.#admit(plugin),
    });
  }

  /** Plugins in service, in the order of their indexes; replaced, never modified. */
  get plugins(): readonly Plugin[] {
    return this.#plugins;
  }

  /** Whether no plugin would receive an event now. */
  get isEmpty(): boolean {
    return this.#plugins.length === 0 && this.#synchronizing === 0;
  }

  /** Starts the pre-installed plugins and opens the socket for others. */
  async start(): Promise<void> {
    const { disableConnections, socketPath } = this.#options.config;
    await this.#launcher.start();
    if (!disableConnections) await this.#listen(socketPath);
  }

  /**
   * Ends the pre-installed plugins and starts those of the configured folder, if it is another one.
   * @throws Error for a folder that cannot be read; the plugins then run on, and the next call tries again.
   */
  async relaunch(): Promise<void> {
    const { pluginPath } = this.#options.config;
    if (pluginPath === this.#folder) return;
    const next = this.#newLauncher();
    await this.#launcher[Symbol.asyncDispose]();
    this.#launcher = next;
    this.#folder = pluginPath;
    await next.start();
  }

  /** Only disconnects external plugins: they may connect to the next daemon. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isEnding = true;
    this.#server?.close();
    if (this.#server !== undefined) rmSync(this.#options.config.socketPath, { force: true });
    await this.#launcher[Symbol.asyncDispose]();
    for (const plugin of this.#connected) plugin.close("the daemon ends");
  }

  async #listen(path: string): Promise<void> {
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
    await replaceStale(path, "nri-socket-path");
    const server = createServer((socket) => this.#accept(socket));
    server.on("error", (error) => {
      this.#options.log.error("the NRI socket failed", { path, error: messageOf(error) });
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(path, resolve);
    });
    chmodSync(path, 0o600);
    this.#server = server;
  }

  #accept(socket: Duplex): void {
    if (this.#connected.size >= connectionsMax) {
      const reason = `${connectionsMax} are connected`;
      this.#options.log.warn("NRI plugin connection rejected", { reason });
      socket.destroy();
      return;
    }
    const plugin = this.#connect(socket);
    this.#admit(plugin).catch((error: unknown) => {
      const fields = { plugin: plugin.id, error: messageOf(error) };
      this.#options.log.warn("closing NRI plugin that was not admitted", fields);
      plugin.close(messageOf(error));
    });
  }

  #connect(socket: Duplex, file?: PluginFile): Plugin {
    const plugin = new Plugin(socket, {
      ...(file === undefined ? {} : { file }),
      timeouts: this.#options.config,
      onUpdate: ({ id }, request) => this.#options.updates.applyUnsolicited(id, request),
      onClose: (plugin, reason) => this.#closed(plugin, reason),
    });
    this.#connected.add(plugin);
    return plugin;
  }

  #closed(plugin: Plugin, reason: string): void {
    this.#connected.delete(plugin);
    if (!plugin.inService) return;
    plugin.inService = false;
    this.#plugins = this.#plugins.filter((other) => other !== plugin);
    this.#options.log.warn("NRI plugin out of service", { plugin: plugin.id, reason });
  }

  /**
   * Registers, configures and synchronizes a plugin. Several may register at once, but changes of pods and
   * containers are held off during synchronization, so that the plugin misses none.
   * @throws CriError with the reason why it is not in service.
   */
  async #admit(plugin: Plugin): Promise<void> {
    const { config, log, backend } = this.#options;
    await plugin.begin(
      plugin.kind === "launched"
        ? pluginConfig(config.pluginConfigPath, plugin.id, plugin.name)
        : "",
    );
    let updates: ContainerUpdate[];
    {
      using alone = new DisposableStack();
      alone.use(await this.gate.close());
      this.#synchronizing++;
      alone.defer(() => this.#synchronizing--);
      alone.use(await this.turns.acquire());
      const { pods, containers } = await backend.state();
      const messages = synchronizeMessages(pods.map(nriPod), containers.map(nriContainer));
      ({ update: updates } = await plugin.synchronize(messages));
      if (plugin.closed !== undefined) throw new CriError("UNAVAILABLE", plugin.closed);
      plugin.inService = true;
      this.#plugins = [...this.#plugins, plugin].sort((a, b) => (a.id < b.id ? -1 : 1));
      const counts = { pods: pods.length, containers: containers.length };
      const events = plugin.eventNames().join(" ");
      log.info("plugin in service", { plugin: plugin.id, kind: plugin.kind, ...counts, events });
    }
    const { updates: applier } = this.#options;
    await applier.applyUnsolicited(plugin.id, { update: updates }).catch((error: unknown) => {
      log.warn("NRI plugin's updates rejected", { plugin: plugin.id, error: messageOf(error) });
    });
  }

  /** Delivers an event if the plugin subscribes to it. @throws CriError if the request must fail. */
  async deliver(
    plugin: Plugin,
    message: EventMessage,
    onAnswer: (answer: Uint8Array) => void = () => {},
  ): Promise<void> {
    if (plugin.closed !== undefined || !plugin.wants(message.name)) return;
    try {
      const answer = await plugin.event(message);
      if (answer !== undefined) onAnswer(answer);
    } catch (error) {
      this.#failed(plugin, message.name, error);
    }
  }

  /**
   * Throws a plugin's own error, or that of an answer with an invalid value, either of which fails the request. A
   * missing or undecodable answer fails it only if the plugin is required, its policy has fail_request, or the daemon
   * ends; it also closes the plugin, except a timeout under keep_connected.
   */
  #failed(plugin: Plugin, event: EventName, error: unknown): void {
    const what = `NRI plugin ${plugin.id} failed ${event}: ${messageOf(error)}`;
    if (!(error instanceof NoAnswer)) {
      plugin.failed(messageOf(error));
      const code = codeOf(error) === "FAILED_PRECONDITION" ? "FAILED_PRECONDITION" : "ABORTED";
      throw new CriError(code, what, { cause: error });
    }
    const isLate = error.code === "DEADLINE_EXCEEDED";
    if (!isLate || !plugin.policy.keep_connected) plugin.close(messageOf(error));
    // A plugin that this daemon ends has not agreed to what it was asked.
    if (this.#isEnding || plugin.policy.fail_request || this.#isRequired(plugin)) {
      throw new CriError("UNAVAILABLE", what, { cause: error });
    }
    this.#options.log.warn(`${what}; the request continues without it`);
  }

  #isRequired({ id, name }: Plugin): boolean {
    return this.#options.config.requiredPlugins.some((known) => known === id || known === name);
  }

  /** @throws CriError UNAVAILABLE if a required plugin is not in service. */
  checkRequired(what: string): void {
    const missing = this.#options.config.requiredPlugins.filter(
      (known) => !this.#plugins.some(({ id, name }) => known === id || known === name),
    );
    if (missing.length === 0) return;
    throw new CriError(
      "UNAVAILABLE",
      `${what} needs NRI plugin ${missing.join(", ")} (nri-required-plugins), which is not in service: start it`,
    );
  }
}
