// Makes a conf dir, a plugin folder and a cache for each test, and a network that uses them.
import { afterEach, beforeEach } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Log } from "../../src/base/log.ts";
import { openCni, type CniNetwork, type CniPod } from "../../src/node/cni.ts";

export const signal = new AbortController().signal;

export let dir = "";
/** The logged lines, without debug ones. */
export let lines: string[] = [];

export function useScratch(): void {
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), "cni-"));
    mkdirSync(join(dir, "net.d"));
    mkdirSync(join(dir, "bin"));
    lines = [];
  });
  afterEach(() => rmSync(dir, { recursive: true, force: true }));
}

const log: Log = {
  error: (message) => void lines.push(`error ${message}`),
  warn: (message) => void lines.push(`warn ${message}`),
  info: (message) => void lines.push(`info ${message}`),
  debug: () => {},
  child: () => log,
};

/** Programs start slowly beside other tests: only a plugin that hangs takes so long. */
export const ampleMs = 60_000;

export function openNetwork(timeoutMs = ampleMs, maxConfNum = 1, graceMs = 500): CniNetwork {
  const [confDir, cacheDir] = [join(dir, "net.d"), join(dir, "cache")];
  const binDirs = [join(dir, "bin")];
  return openCni({
    confDir,
    cacheDir,
    binDirs,
    log,
    timeoutMs,
    maxConfNum,
    graceMs,
    podNetworks: ["*"],
  });
}

export function writeList(cniVersion: string, list: object[], file = "10-pods.conflist"): void {
  const text = JSON.stringify({ cniVersion, name: "pods", plugins: list });
  writeFileSync(join(dir, "net.d", file), text);
}

export function writePlugin(name: string, script: string): void {
  writeFileSync(join(dir, "bin", name), `#!/bin/sh\n${script}\n`);
  chmodSync(join(dir, "bin", name), 0o755);
}

export function podOf(id: string, netnsPath = ""): CniPod {
  const portMappings: CniPod["portMappings"] = [];
  return { id, netnsPath, name: "web", namespace: "shop", uid: "u", portMappings, annotations: {} };
}

export const failure = (promise: Promise<unknown>) => promise.catch((error: unknown) => error);

export const ok = '{"cniVersion":"$V","ips":[{"address":"10.9.0.7/24"}]}';
/** Installs a plugin that records its calls, input and environment in files, and prints a result. */
export const recordingPlugin = (name: string, result: string, before = "") =>
  writePlugin(
    name,
    `cd ${dir}; echo "$CNI_COMMAND ${name}" >> calls
cat > ${name}.$CNI_COMMAND; env | grep ^CNI_ | sort > ${name}.env
${before}
[ $CNI_COMMAND = DEL ] || cat <<X
${result}
X`,
  );
export const input = (name: string) => JSON.parse(readFileSync(join(dir, name), "utf8")) as object;
export const calls = () => readFileSync(join(dir, "calls"), "utf8").trim().split("\n");
