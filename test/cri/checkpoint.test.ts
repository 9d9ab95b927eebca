// Tests CheckpointContainer, by runc and by its shim. criu works on few machines, so the tests use fakes: a criu
// that fails, and one that succeeds with a runc whose checkpoint writes a file.
import { describe, expect, test } from "bun:test";
import { chmodSync, existsSync, mkdirSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { runtime } from "../../src/proto/messages.js";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { chosenRuncShim, runcHandler } from "../shim_programs.ts";

const { ContainerState } = runtime.v1;

function writeScript(path: string, script: string): void {
  writeFileSync(path, `#!/bin/sh\n${script}\n`);
  chmodSync(path, 0o755);
}

const version = chosenRuncShim();
const handlers = version === undefined ? ["wrapped"] : ["wrapped", "shim"];

/** A daemon that finds this criu first; its handlers, one with a shim, are runc but for `checkpoint`. */
async function daemonWith(scripts: { criu: string; checkpoint: string }): Promise<Daemon> {
  const daemon = await startDaemon({ network: false });
  const bin = join(daemon.dir, "bin");
  mkdirSync(bin);
  writeScript(join(bin, "criu"), scripts.criu);
  const wrapped = join(bin, "wrapped");
  writeScript(
    wrapped,
    `for arg; do [ "$arg" = checkpoint ] && exec ${bin}/checkpoint "$@"; done; exec runc "$@"`,
  );
  writeScript(join(bin, "checkpoint"), scripts.checkpoint);
  const options = { "runtime-options": { BinaryName: wrapped } };
  const shim = version === undefined ? {} : { shim: { ...runcHandler(version), ...options } };
  daemon.writeConfig({ runtimes: { wrapped: { path: wrapped }, ...shim } });
  const path = process.env["PATH"];
  process.env["PATH"] = `${bin}:${path}`;
  await daemon.restart();
  process.env["PATH"] = path;
  return daemon;
}

async function start(daemon: Daemon, handler = "wrapped"): Promise<string> {
  const pod = daemon.hostPodConfig();
  return daemon.run(await daemon.runPod(pod, handler), pod, ["sleep", "600"]);
}

const writes = `while [ $# -gt 0 ]; do [ "$1" = --image-path ] && echo state > "$2/core-1.img"; shift; done`;

test("with a criu that fails: UNIMPLEMENTED, with criu's message", async () => {
  await using daemon = await daemonWith({ criu: "echo no vDSO >&2; exit 1", checkpoint: writes });
  const container_id = await start(daemon);
  const location = join(daemon.dir, "a.tar");
  const error = await failure(daemon.client.CheckpointContainer({ container_id, location }));
  expect(error.code).toBe("UNIMPLEMENTED");
  expect(error.message).toContain("no vDSO");
  expect(existsSync(location)).toBe(false);
});

describe.each(handlers)("by the handler %s", (handler) => {
  test("with a criu that works: an archive at the location, and the container keeps running", async () => {
    await using daemon = await daemonWith({ criu: "exit 0", checkpoint: writes });
    const container_id = await start(daemon, handler);
    const location = join(daemon.dir, "a.tar");
    await daemon.client.CheckpointContainer({ container_id, location });
    const names = Bun.spawnSync(["tar", "-tf", location]).stdout.toString().trim().split("\n");
    expect(names).toEqual(["checkpoint/", "checkpoint/core-1.img", "config.json"]);
    expect(statSync(location).mode & 0o777).toBe(0o600);
    expect((await daemon.status(container_id)).state).toBe(ContainerState.CONTAINER_RUNNING);

    const again = await failure(daemon.client.CheckpointContainer({ container_id, location }));
    expect(again.code).toBe("ALREADY_EXISTS");
    const elsewhere = { container_id, location: join(daemon.dir, "no/such/folder/a.tar") };
    const nowhere = await failure(daemon.client.CheckpointContainer(elsewhere));
    expect(nowhere.code).toBe("FAILED_PRECONDITION");
    await daemon.client.StopContainer({ container_id });
    const other = { container_id, location: join(daemon.dir, "b.tar") };
    const stopped = await failure(daemon.client.CheckpointContainer(other));
    expect(stopped.code).toBe("FAILED_PRECONDITION");
    const unknown = await failure(
      daemon.client.CheckpointContainer({ ...other, container_id: "no" }),
    );
    expect(unknown.code).toBe("NOT_FOUND");
  });

  test("a dump that fails: the runtime's message, and nothing left", async () => {
    await using daemon = await daemonWith({
      criu: "exit 0",
      checkpoint: 'echo "criu failed: type NOTIFY errno 0" >&2; exit 1',
    });
    const container_id = await start(daemon, handler);
    const location = join(daemon.dir, "a.tar");
    const error = await failure(daemon.client.CheckpointContainer({ container_id, location }));
    expect(error.message).toContain("criu failed: type NOTIFY");
    expect(readdirSync(daemon.dir).filter((name) => name.startsWith("a.tar"))).toEqual([]);
    const folder = join(daemon.dir, "graph/containers", container_id);
    expect(existsSync(join(folder, "checkpoint"))).toBe(false);
  });
});
