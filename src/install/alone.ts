// Keeps two installations or removals in one place from working at once: each would overwrite the other's record.
import { fstatSync, mkdirSync, rmSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { CriError } from "../base/errors.ts";
import { lockedFolder, openLocked } from "../sys/path.ts";
import type { Target } from "./target.ts";

/** Only root can open it: another user's lock on a folder of this machine would stop every installation. */
const machineLock = "/var/lib/isulad-ts.install.lock";

/** Dispose it at the end. @throws CriError FAILED_PRECONDITION while another process has it. */
export function alone({ root, isDryRun }: Pick<Target, "root" | "isDryRun">): Disposable {
  if (isDryRun) return new DisposableStack();
  // A root folder is locked itself: no lock file stays in an image, even after a crash.
  const lock = root === "" ? lockWithFile(machineLock) : lockedFolder(root);
  if (lock !== undefined) return lock;
  const where = root === "" ? "on this machine" : `in ${root}`;
  const message = `another isulad-ts install or uninstall is at work ${where}: run this again after its end`;
  throw new CriError("FAILED_PRECONDITION", message);
}

/** Locks a file, and removes it at the end; undefined while another process has it. */
export function lockWithFile(path: string): Disposable | undefined {
  mkdirSync(dirname(path), { recursive: true });
  const lock = openLocked(path);
  if (lock === undefined) return undefined;
  using stack = new DisposableStack();
  stack.use(lock);
  // If its earlier owner removed the file after it was opened here, another file has the name now, perhaps locked.
  const isSame = statSync(path, { throwIfNoEntry: false })?.ino === fstatSync(lock.fd).ino;
  if (!isSame) return undefined;
  stack.defer(() => rmSync(path, { force: true }));
  return stack.move();
}
