// Tests the life cycle, the exits and the environment of containers.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, pace } from "../expect.ts";
import { gate, openGate } from "../gate.ts";
import { busybox, type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

const { ContainerState, NamespaceMode } = runtime.v1;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  await daemon.output(podId, pod, "true"); // systemd makes the pod's slice with its first container
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const output = (command: string, more: ContainerConfig = {}) =>
  daemon.output(podId, pod, command, more);

describe("life cycle", () => {
  test("created, running, exited, removed: states and times follow", async () => {
    const before = daemon.snapshot();
    const labels = { tier: "x" };
    const annotations = { "an.no/tation": "✓" };
    const id = await daemon.create(podId, pod, gate, { labels, annotations });
    const created = await daemon.status(id);
    expect(created).toMatchObject({ state: ContainerState.CONTAINER_CREATED, labels, annotations });
    expect(created.created_at.toBigInt()).toBeGreaterThan(1_700_000_000_000_000_000n);
    expect(created.started_at.toBigInt()).toBe(0n);
    expect(created.finished_at.toBigInt()).toBe(0n);

    await daemon.client.StartContainer({ container_id: id });
    const running = await daemon.status(id);
    expect(running.state).toBe(ContainerState.CONTAINER_RUNNING);
    expect(running.started_at.toBigInt()).toBeGreaterThanOrEqual(created.created_at.toBigInt());
    const listed = await daemon.client.ListContainers({ filter: { id } });
    expect(listed.containers[0]).toMatchObject({ id, pod_sandbox_id: podId, labels, annotations });

    await openGate(daemon, id);
    const { exitCode, reason, status } = await daemon.exited(id);
    expect({ exitCode, reason }).toEqual({ exitCode: 0, reason: "Completed" });
    expect(status.finished_at!.toBigInt()).toBeGreaterThan(running.started_at.toBigInt());
    await daemon.client.RemoveContainer({ container_id: id });
    await daemon.client.RemoveContainer({ container_id: id });
    const gone = await failure(daemon.client.ContainerStatus({ container_id: id }));
    expect(gone.code).toBe("NOT_FOUND");
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("the exit code is the program's, or 128 and its signal", async () => {
    expect(await output("exit 3")).toMatchObject({ exitCode: 3, reason: "Error" });
    // In the host's pid namespace the program is no init, and may be killed from within.
    const namespace_options = { network: NamespaceMode.NODE, pid: NamespaceMode.NODE };
    const linux = { security_context: { namespace_options } };
    const killed = await output("kill -9 $$", { linux });
    expect(killed).toMatchObject({ exitCode: 137, reason: "Error" });
  });

  test("status names image, image id, log and mounts as CRI wants them", async () => {
    const { status } = await output("true");
    const { images } = await daemon.client.ListImages({});
    expect(status.image?.image).toBe(busybox);
    expect(status.image_id).toBe(images[0]!.id);
    expect(status.log_path).toStartWith(join(daemon.dir, "logs"));
    expect(status.mounts).toEqual([]);
  });

  test("a missing command: exited, StartError, with the runtime's message", async () => {
    const before = daemon.snapshot();
    const id = await daemon.create(podId, pod, ["/no/such/program"]);
    const error = await failure(daemon.client.StartContainer({ container_id: id }));
    expect(error.message).toContain("/no/such/program");
    const status = await daemon.status(id);
    expect(status).toMatchObject({
      state: ContainerState.CONTAINER_EXITED,
      reason: "StartError",
      exit_code: 128,
    });
    expect(status.message).toContain("/no/such/program");
    expect(status.finished_at.toBigInt()).toBeGreaterThan(0n);
    await daemon.client.RemoveContainer({ container_id: id });
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("starting twice, or after the exit, is refused", async () => {
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const again = await failure(daemon.client.StartContainer({ container_id: id }));
    expect(again.code).toBe("FAILED_PRECONDITION");
    await daemon.client.StopContainer({ container_id: id });
    const after = await failure(daemon.client.StartContainer({ container_id: id }));
    expect(after.code).toBe("FAILED_PRECONDITION");
  });

  test("a name is reserved until its container is removed", async () => {
    const metadata = { name: "twice", attempt: 0 };
    const id = await daemon.create(podId, pod, "true", { metadata });
    const error = await failure(daemon.create(podId, pod, "true", { metadata }));
    expect(error.code).toBe("ALREADY_EXISTS");
    const next = await daemon.create(podId, pod, "true", { metadata: { ...metadata, attempt: 1 } });
    await daemon.client.RemoveContainer({ container_id: id });
    await daemon.client.RemoveContainer({ container_id: next });
    await daemon.create(podId, pod, "true", { metadata });
  });

  test("unknown ids: stop and remove succeed, other calls return NOT_FOUND", async () => {
    const container_id = "a".repeat(64);
    await daemon.client.StopContainer({ container_id });
    await daemon.client.RemoveContainer({ container_id });
    const { client } = daemon;
    const calls = [
      client.ContainerStatus({ container_id }),
      client.StartContainer({ container_id }),
      client.ExecSync({ container_id, cmd: ["true"] }),
      client.ReopenContainerLog({ container_id }),
    ];
    for (const call of calls) expect((await failure(call)).code).toBe("NOT_FOUND");
    const filter = { id: container_id };
    expect((await client.ListContainers({ filter })).containers).toEqual([]);
  });

  test("lists filter by state, labels and pod; a prefix of an id will do", async () => {
    const labels = { pick: "me" };
    const id = await daemon.run(podId, pod, ["sleep", "600"], { labels });
    const ids = async (filter: object) =>
      (await daemon.client.ListContainers({ filter })).containers.map((one) => one.id);
    expect(await ids({ label_selector: labels })).toEqual([id]);
    expect(await ids({ id: id.slice(0, 12) })).toEqual([id]);
    const state = { state: ContainerState.CONTAINER_EXITED };
    expect(await ids({ label_selector: labels, state })).toEqual([]);
    expect(await ids({ pod_sandbox_id: podId })).toContain(id);
    expect((await daemon.status(id.slice(0, 12))).id).toBe(id);
    await daemon.client.RemoveContainer({ container_id: id });
  });
});

describe("stop", () => {
  const stop = (container_id: string, timeoutS: number) =>
    daemon.client.StopContainer({ container_id, timeout: toLong(timeoutS) });
  const script = (name: string) =>
    `trap 'echo got ${name}; exit 5' ${name}; echo up; sleep 600 & wait`;

  async function started(command: string, more: ContainerConfig = {}): Promise<string> {
    const id = await daemon.run(podId, pod, command, more);
    await daemon.logged(id, "up");
    return id;
  }

  test("sends TERM and reports the program's exit code", async () => {
    const id = await started(script("TERM"));
    await stop(id, 60);
    expect((await daemon.status(id)).exit_code).toBe(5);
  });

  test("sends the image's stop signal, or the container's", async () => {
    const name = "example.test/usr1:1";
    await daemon.loadImage(busyboxImage({ StopSignal: "SIGUSR1" }), name);
    const image = { image: { image: name } };
    const first = await started(script("USR1"), image);
    await stop(first, 60);
    expect((await daemon.status(first)).exit_code).toBe(5);
    const stop_signal = runtime.v1.Signal.SIGNAL_SIGUSR2;
    const second = await started(script("USR2"), { ...image, stop_signal });
    await stop(second, 60);
    expect((await daemon.status(second)).exit_code).toBe(5);
  });

  test("kills after the timeout, at once with timeout 0", async () => {
    const deaf = "trap '' TERM; echo up; while true; do sleep 1; done";
    const first = await started(deaf);
    const start = performance.now();
    await stop(first, 1);
    expect(performance.now() - start).toBeWithin(900, 9_000 * pace);
    expect((await daemon.status(first)).exit_code).toBe(137);
    const second = await started(deaf);
    const again = performance.now();
    await stop(second, 0);
    expect(performance.now() - again).toBeLessThan(9_000 * pace); // not after 10 s, the default of others
  });

  test("a timeout of a year is accepted", async () => {
    const id = await started(
      "trap 'sleep 0.5; exit 5' TERM; echo up; while true; do sleep 0.1; done",
    );
    await stop(id, 31_536_000);
    expect((await daemon.status(id)).exit_code).toBe(5);
  });

  test("a later call with a shorter timeout cuts the wait", async () => {
    const id = await started("trap '' TERM; echo up; while true; do sleep 1; done");
    const start = performance.now();
    const long = stop(id, 60);
    await Bun.sleep(300);
    await stop(id, 0);
    await long;
    expect(performance.now() - start).toBeLessThan(50_000);
  });

  test("ends every process of the container", async () => {
    const id = await started("sleep 31337 & setsid sleep 31338 & echo up; wait");
    await stop(id, 0);
    const left = new TextDecoder().decode(Bun.spawnSync(["ps", "-eo", "args"]).stdout);
    expect(left).not.toMatch(/^sleep 3133[78]$/m);
  });

  test("of a container that never started succeeds", async () => {
    const id = await daemon.create(podId, pod, "true");
    await stop(id, 0);
    const { state } = await daemon.status(id);
    expect([ContainerState.CONTAINER_CREATED, ContainerState.CONTAINER_EXITED]).toContain(state);
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("remove of a running container ends it first", async () => {
    const before = daemon.snapshot();
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    await daemon.client.RemoveContainer({ container_id: id });
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

describe("what it finds inside", () => {
  test("command, args, entrypoint and cmd combine as in Kubernetes", async () => {
    const name = "example.test/entry:1";
    const settings = { Entrypoint: ["echo", "entry"], Cmd: ["cmd"] };
    await daemon.loadImage(busyboxImage(settings), name);
    const image = { image: name };
    const text = async (command: string[], args: string[]) => {
      const id = await daemon.run(podId, pod, command, { image, args });
      const { status } = await daemon.exited(id);
      return readFileSync(status.log_path!, "utf8").split(" ").slice(3).join(" ");
    };
    expect(await text([], [])).toBe("entry cmd\n");
    expect(await text([], ["arg"])).toBe("entry arg\n");
    expect(await text(["echo", "own"], [])).toBe("own\n");
    expect(await text(["echo", "own"], ["arg"])).toBe("own arg\n");
  });

  test("environment, working folder, user and groups", async () => {
    const value = Buffer.from("grüße ✓");
    const { text } = await output('echo "$WORD"; pwd; id', {
      envs: [{ key: "WORD", value: value }],
      working_dir: "/tmp/made",
      linux: {
        security_context: {
          run_as_user: { value: toLong(1000) },
          supplemental_groups: [toLong(1234)],
        },
      },
    });
    const lines = text.split("\n");
    expect(lines.slice(0, 2)).toEqual(["grüße ✓", "/tmp/made"]);
    expect(lines[2]).toContain("uid=1000(user) gid=1000(user)");
    expect(lines[2]).toContain("1234");
    expect(lines[2]).toContain("50000(extra)");
  });

  test("mounts: writable and read-only, a folder and a file", async () => {
    const folder = join(daemon.dir, "volume");
    mkdirSync(folder);
    writeFileSync(join(folder, "file"), "from the host\n");
    const { text, status } = await output(
      "cat /file; echo made > /data/made; echo x > /ro/x || echo refused",
      {
        mounts: [
          { host_path: folder, container_path: "/data" },
          { host_path: folder, container_path: "/ro", readonly: true },
          { host_path: join(folder, "file"), container_path: "/file" },
        ],
      },
    );
    expect(text).toContain("from the host\n");
    expect(text).toContain("refused\n");
    expect(readFileSync(join(folder, "made"), "utf8")).toBe("made\n");
    expect(existsSync(join(folder, "x"))).toBe(false);
    expect(status.mounts!.map((mount) => [mount.container_path, mount.readonly])).toEqual([
      ["/data", false],
      ["/ro", true],
      ["/file", false],
    ]);
  });

  test("a read-only root stays so, and each container has its own", async () => {
    expect((await output("echo x > /seen; cat /seen")).text).toBe("x\n");
    expect((await output("cat /seen")).exitCode).toBe(1);
    const linux = { security_context: { readonly_rootfs: true } };
    expect((await output("echo x > /seen", { linux })).exitCode).not.toBe(0);
  });

  test("capabilities: the usual ones, none, or all", async () => {
    const effective = async (security_context: object) => {
      const { text } = await output("grep CapEff /proc/self/status", {
        linux: { security_context },
      });
      return text.split(/\s+/)[1]!;
    };
    expect(await effective({})).toBe("00000000a80425fb");
    expect(await effective({ capabilities: { drop_capabilities: ["ALL"] } })).toMatch(/^0+$/);
    const added = await effective({ capabilities: { add_capabilities: ["NET_ADMIN"] } });
    expect(BigInt(`0x${added}`) & (1n << 12n)).not.toBe(0n);
  });

  test("limits are set in the cgroup, and exceeding the memory limit is OOMKilled", async () => {
    const resources = { memory_limit_in_bytes: toLong(16 << 20), cpu_shares: toLong(512) };
    const swap = { memory_swap_limit_in_bytes: toLong(16 << 20) };
    const more = { linux: { resources: { ...resources, ...swap } } };
    expect(await output("exec tail -c 64m /dev/zero", more)).toMatchObject({
      exitCode: 137,
      reason: "OOMKilled",
    });
  });

  test("standard input is empty unless asked for", async () => {
    expect((await output("cat; echo end")).text).toBe("end\n");
  });

  test("masked and read-only paths, and no new devices", async () => {
    const security_context = { masked_paths: ["/proc/cpuinfo"], readonly_paths: ["/proc/sys"] };
    const { text } = await output(
      "cat /proc/cpuinfo | wc -c; { echo 0 > /proc/sys/kernel/shm_rmid_forced; } 2>/dev/null || echo no; ls /dev",
      { linux: { security_context } },
    );
    expect(text).toStartWith("0\nno\n");
    expect(text.split("\n")).toContain("null");
    expect(text.split("\n")).not.toContain("mem");
  });
});
