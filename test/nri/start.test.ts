// Tests what plugins find at StartContainer, which comes between the OCI runtime's create and start, and that a start
// which ends there leaves nothing.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { copyFileSync, existsSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../../src/base/int64.ts";
import { nri } from "../../src/proto/nri.js";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { isZombie, startTime } from "../../src/sys/process.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { isV2 } from "../host.ts";
import { upgradeTo } from "../monitor/upgrade_to.ts";
import { builtRuncShims, runcHandler } from "../shim_programs.ts";
import { Plugins } from "./plugins.ts";
import { RawPlugin } from "./raw_plugin.ts";

const api = nri.pkg.api.v1alpha1;
const { ContainerState } = runtime.v1;
const plugins = new Plugins();
const accepted = new Uint8Array();

/** What a plugin finds. cgroup: the folder of the init's cgroup. */
type Found = { id: string; pid: number; state: number; cgroup: string };

/** What the plugin does; set by each test. */
let onStart: (found: Found) => Promise<Uint8Array> = () => Promise.resolve(accepted);
const [shim] = builtRuncShims();
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;

beforeAll(async () => {
  const runtimes = shim === undefined ? {} : { shim: runcHandler(shim) };
  const keys = { "plugin-request-timeout": "100s", runtimes };
  daemon = await startDaemon({ config: plugins.config(keys) });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  await connect();
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

let serial = 10;

async function connect(): Promise<void> {
  const index = String(++serial);
  const events = 1 << (api.Event.START_CONTAINER - 1);
  const plugin = new RawPlugin(plugins.socket, {
    Configure: () => api.ConfigureResponse.encode({ events }).finish(),
    StartContainer: (request) => {
      const { container } = api.StartContainerRequest.decode(request);
      const { id = "", pid = 0, state = -1 } = container as Partial<Found>;
      return onStart({ id, pid, state, cgroup: pid === 0 ? "" : cgroupOf(pid) });
    },
  });
  await plugin.register(index, "starts");
  await until("it is in service", () => daemon.log.includes(`in service plugin=${index}-starts`));
}

/** The folder of a process's cgroup, in the pids hierarchy or the only one. */
function cgroupOf(pid: number): string {
  const lines = readFileSync(`/proc/${pid}/cgroup`, "utf8").split("\n");
  const line = lines.find((one) => (isV2 ? one.startsWith("0::") : one.includes(":pids:")))!;
  return join("/sys/fs/cgroup", isV2 ? "" : "pids", line.slice(line.indexOf(":/") + 1));
}

/** Creates a container, and has the plugin do something with what it finds at its start. */
async function begin(
  act: (found: Found) => Promise<Uint8Array>,
  { sandbox, config } = { sandbox: podId, config: pod },
): Promise<{ id: string; started: Promise<unknown>; found: Promise<Found> }> {
  const id = await daemon.create(sandbox, config, "echo runs; sleep 600");
  const found = Promise.withResolvers<Found>();
  onStart = async (one) => {
    if (one.pid > 0) found.resolve(one);
    else found.reject(new Error("the plugin finds no process"));
    return act(await found.promise);
  };
  const started = daemon.client.StartContainer({ container_id: id });
  started.catch(() => {}); // each test awaits it, or kills the daemon
  return { id, started, found: found.promise };
}

const hangs = () => new Promise<Uint8Array>(() => {});
const stateOf = async (id: string) => (await daemon.status(id)).state;

/** Waits until neither process, cgroup, record nor stream is left of a container that was created. */
async function nothingIsLeft({ id, pid, cgroup }: Found): Promise<void> {
  const left = () => [
    ...(startTime(pid) === undefined || isZombie(pid) ? [] : [`process ${pid}`]),
    ...(existsSync(cgroup) ? [cgroup] : []),
    ...files(join(daemon.dir, "state/monitor")).filter((path) => path.includes(id)),
    ...daemon
      .monitors()
      .flatMap((monitor) => openFiles(monitor).filter((path) => path.includes(id))),
  ];
  await until(
    () => `nothing is left: ${left().join(", ")}`,
    () => left().length === 0,
  );
}

function files(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" });
}

function openFiles(pid: number): string[] {
  const read = <T>(look: () => T[]): T[] => {
    try {
      return look();
    } catch {
      return []; // ended or closed meanwhile
    }
  };
  const folder = `/proc/${pid}/fd`;
  return read(() => readdirSync(folder)).flatMap((fd) =>
    read(() => [readlinkSync(join(folder, fd))]),
  );
}

/** What a kubelet does after a start that failed: it starts a container again, or creates another one. */
async function retried(id: string): Promise<string> {
  if ((await stateOf(id)) === ContainerState.CONTAINER_EXITED)
    return daemon.run(podId, pod, "sleep 600");
  await daemon.client.StartContainer({ container_id: id });
  return id;
}

async function isRetried(id: string): Promise<void> {
  onStart = () => Promise.resolve(accepted);
  const running = await retried(id);
  expect(await stateOf(running)).toBe(ContainerState.CONTAINER_RUNNING);
  for (const one of new Set([id, running]))
    await daemon.client.RemoveContainer({ container_id: one });
}

test.each(["", ...(shim === undefined ? [] : ["shim"])])(
  "a plugin finds the process, the cgroup, and a container that does not run yet: runtime %p",
  async (handler) => {
    const config = daemon.hostPodConfig();
    const sandbox = await daemon.runPod(config, handler);
    const { id, started, found } = await begin(
      async ({ id: created, cgroup }) => {
        expect(existsSync(cgroup)).toBe(true);
        await sleep(300);
        expect((await daemon.status(created)).state).toBe(ContainerState.CONTAINER_CREATED);
        expect(readFileSync((await daemon.status(created)).log_path, "utf8")).toBe("");
        return accepted;
      },
      { sandbox, config },
    );
    await started;
    const { pid, state, cgroup } = await found;
    expect(state).toBe(api.ContainerState.CONTAINER_CREATED);
    expect(pid).toBe(await daemon.pidOf(id));
    expect(cgroup).toContain(id);
    await daemon.logged(id, "runs");
    await daemon.client.StopContainer({ container_id: id, timeout: toLong(0) });
    await daemon.client.RemoveContainer({ container_id: id });
    await nothingIsLeft(await found);
    await daemon.removePod(sandbox);
  },
);

test("a container that a plugin refuses to start leaves nothing", async () => {
  const { id, started, found } = await begin(() => Promise.reject(new Error("not on this node")));
  expect((await failure(started)).message).toContain("not on this node");
  const { state, reason } = await daemon.status(id);
  expect({ state, reason }).toEqual({
    state: ContainerState.CONTAINER_EXITED,
    reason: "StartError",
  });
  await nothingIsLeft(await found);
  await isRetried(id);
});

test("a container whose first process ends meanwhile fails to start", async () => {
  const { id, started, found } = await begin(async ({ pid }) => {
    process.kill(pid, "SIGKILL");
    await until("it has ended", () => startTime(pid) === undefined || isZombie(pid));
    await sleep(3_000); // the monitor knows by then
    return accepted;
  });
  expect((await failure(started)).message).toMatch(/process \d+, has ended before the start/);
  await nothingIsLeft(await found);
  await isRetried(id);
});

test("a Stop meanwhile returns when the start has ended, and nothing runs", async () => {
  const verdict = Promise.withResolvers<Uint8Array>();
  const { id, started, found } = await begin(() => verdict.promise);
  await found;
  let isStopped = false;
  const stop = daemon.client.StopContainer({ container_id: id }).finally(() => (isStopped = true));
  await sleep(500);
  expect(isStopped).toBe(false);
  verdict.resolve(accepted);
  await stop;
  await failure(started);
  expect(await stateOf(id)).toBe(ContainerState.CONTAINER_EXITED);
  await nothingIsLeft(await found);
  await daemon.client.RemoveContainer({ container_id: id });
});

test("an upgrade of the monitor waits for the start", async () => {
  const other = join(daemon.dir, "other-build");
  copyFileSync(executable, other);
  const verdict = Promise.withResolvers<Uint8Array>();
  const { id, started, found } = await begin(() => verdict.promise);
  await found;
  const [monitor] = daemon.monitors();
  const exe = () => readlinkSync(`/proc/${monitor}/exe`);
  const upgrades = () => daemon.log.split("upgrading the monitor").length;
  const before = upgrades();
  const upgraded = upgradeTo(daemon, [other]);
  await sleep(1_000);
  expect(exe()).toBe(executable);
  verdict.resolve(accepted);
  await started;
  await upgraded;
  await until(
    "the daemon has made the monitor its own again",
    () => upgrades() > before && exe() === executable,
  );
  await daemon.logged(id, "runs");
  expect(await stateOf(id)).toBe(ContainerState.CONTAINER_RUNNING);
  await daemon.client.RemoveContainer({ container_id: id });
  await nothingIsLeft(await found);
});

test("a monitor that is killed meanwhile leaves nothing", async () => {
  const verdict = Promise.withResolvers<Uint8Array>();
  const { id, started, found } = await begin(() => verdict.promise);
  await found;
  const [killed] = daemon.monitors();
  process.kill(killed!, "SIGKILL");
  await until("there is another", () => daemon.monitors().some((pid) => pid !== killed));
  await nothingIsLeft(await found);
  verdict.resolve(accepted);
  await failure(started);
  await isRetried(id);
});

test("a daemon that is killed meanwhile leaves nothing", async () => {
  const { id, found } = await begin(hangs);
  await found;
  await daemon.restart("SIGKILL");
  await nothingIsLeft(await found);
  await connect();
  await isRetried(id);
});
