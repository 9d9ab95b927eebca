// Tests that a container that runc has created starts without another call of runc, and that other programs are called.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { execFifo, release } from "../../src/monitor/exec_fifo.ts";
import type { RuntimeCommand } from "../../src/node/oci_runtime.ts";
import { failure, until } from "../expect.ts";
import { cannotRun, Pod } from "../node/bundle.ts";

const why = cannotRun();
if (why !== "") console.error(`skipped, ${why}: starts by runc's FIFO`);
const runc = Bun.which("runc") ?? "";

describe.skipIf(why !== "" || runc === "")("a container that runc has created", () => {
  let pod: Pod;
  let runtime: RuntimeCommand;
  beforeAll(async () => {
    pod = await Pod.start();
    runtime = { path: runc, args: [], root: join(pod.dir, "run"), systemdCgroup: false };
  });
  afterAll(() => pod?.[Symbol.asyncDispose]());

  async function created(name: string): Promise<{ id: string; pid: number; fifo: string }> {
    const { id, dir } = await pod.bundle(name, { command: ["/bin/sleep", "1000"] });
    const argv = [
      "--root",
      runtime.root,
      "create",
      "--bundle",
      dir,
      "--pid-file",
      `${dir}/pid`,
      id,
    ];
    const cgroup = pod.driver.name === "systemd" ? ["--systemd-cgroup"] : [];
    const { status } = spawnSync(runc, [...cgroup, ...argv], { stdio: "ignore" });
    expect(status).toBe(0);
    const fifo = execFifo(runtime, id);
    expect(fifo).toBe(join(runtime.root, id, "exec.fifo"));
    return { id, pid: Number(readFileSync(`${dir}/pid`, "utf8")), fifo: fifo! };
  }
  const statusOf = (id: string) =>
    (JSON.parse(pod.runtime(["state", id]).stdout) as { status: string }).status;
  const argumentsOf = (pid: number) => readFileSync(`/proc/${pid}/cmdline`, "utf8");

  test("executes its program, and runs for runc, too", async () => {
    const { id, pid, fifo } = await created("starts");
    expect(statusOf(id)).toBe("created");
    await release(fifo, pid, 10_000);
    await until("it executes its program", () => argumentsOf(pid) === "/bin/sleep\x001000\x00");
    expect([statusOf(id), existsSync(fifo), execFifo(runtime, id)]).toEqual([
      "running",
      false,
      undefined,
    ]);
  });

  test("whose init has ended: an error that says so", async () => {
    const { pid, fifo } = await created("killed");
    process.kill(pid, "SIGKILL");
    await until("it has ended", () => !existsSync(`/proc/${pid}/exe`));
    const error = await failure(release(fifo, pid, 10_000));
    expect([error.code, error.message]).toEqual([
      "UNKNOWN",
      `the container's init, process ${pid}, ended before the start`,
    ]);
  });

  test("whose init does not go on: an error after the time, and it starts later", async () => {
    const { pid, fifo } = await created("stopped");
    process.kill(pid, "SIGSTOP");
    const error = await failure(release(fifo, pid, 300));
    expect([error.code, error.message]).toEqual([
      "DEADLINE_EXCEEDED",
      `the container's init, process ${pid}, did not go on in 300 ms`,
    ]);
    // A writer without a reader would end by SIGPIPE.
    const released = release(fifo, pid, 10_000);
    process.kill(pid, "SIGCONT");
    await released;
    await until("it executes its program", () => argumentsOf(pid) === "/bin/sleep\x001000\x00");
  });

  test("is started by its runtime if that is not the very runc", async () => {
    const { id } = await created("wrapped");
    const [renamed, folder] = [join(pod.dir, "runc-gpu"), join(pod.dir, "programs")];
    mkdirSync(folder);
    copyFileSync(runc, renamed);
    const script = join(folder, "runc");
    writeFileSync(script, `#!/bin/sh\nexec ${runc} "$@"\n`, { mode: 0o755 });
    const link = join(pod.dir, "runc");
    symlinkSync(renamed, link);
    for (const path of [renamed, script, link, join(pod.dir, "missing/runc")])
      expect(execFifo({ ...runtime, path }, id)).toBeUndefined();
    const renamedLink = join(pod.dir, "linked");
    symlinkSync(runc, renamedLink);
    expect(execFifo({ ...runtime, path: renamedLink }, id)).toBeDefined();
  });
});
