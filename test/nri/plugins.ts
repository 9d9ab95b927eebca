// Builds test plugins with the stock Go stubs; the daemon launches them, or tests start them themselves.
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import {
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until } from "../expect.ts";
import { wholeLines } from "../whole_lines.ts";

export type StubVersion = "v061" | "v0125";

/** Behaviour of a test plugin (plugin/main.go, behaviour). */
export type Behaviour = {
  events?: string[];
  mask?: number;
  hang?: string[];
  fail?: string[];
  exit?: string[];
  sleepMs?: Record<string, number>;
  /** Answers these events once the file exists. */
  until?: Record<string, string>;
  only?: string;
  adjust?: object;
  update?: object[];
  own?: object[];
  reject?: string;
  /** Subscribes to no events after Synchronize. */
  quiet?: boolean;
  stay?: boolean;
  policy?: { failRequest?: boolean; keepConnected?: boolean };
};

export type Line = {
  event: string;
  pid: number;
  pod?: {
    id: string;
    name: string;
    uid: string;
    namespace: string;
    ips?: string[];
    linux?: object;
  };
  container?: { id: string; name: string; state?: string; env?: string[]; pid?: number } & Record<
    string,
    unknown
  >;
  [more: string]: unknown;
};

/** Tests are skipped without Go, which builds the plugins. */
export const hasGo = spawnSync("go", ["version"]).status === 0;
if (!hasGo) console.error("skipped, there is no Go: what needs NRI plugins");

const here = import.meta.dirname;
const cache = join(here, "../.cache");

/** Returns the path of the program; rebuilds it if a source is newer. */
export function buildPlugin(version: StubVersion): string {
  const program = join(cache, `nri-plugin-${version}`);
  const sources = [join(here, "plugin"), join(here, version)].flatMap((folder) =>
    readdirSync(folder).map((name) => join(folder, name)),
  );
  const newest = Math.max(...sources.map((file) => statSync(file).mtimeMs));
  if (existsSync(program) && statSync(program).mtimeMs > newest) return program;
  const folder = join(cache, `nri-${version}`);
  mkdirSync(folder, { recursive: true });
  for (const file of sources) copyFileSync(file, join(folder, file.split("/").at(-1)!));
  const run = spawnSync("go", ["build", "-p", "1", "-trimpath", "-o", program, "."], {
    cwd: folder,
    env: { ...process.env, CGO_ENABLED: "0" },
    encoding: "utf8",
  });
  if (run.status !== 0) throw new Error(`go build of the ${version} plugin: ${run.stderr}`);
  return program;
}

/** Manages a folder with plugins, their configuration, their logs, and the NRI socket. */
export class Plugins implements Disposable {
  readonly dir = mkdtempSync(join(tmpdir(), "isulad-nri-"));
  readonly #children: ChildProcess[] = [];
  #serial = 0;

  constructor() {
    for (const folder of ["plugins", "conf.d"]) mkdirSync(join(this.dir, folder));
  }

  /** Returns the keys for daemon.json. */
  config(more: object = {}): Record<string, unknown> {
    return {
      "nri-support": true,
      "disable-connections": false,
      "nri-socket-path": this.socket,
      "plugin-path": join(this.dir, "plugins"),
      "plugin-config-path": join(this.dir, "conf.d"),
      ...more,
    };
  }

  get socket(): string {
    return join(this.dir, "run/nri.sock");
  }

  logOf(id: string): string {
    return join(this.dir, `${id}.log`);
  }

  /** Installs a plugin for the daemon to launch: "10-name". */
  install(id: string, version: StubVersion, behaviour: Behaviour = {}, file = `${id}.conf`): void {
    linkSync(buildPlugin(version), join(this.dir, "plugins", id));
    this.configure(file, id, behaviour);
  }

  configure(file: string, id: string, behaviour: Behaviour): void {
    const text = JSON.stringify({ log: this.logOf(id), ...behaviour });
    writeFileSync(join(this.dir, "conf.d", file), text);
  }

  /** Starts an external plugin; returns when it is synchronized, unless `ready` is false. */
  async start(
    id: string,
    version: StubVersion,
    behaviour: Behaviour = {},
    options: { ready?: boolean } = {},
  ): Promise<ChildProcess> {
    const [index, name] = [id.slice(0, 2), id.slice(3)];
    const before = this.lines(id).length;
    const child = spawn(
      buildPlugin(version),
      ["-name", name, "-idx", index, "-socket-path", this.socket],
      {
        env: { PROBE: JSON.stringify({ log: this.logOf(id), ...behaviour }) },
        stdio: ["ignore", "ignore", "ignore"],
      },
    );
    this.#children.push(child);
    if (options.ready ?? true) {
      await until(`${id} is synchronized`, () =>
        this.lines(id)
          .slice(before)
          .some(({ event }) => event === "Synchronize"),
      );
    }
    return child;
  }

  async end(child: ChildProcess): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await gone;
  }

  /** Runs `use` with plugins that adjust only the container of the given name. */
  async adjusting<T>(
    behaviours: [index: string, version: StubVersion, behaviour: Behaviour][],
    use: (name: string) => Promise<T>,
    name = `adjusted-${++this.#serial}`,
  ): Promise<T> {
    const children: ChildProcess[] = [];
    try {
      for (const [index, version, behaviour] of behaviours) {
        const only = { only: name, ...behaviour };
        children.push(await this.start(`${index}-${name}`, version, only));
      }
      return await use(name);
    } finally {
      for (const child of children) await this.end(child);
    }
  }

  lines(id: string): Line[] {
    return wholeLines(this.logOf(id)).map((line) => JSON.parse(line) as Line);
  }

  /** Returns the events that the plugin got for one container, in order. */
  heardOf(id: string, container: string): string[] {
    return this.lines(id)
      .filter((line) => line.container?.name === container)
      .map(({ event }) => event);
  }

  [Symbol.dispose](): void {
    for (const child of this.#children) child.kill("SIGKILL");
    rmSync(this.dir, { recursive: true, force: true });
  }
}
