// Runs a command once more in namespaces of its own (network, mounts, processes), whose end is the end of all that it has
// started there.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";

/** Runs this command with `--inside FOLDER`, a scratch folder; `cleanUp` gets that folder before it is removed. */
export async function runInLab(name: string, cleanUp: (dir: string) => void): Promise<number> {
  const dir = mkdtempSync(join(tmpdir(), `isulad-${name}-`));
  const flags = "--net --mount --uts --ipc --pid --fork --kill-child --mount-proc".split(" ");
  // A shell as the first process reaps what others leave behind.
  const shell = ["sh", "-c", '"$@" & wait $!', "sh"];
  const argv = [process.execPath, ...process.argv.slice(1), "--inside", dir];
  const words = [...flags, "--propagation", "private", ...shell, ...argv];
  const child = spawn("unshare", words, { stdio: "inherit" });
  const ended = new Promise<number>((resolve) => child.once("exit", (code) => resolve(code ?? 1)));
  for (const signal of ["SIGINT", "SIGTERM"] as const)
    process.on(signal, () => child.kill("SIGKILL"));
  const code = await ended;
  cleanUp(dir);
  rmSync(dir, { recursive: true, force: true });
  return code;
}
