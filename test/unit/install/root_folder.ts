// Provides tests with a root folder to install into.
import { afterEach, beforeEach } from "bun:test";
import {
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { Target } from "../../../src/install/target.ts";

export const programPath = "/usr/local/bin/isulad-ts";
export const configPath = "/etc/isulad/daemon.json";
export const listPath = "/etc/cni/net.d/10-isulad.conflist";
export const unitPath = "/etc/systemd/system/isulad-ts.service";

export let scratch = "";
export let root = "";
/** What was reported. */
export const said: string[] = [];

/** Makes a folder with the programs that pods need for each test of the file. */
export function useRootFolder(): void {
  beforeEach(make);
  afterEach(() => rmSync(scratch, { recursive: true }));
}

function make(): void {
  scratch = mkdtempSync(join(tmpdir(), "isulad-install-"));
  root = join(scratch, "root");
  said.length = 0;
  for (const name of ["runc", "iptables", "ip", "unshare"]) write(`/usr/sbin/${name}`, "", 0o755);
  for (const name of ["bridge", "host-local", "loopback", "portmap"]) {
    write(`/opt/cni/bin/${name}`, "", 0o755);
  }
  write("/usr/lib/systemd/systemd", "");
  writeFileSync(join(scratch, "isulad-ts"), "program 1");
}

export function write(path: string, text: string, mode = 0o644): void {
  mkdirSync(dirname(join(root, path)), { recursive: true });
  writeFileSync(join(root, path), text, { mode });
}

export function read(path: string): string {
  return readFileSync(join(root, path), "utf8");
}

export function target({ isDryRun = false } = {}): Target {
  const command = (argv: string[]) => Promise.reject(new Error(`unexpected: ${argv.join(" ")}`));
  return { root, isDryRun, report: (line) => said.push(line), command };
}

export const options = () => ({
  executable: join(scratch, "isulad-ts"),
  bundle: join(scratch, "bundle"),
  isOffline: false,
  isPackaged: false,
});
export const removal = () => ({
  executable: options().executable,
  isForced: false,
  abandonsPods: false,
  keepsConfig: false,
  isPackaged: false,
});

export function failureOf(action: Promise<void>): Promise<unknown> {
  return action.then(
    () => "it succeeded",
    (error: unknown) => error,
  );
}

/** Path → mode, and content of a file. */
export function tree(): Record<string, string> {
  const names = readdirSync(root, { recursive: true, encoding: "utf8" });
  return Object.fromEntries(
    names.map((name) => {
      const stat = lstatSync(join(root, name));
      return [name, `${stat.mode.toString(8)} ${stat.isFile() ? read(name) : ""}`];
    }),
  );
}
