// Runs Debian's docker-registry for tests, on a free port with its data in a scratch folder.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pushImage, type TestImage } from "./image_maker.ts";

export type Registry = AsyncDisposable & {
  /** "ADDRESS:PORT". */
  host: string;
  /** Its data folder, which other registries may serve, too. */
  data: string;
  /** Without password and TLS. */
  push(repository: string, tag: string, image: TestImage): Promise<void>;
};

/** Sections of its configuration (distribution's docs/configuration.md). */
export type RegistrySettings = {
  /** The data folder of another registry. */
  data?: string;
  /** The address that it listens on; default 127.0.0.1. */
  address?: string;
  auth?: object;
  tls?: object;
};

/** @throws Error when it does not listen within a minute. */
export async function startRegistry(settings: RegistrySettings = {}): Promise<Registry> {
  const dir = mkdtempSync(join(tmpdir(), "isulad-registry-"));
  const { address = "127.0.0.1" } = settings;
  const port = await freePort();
  const host = `${address}:${port}`;
  const data = settings.data ?? join(dir, "data");
  const config = {
    version: 0.1,
    storage: { filesystem: { rootdirectory: data }, delete: { enabled: true } },
    http: { addr: host, ...(settings.tls && { tls: settings.tls }) },
    ...(settings.auth && { auth: settings.auth }),
    log: { level: "error" },
  };
  writeFileSync(join(dir, "config.yml"), JSON.stringify(config)); // which is YAML, too
  const child = spawn("docker-registry", ["serve", join(dir, "config.yml")], { stdio: "ignore" });
  const dispose = async () => {
    child.kill("SIGKILL");
    rmSync(dir, { recursive: true, force: true });
  };
  for (let tries = 0; !(await listens(address, port)); tries++) {
    if (tries > 1200 || child.exitCode !== null) {
      await dispose();
      throw new Error("docker-registry does not answer");
    }
    await sleep(50);
  }
  return {
    host,
    data,
    push: (repository, tag, image) =>
      pushImage({ registry: `http://${host}`, repository }, tag, image),
    [Symbol.asyncDispose]: dispose,
  };
}

function listens(host: string, port: number): Promise<boolean> {
  const socket = connect({ host, port });
  return new Promise((resolve) => {
    socket.once("connect", () => resolve(true));
    socket.once("error", () => resolve(false));
  }).then((isOpen) => {
    socket.destroy();
    return isOpen as boolean;
  });
}

/** Returns a port below those that the kernel chooses: nobody is given it before the caller takes it. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => resolve(true));
    });
    if (!isFree) continue;
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
}
