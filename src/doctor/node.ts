// Describes the node that the checks examine, and what they find.
import { readFileSync, statSync } from "node:fs";
import { statfs } from "node:fs/promises";
import { createConnection } from "node:net";
import { networkInterfaces } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { isInPath, systemFolders } from "../base/config_host.ts";
import { errnoOf, messageOf } from "../base/errors.ts";
import type { Endpoint } from "../registry/endpoint.ts";
import { askRegistry, type RegistryAnswer } from "../registry/ask_registry.ts";
import { run } from "../sys/run.ts";
import { sendSpans } from "../trace/exporter.ts";
import type { TraceSettings } from "../trace/trace_settings.ts";

/** fail: pods cannot run, or not as they should; warn: some pods cannot, or they soon will not. */
export type State = "ok" | "warn" | "fail";

export type Finding = {
  check: string;
  state: State;
  /** Names the object and what is wrong with it, or the value that is right. */
  detail: string;
  /** Commands or steps; absent if nothing is wrong. */
  mend?: string;
};

export type Disk = { bytes: number; bytesFree: number; inodes: number; inodesFree: number };

export type OutputBounds = { bytesMax?: number; timeoutMs?: number };

/** Tests pass a folder as root, and fakes. */
export type Node = {
  /** Prefix of every path; "" for this machine. */
  root: string;
  nowMs: number;
  /** The doctor runs as root, who may read every file. */
  isRoot: boolean;
  /** Returns true for a program in a folder of PATH, or of the service's. */
  isInstalled(name: string): boolean;
  /**
   * Returns the beginning of the standard output: by default 1 MiB, within 15 s.
   * @throws if the program fails, is missing or is late.
   */
  output(argv: string[], bounds?: OutputBounds): Promise<string>;
  disk(path: string): Promise<Disk>;
  /** The IP addresses of the node's interfaces. */
  addresses(): string[];
  /** Connects to an address and closes the connection. @throws the reason. */
  dial(host: string, port: number): Promise<void>;
  /** Asks a registry, at an address that accepts connections, for its clock and its certificate. */
  askRegistry(endpoint: Endpoint): Promise<RegistryAnswer>;
  /** The doctor's own environment. */
  environment: Readonly<Record<string, string | undefined>>;
  /** Sends an empty batch of spans. @throws the reason if the collector does not take it. */
  trace(settings: TraceSettings): Promise<void>;
};

/** Right after an installation, a slow machine reads a runtime's executable from its disk for more than 5 s. */
const programMs = 15_000;
const programBytesMax = 1 << 20;
const dialMs = 3_000;

export function thisNode(): Node {
  return {
    root: "",
    nowMs: Date.now(),
    isRoot: process.getuid?.() === 0,
    // The PATH of an ordinary user has no sbin folder, that of the daemon has.
    isInstalled: (name) => isInPath(name, [process.env["PATH"] ?? "", ...systemFolders].join(":")),
    output,
    disk,
    addresses,
    dial,
    askRegistry: (endpoint) => askRegistry(endpoint, dialMs),
    environment: process.env,
    trace: (settings) => sendSpans(settings, [], dialMs),
  };
}

function addresses(): string[] {
  return Object.values(networkInterfaces()).flatMap((all) =>
    (all ?? []).map(({ address }) => address),
  );
}

async function output(
  argv: string[],
  { bytesMax = programBytesMax, timeoutMs = programMs }: OutputBounds = {},
): Promise<string> {
  const signal = AbortSignal.timeout(timeoutMs);
  const { exitCode, stdout } = await run(argv, { signal, maxOutputBytes: bytesMax });
  if (exitCode !== 0) throw new Error(`${argv.join(" ")} has ended with exit code ${exitCode}`);
  return stdout;
}

async function disk(path: string): Promise<Disk> {
  const { bsize, blocks, bavail, files, ffree } = await statfs(path);
  return { bytes: bsize * blocks, bytesFree: bsize * bavail, inodes: files, inodesFree: ffree };
}

function dial(host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = createConnection({ host, port });
    socket.setTimeout(dialMs, () => socket.destroy(new Error(`no answer within ${dialMs} ms`)));
    socket.once("error", reject);
    socket.once("connect", () => {
      socket.destroy();
      resolve();
    });
  });
}

/** Returns a file's text without white space around it; undefined if there is no such file. */
export function textAt({ root }: Node, path: string): string | undefined {
  try {
    return readFileSync(join(root, path), "utf8").trim();
  } catch (error) {
    if (errnoOf(error) === "ENOENT" || errnoOf(error) === "ENOTDIR") return undefined;
    throw error;
  }
}

export function existsAt({ root }: Node, path: string): boolean {
  return statSync(join(root, path), { throwIfNoEntry: false }) !== undefined;
}

/** Returns a finding for an error of permission, which is no fault of the node if the doctor does not run as root. */
export function forbidden({ isRoot }: Node, check: string, error: unknown): Finding | undefined {
  const isDenied = [error, error instanceof Error ? error.cause : undefined].some((one) =>
    /^(EACCES|EPERM)$/.test(errnoOf(one) ?? ""),
  );
  if (isRoot || !isDenied) return undefined;
  const mend = "run isulad-ts doctor as root: the check could not be made";
  return { check, state: "warn", detail: messageOf(error), mend };
}
