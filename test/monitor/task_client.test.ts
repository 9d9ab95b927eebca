// Tests the calls of a shim against containerd-shim-runc-v2, each version that test/shims has built: one
// container and one exec live and end, without daemon and monitor.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { task } from "../../src/proto/task.js";
import { startShim, deleteWithoutShim } from "../../src/shim/bootstrap.ts";
import { TaskClient } from "../../src/shim/task_client.ts";
import { taskOptions } from "../../src/shim/task_options.ts";
import { processName } from "../../src/sys/process.ts";
import { failure, until } from "../expect.ts";
import { end } from "../host.ts";
import { builtRuncShims, runcShim } from "../shim_programs.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-task-"));
const rootfs = join(folder, "rootfs");
/** No call takes long; programs start slowly beside other tests. */
const callMs = 60_000;
beforeAll(() => {
  mkdirSync(join(rootfs, "bin"), { recursive: true });
  copyFileSync("/bin/busybox", join(rootfs, "bin/sh"));
});
/** Which the monitor removes, and shims may leave. */
const sockets: string[] = [];
afterAll(() => {
  for (const path of [folder, ...sockets]) rmSync(path, { recursive: true, force: true });
});

/** Makes a bundle in which this shell command runs; output goes to the file `out`. */
function makeBundle(id: string, command: string): string {
  const bundle = join(folder, id);
  mkdirSync(join(bundle, "rootfs"), { recursive: true });
  execFileSync("runc", ["spec"], { cwd: bundle });
  const file = join(bundle, "config.json");
  const spec = JSON.parse(readFileSync(file, "utf8")) as {
    process: { terminal: boolean; args: string[] };
    root: { path: string };
  };
  Object.assign(spec.process, { terminal: false, args: ["/bin/sh", "-c", command] });
  spec.root.path = rootfs;
  writeFileSync(file, JSON.stringify(spec));
  writeFileSync(join(bundle, "log"), "");
  execFileSync(
    "mkfifo",
    ["out", "err"].map((name) => join(bundle, name)),
  );
  return bundle;
}

/** The node's init may take seconds to reap it. */
const isGone = (pid: number) => /^gone$|, state Z$/.test(processName(pid));

describe.each(builtRuncShims())("runc's shim of containerd %s", (version) => {
  const program = runcShim(version);
  const options = taskOptions({
    path: program,
    args: [],
    root: folder,
    systemdCgroup: false,
    shim: { type: "io.containerd.runc.v2", configPath: "", options: {} },
  });
  const calling = (id: string, bundle: string) => {
    const owner = join(folder, version);
    return { program, id, bundle, owner, options, signal: AbortSignal.timeout(callMs) };
  };

  async function created(id: string, command: string) {
    const bundle = makeBundle(id, command);
    const address = await startShim(calling(id, bundle));
    sockets.push(address.path);
    const { client, shimPid } = await TaskClient.connect(address, { id, timeoutMs: callMs });
    // Held open: the shim waits for a reader.
    const reading = new Response(Bun.spawn(["cat", join(bundle, "out")]).stdout).text();
    const stderr = Bun.spawn(["cat", join(bundle, "err")]).exited;
    const [stdout, err] = ["out", "err"].map((name) => join(bundle, name));
    const request = { id, bundle, stdin: "", stdout: stdout!, stderr: err!, options };
    const pid = await client.create({ ...request, terminal: false }, callMs);
    return { bundle, address, client, shimPid, pid, output: () => Promise.all([reading, stderr]) };
  }

  test("runs a container and an exec, each to its exit code, and ends", async () => {
    const id = `life-${version}`;
    const { client, shimPid, pid, output } = await created(
      id,
      `echo out; until [ -e /go-${version} ]; do sleep 0.1; done; exit 7`,
    );
    const exited = client.wait({ id });
    expect(await client.exitCode({ id }, callMs)).toBeUndefined();
    expect(await client.start({ id }, callMs)).toBe(pid);
    const command = () => readFileSync(`/proc/${pid}/cmdline`, "utf8");
    await until("its program is executed", () => command().includes("echo out"));
    const before = Date.now();
    writeFileSync(join(rootfs, `go-${version}`), "");
    expect(await exited).toMatchObject({ exitCode: 7 });
    expect(Number((await exited).exitedAtNs / 1_000_000n)).toBeWithin(before, Date.now() + 1);
    expect(await client.exitCode({ id }, callMs)).toBe(7);
    await client.delete({ id }, callMs);
    expect((await output())[0]).toBe("out\n");
    await client.shutdown(id).catch(() => {});
    await until("the shim has ended", () => isGone(shimPid));
  });

  test("runs an exec beside the container, with numbers of its own", async () => {
    const id = `exec-${version}`;
    const { client, shimPid, pid } = await created(id, "while sleep 1; do :; done");
    await client.start({ id }, callMs);
    const exec = { id, exec_id: "e1" };
    const process = { args: ["/bin/sh", "-c", "exit 9"], cwd: "/", user: { uid: 0, gid: 0 } };
    const type_url = "types.containerd.io/opencontainers/runtime-spec/1/Process";
    const spec = { type_url, value: Buffer.from(JSON.stringify(process)) };
    await client.exec(
      { ...exec, terminal: false, stdin: "", stdout: "", stderr: "", spec },
      callMs,
    );
    expect((await failure(client.exec({ ...exec, spec }, callMs))).code).toBe("ALREADY_EXISTS");
    const exited = client.wait(exec);
    expect(await client.start(exec, callMs)).not.toBe(pid);
    expect((await exited).exitCode).toBe(9);
    await client.delete(exec, callMs);
    const stats = await client.call(
      "Stats",
      Buffer.from(task.StatsRequest.encode({ id }).finish()),
      callMs,
    );
    expect(task.StatsResponse.decode(stats).stats?.type_url).toMatch(
      /^io\.containerd\.cgroups\.v[12]\.Metrics$/,
    );
    const waiting = client.wait({ id });
    await client.kill({ id, signal: 9, all: true });
    expect((await waiting).exitCode).toBe(137);
    await client.delete({ id }, callMs);
    await client.shutdown(id).catch(() => {});
    await until("the shim has ended", () => isGone(shimPid));
  });

  test("that is killed: calls fail, the next connection too, and `delete` cleans up", async () => {
    const id = `killed-${version}`;
    const { bundle, address, client, shimPid, pid } = await created(
      id,
      "while sleep 1; do :; done",
    );
    await client.start({ id }, callMs);
    const waiting = failure(client.wait({ id }));
    end(shimPid);
    expect((await waiting).code).toBe("UNAVAILABLE");
    const again = await failure(TaskClient.connect(address, { id, timeoutMs: callMs }));
    expect(again.code).toBe("UNAVAILABLE");
    expect(await deleteWithoutShim(calling(id, bundle))).toMatchObject({ exitCode: 137 });
    await until("the container has ended", () => isGone(pid));
  });

  test("reports what it refuses with its code", async () => {
    const id = `refused-${version}`;
    const { client, shimPid } = await created(id, "true");
    expect((await failure(client.start({ id: "other" }, callMs))).code).toBe("NOT_FOUND");
    expect((await failure(client.call("NoSuch", Buffer.from(""), callMs))).code).toBe(
      "UNIMPLEMENTED",
    );
    await client.kill({ id, signal: 9, all: true });
    await client.wait({ id });
    await client.delete({ id }, callMs);
    await client.shutdown(id).catch(() => {});
    await until("the shim has ended", () => isGone(shimPid));
  });
});
