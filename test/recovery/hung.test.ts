// Tests plugins, runtimes and registries that never answer: only the call that needs them fails, at its
// deadline, and its error names what hung and for how long. Other calls succeed, and the pod can be removed.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { chmodSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { inTime } from "../../src/base/abort.ts";
import type { CriError } from "../../src/base/errors.ts";
import { failure } from "../expect.ts";
import { busybox, Daemon, ociRuntime } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { silentDisk } from "../silent_disk.ts";

/** Of each kind of step; those that do not hang may take seconds on a slow machine. */
const deadlineS = 5;
/** Of a pull, whose registries all hang. */
const silentS = 1;
/** From the deadline to the caller: undoing included. */
const slackMs = 20_000;

let daemon: Daemon;
/** A file here makes what bears its name hang: "bridge-ADD", "runtime-create". */
let hangs: string;

beforeAll(async () => {
  daemon = new Daemon({ flags: deadlines() });
  hangs = join(daemon.dir, "hangs");
  const tools = join(daemon.dir, "tools");
  for (const folder of [hangs, tools, daemon.cniDir]) mkdirSync(folder);
  for (const name of ["bridge", "portmap", "host-local", "loopback"]) {
    write(join(tools, name), `verb=$CNI_COMMAND`, name, `/usr/lib/cni/${name}`);
  }
  const verb = `for word; do case $word in create|start|kill|delete|exec) verb=$word; break;; esac; done`;
  write(join(tools, "runtime"), verb, "runtime", ociRuntime);
  daemon.writeConfig({
    "cni-bin-dir": tools,
    runtimes: { slow: { path: join(tools, "runtime") } },
  });
  daemon.writeNetwork();
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
  await othersGoOn(); // what is made once is made now
});
afterEach(() => {
  for (const name of readdirSync(hangs)) rmSync(join(hangs, name));
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

function deadlines(): string[] {
  const keys = ["cni-timeout", "runtime-timeout", "start-timeout"];
  const flags = keys.flatMap((key) => [`--${key}`, String(deadlineS)]);
  return [...flags, "--pull-progress-timeout", String(silentS)];
}

function write(file: string, verb: string, name: string, program: string): void {
  writeFileSync(
    file,
    `#!/bin/sh\n${verb}\n[ -e ${hangs}/${name}-$verb ] && exec sleep 600\nexec ${program} "$@"\n`,
  );
  chmodSync(file, 0o755);
}

function hang(what: string): Disposable {
  writeFileSync(join(hangs, what), "");
  return { [Symbol.dispose]: () => rmSync(join(hangs, what), { force: true }) };
}

/** The error of a call that hung, which came when its deadline was over and tells all. */
async function late(call: Promise<unknown>, what: string): Promise<CriError> {
  const start = performance.now();
  const error = await failure(call);
  expect(performance.now() - start).toBeWithin(deadlineS * 1000 - 100, deadlineS * 1000 + slackMs);
  expect(error.code).toBe("DEADLINE_EXCEEDED");
  expect(error.message).toContain(what);
  expect(error.message).toMatch(/pid \d+/);
  expect(error.message).toMatch(/\d ?m?s\b/);
  return error;
}

/** A pod in the host's network runs, executes and goes while something else hangs. */
async function othersGoOn(): Promise<void> {
  const start = performance.now();
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod, ociRuntime);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
  await daemon.removePod(podId);
  expect(performance.now() - start).toBeLessThan(slackMs);
}

describe("a CNI plugin that hangs", () => {
  test("in ADD: the pod fails, is gone, and leaves nothing", async () => {
    const before = daemon.snapshot();
    using _ = hang("portmap-ADD");
    const call = late(daemon.runPod(daemon.podConfig()), "portmap");
    await othersGoOn();
    await call;
    expect((await daemon.client.ListPodSandbox({})).items).toEqual([]);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("in ADD and then in DEL: the pod stays as NOTREADY until it can be removed", async () => {
    const before = daemon.snapshot();
    const add = hang("portmap-ADD");
    const del = hang("bridge-DEL");
    await failure(daemon.runPod(daemon.podConfig()));
    const { items } = await daemon.client.ListPodSandbox({});
    expect(items.map(({ state }) => state)).toEqual([1]);
    add[Symbol.dispose]();
    del[Symbol.dispose]();
    await daemon.removePod(items[0]!.id!);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("in DEL: Stop fails, a later one finishes", async () => {
    const before = daemon.snapshot();
    const podId = await daemon.runPod(daemon.podConfig());
    const del = hang("bridge-DEL");
    const call = late(daemon.client.StopPodSandbox({ pod_sandbox_id: podId }), "bridge");
    await othersGoOn();
    await call;
    del[Symbol.dispose]();
    await daemon.removePod(podId);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

describe("an OCI runtime that hangs", () => {
  test.each(["create", "start"])("in %s: Start fails, the pod can be removed", async (verb) => {
    const before = daemon.snapshot();
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod, "slow");
    const id = await daemon.create(podId, pod, ["sleep", "600"]);
    using _ = hang(`runtime-${verb}`);
    const call = late(daemon.client.StartContainer({ container_id: id }), verb);
    await othersGoOn();
    await call;
    await daemon.removePod(podId);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("in exec: the call's own timeout ends it", async () => {
    const before = daemon.snapshot();
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod, "slow");
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    using _ = hang("runtime-exec");
    const call = failure(daemon.exec(id, "true", 1));
    await othersGoOn();
    const inTime = await Promise.race([call, sleep(1000 + slackMs, undefined)]);
    expect(inTime?.code).toBe("DEADLINE_EXCEEDED");
    await daemon.removePod(podId);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("in delete: Remove says so or waits for it; a later one leaves nothing", async () => {
    const before = daemon.snapshot();
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod, "slow");
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const del = hang("runtime-delete");
    await daemon.client.StopContainer({ container_id: id });
    const removal = daemon.removePod(podId).catch((error: unknown) => String(error));
    await othersGoOn();
    const said = await removal;
    if (said !== undefined) expect(said).toContain("delete");
    del[Symbol.dispose]();
    await daemon.removePod(podId);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

describe("a volume whose server is gone", () => {
  test("fails the containers that mount it, and no other", async () => {
    const before = daemon.snapshot();
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const disk = join(daemon.dir, "gone");
    {
      using _ = silentDisk(disk);
      const mounts = [{ host_path: join(disk, "data"), container_path: "/data" }];
      // More than the engine has threads for files.
      const calls = Array.from({ length: 6 }, () =>
        late(daemon.create(podId, pod, ["true"], { mounts }), `fuse of silent on ${disk}`),
      );
      // Within a time: the disk goes with this block, and with it what waits for it.
      await inTime(othersGoOn(), "another container", 2 * slackMs);
      await Promise.all(calls);
    }
    await daemon.removePod(podId);
    rmSync(disk, { recursive: true });
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

type Mute = AsyncDisposable & { host: string };

/** A registry that takes connections, answers with `first`, and then nothing. */
async function muteRegistry(first: string): Promise<Mute> {
  const open = new Set<Socket>();
  const server: Server = createServer((socket) => {
    open.add(socket);
    socket.on("error", () => {});
    socket.once("data", () => socket.write(first));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  return {
    host: `127.0.0.1:${port}`,
    [Symbol.asyncDispose]: async () => {
      for (const socket of open) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

describe("a registry that hangs", () => {
  test.each([
    ["before its first byte", ""],
    ["within its headers", "HTTP/1.1 200 OK\r\nContent-Ty"],
    [
      "within its answer",
      "HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\nContent-Length: 900\r\n\r\n{",
    ],
  ])("%s: the pull fails, with its name and the time", async (_, first) => {
    await using registry = await muteRegistry(first);
    const before = daemon.snapshot();
    const start = performance.now();
    const image = `${registry.host}/busybox:1`;
    const call = failure(daemon.client.PullImage({ image: { image } }));
    await othersGoOn();
    const error = await call;
    expect(performance.now() - start).toBeLessThan(60_000);
    expect(error.message).toContain(registry.host);
    expect(error.message).toMatch(/\d ?m?s\b/);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});
