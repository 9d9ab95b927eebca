// Debian's docker-registry for tests: on a free port of loopback, with its data in a scratch folder.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pushImage, type TestImage } from "./image_maker.ts";

export type Registry = AsyncDisposable & {
  /** "127.0.0.1:PORT". */
  host: string;
  push(repository: string, tag: string, image: TestImage): Promise<void>;
};

/** Without a password. @throws when it does not answer within ten seconds. */
export async function startRegistry(): Promise<Registry> {
  const dir = mkdtempSync(join(tmpdir(), "isulad-registry-"));
  const host = `127.0.0.1:${await freePort()}`;
  const config = `version: 0.1
storage: { filesystem: { rootdirectory: ${dir}/data }, delete: { enabled: true } }
http: { addr: ${host} }
log: { level: error }
`;
  writeFileSync(join(dir, "config.yml"), config);
  const child = spawn("docker-registry", ["serve", join(dir, "config.yml")], { stdio: "ignore" });
  const dispose = async () => {
    child.kill("SIGKILL");
    rmSync(dir, { recursive: true, force: true });
  };
  for (let tries = 0; !(await answers(`http://${host}/v2/`)); tries++) {
    if (tries > 200 || child.exitCode !== null) {
      await dispose();
      throw new Error("docker-registry does not answer");
    }
    await sleep(50);
  }
  return {
    host,
    push: (repository, tag, image) =>
      pushImage({ registry: `http://${host}`, repository }, tag, image),
    [Symbol.asyncDispose]: dispose,
  };
}

async function answers(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
}

export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return address.port;
}
