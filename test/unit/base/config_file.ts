// Makes daemon.json files for tests, and loads them for a host with known programs.
import { afterAll, beforeAll, expect } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { findKey } from "../../../src/base/config_keys.ts";
import type { HostInfo } from "../../../src/base/config_host.ts";
import { CriError } from "../../../src/base/errors.ts";

export let folder: string;

/** Gives a test file its folder. */
export function useConfigFolder(): void {
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), "isulad-config-"));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
}

export const host: HostInfo = {
  groupId: (name) => (name === "known" ? 1000 : undefined),
  exists: () => true,
  isExecutable: (path) => path.startsWith("/usr/"),
  findExecutable: (name) =>
    /^(crun|containerd-shim.*)$/.test(name) ? undefined : `/usr/sbin/${name}`,
  systemdRuns: () => false,
};

export function load(content: unknown, flags: Record<string, string> = {}) {
  const file = join(folder, "daemon.json");
  writeFileSync(file, typeof content === "string" ? content : JSON.stringify(content, null, 2));
  const keys = Object.entries(flags).map(([name, text]) => [findKey(name)!, text] as const);
  return loadConfig(file, new Map(keys), host);
}

/** The messages, with "FILE" for the path. */
export function refusal(content: unknown, flags: Record<string, string> = {}): string[] {
  try {
    load(content, flags);
  } catch (error) {
    expect(error).toBeInstanceOf(CriError);
    expect((error as CriError).code).toBe("INVALID_ARGUMENT");
    return (error as CriError).message.replaceAll(join(folder, "daemon.json"), "FILE").split("\n");
  }
  throw new Error("was accepted");
}
