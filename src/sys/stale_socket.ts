// Removes unix sockets that a killed process has left behind.
import { rmSync } from "node:fs";
import { createConnection } from "node:net";
import { CriError } from "../base/errors.ts";

/**
 * Removes a socket on which nobody answers. key: the key of daemon.json that names it.
 * @throws CriError FAILED_PRECONDITION when another program answers on it.
 */
export async function replaceStale(path: string, key: string): Promise<void> {
  const answered = await new Promise<boolean>((resolve) => {
    const socket = createConnection(path);
    socket.once("connect", () => {
      socket.destroy();
      resolve(true);
    });
    socket.once("error", () => resolve(false));
  });
  if (answered) {
    throw new CriError(
      "FAILED_PRECONDITION",
      `another program answers on ${path}: stop it, or choose another socket with ${key}`,
    );
  }
  rmSync(path, { force: true });
}
