// Tests `isulad-ts run` against a fake daemon: output, exit codes, signals, and removal of the pod.
import { afterAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { appendFileSync, chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { CriError } from "../../src/base/errors.ts";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import { fakeDaemon, type Handlers } from "./fake_daemon.ts";

const { CONTAINER_EXITED, CONTAINER_RUNNING } = runtime.v1.ContainerState;
const dir = mkdtempSync(join(tmpdir(), "isulad-run-"));
const socket = join(dir, "daemon.sock");
const main = join(import.meta.dirname, "cli_main.ts");
afterAll(() => rmSync(dir, { recursive: true }));

type World = {
  pods: Map<string, PodSandboxConfig>;
  container?: ContainerConfig;
  logPath: string;
  exitCode: number | undefined;
  reason: string;
};

/** One pod, one container; `act` is what the container does once it is started. */
function world(act: (w: World, write: (entry: string) => void) => void | Promise<void>) {
  const w: World = { pods: new Map(), logPath: "", exitCode: undefined, reason: "" };
  const handlers: Handlers = {
    ImageStatus: () => ({ image: { id: "sha256:1" } }),
    RunPodSandbox: ({ config }) => {
      w.pods.set("pod1", config!);
      return { pod_sandbox_id: "pod1" };
    },
    ListPodSandbox: () => ({ items: [...w.pods.keys()].map((id) => ({ id })) as never }),
    CreateContainer: ({ config, sandbox_config }) => {
      w.container = config!;
      w.logPath = join(sandbox_config!.log_directory!, config!.log_path!);
      return { container_id: "c1" };
    },
    StartContainer: () => {
      writeFileSync(w.logPath, "", { flag: "a", mode: 0o640 }); // as the daemon makes it
      void act(w, (entry) =>
        appendFileSync(w.logPath, `2026-11-21T14:28:00.123456789Z ${entry}\n`),
      );
      return {};
    },
    ContainerStatus: () => ({
      status: {
        id: "c1",
        state: w.exitCode === undefined ? CONTAINER_RUNNING : CONTAINER_EXITED,
        exit_code: w.exitCode ?? 0,
        reason: w.reason,
        log_path: w.logPath,
      },
    }),
    StopContainer: (request) => {
      if (toLong(0).equals(request.timeout!)) w.exitCode = 137;
      return {};
    },
    StopPodSandbox: () => ({}),
    RemovePodSandbox: ({ pod_sandbox_id }) => {
      w.pods.delete(pod_sandbox_id!);
      return {};
    },
  };
  return { w, handlers };
}

function isuladTs(host: string, ...words: string[]) {
  return Bun.spawn([process.execPath, main, ...words], {
    env: { ...process.env, ISULAD_HOST: host, NO_COLOR: "1" },
    stdout: "pipe",
    stderr: "pipe",
  });
}

async function resultOf(child: ReturnType<typeof isuladTs>) {
  const [stdout, stderr] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  return { code: await child.exited, stdout, stderr };
}

test("run shows both streams, joins partial lines, passes the exit code and removes the pod", async () => {
  const { w, handlers } = world(async (w, write) => {
    write("stdout F hello");
    write("stderr F oops");
    await Bun.sleep(50);
    write("stdout P one ");
    write("stdout F line");
    w.exitCode = 3;
  });
  await using daemon = await fakeDaemon(socket, handlers);
  const result = await resultOf(
    isuladTs(daemon.host, "run", "-e", "A=1", "busybox", "sh", "-c", "exit 3"),
  );
  expect(result).toEqual({ code: 3, stdout: "hello\none line\n", stderr: "oops\n" });
  expect(w.container?.args).toEqual(["sh", "-c", "exit 3"]);
  expect(
    w.container?.envs?.map(({ key, value }) => `${key}=${new TextDecoder().decode(value)}`),
  ).toEqual(["A=1"]);
  expect(w.pods.size).toBe(0);
  expect(existsSync(dirname(w.logPath))).toBe(false);
  expect(daemon.calls.slice(-3)).toEqual(["ListPodSandbox", "StopPodSandbox", "RemovePodSandbox"]);
});

const asUser = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
/** False for a clone below /root, for example. */
const userReachesProgram =
  process.getuid?.() === 0 &&
  [process.execPath, main].every(
    (file) => spawnSync(asUser[0]!, [...asUser.slice(1), "test", "-r", file]).status === 0,
  );

test.skipIf(!userReachesProgram)(
  "run shows its output to an ordinary user, who may call the daemon but not read root's files",
  async () => {
    const { w, handlers } = world((w, write) => {
      write("stdout F hello");
      w.exitCode = 0;
    });
    await using daemon = await fakeDaemon(socket, handlers);
    chmodSync(dir, 0o711);
    chmodSync(socket, 0o777);
    const child = Bun.spawn([...asUser, process.execPath, main, "run", "busybox"], {
      env: { ...process.env, ISULAD_HOST: daemon.host, HOME: "/nonexistent", TMPDIR: "/tmp" },
      stdout: "pipe",
      stderr: "pipe",
    });
    expect(await resultOf(child)).toEqual({ code: 0, stdout: "hello\n", stderr: "" });
    expect(existsSync(dirname(w.logPath))).toBe(false);
  },
);

test("run passes options after the image to the command, even --help", async () => {
  const { w, handlers } = world((w) => void (w.exitCode = 0));
  await using daemon = await fakeDaemon(socket, handlers);
  expect(
    (await resultOf(isuladTs(daemon.host, "run", "busybox", "ls", "--help", "-e", "x"))).code,
  ).toBe(0);
  expect(w.container?.args).toEqual(["ls", "--help", "-e", "x"]);
  expect(w.container?.envs).toEqual([]);
});

test("run takes the word behind a bundle of options for the value of its last one", async () => {
  const { w, handlers } = world(() => {});
  await using daemon = await fakeDaemon(socket, { ...handlers, StartContainer: () => ({}) });
  const words = "run -dp 8080:80 -v=/a:/b busybox true".split(" ");
  expect(await resultOf(isuladTs(daemon.host, ...words))).toEqual({
    code: 0,
    stdout: "c1\n",
    stderr: "",
  });
  expect(w.pods.get("pod1")?.port_mappings).toMatchObject([
    { host_port: 8080, container_port: 80 },
  ]);
  expect(w.container?.mounts).toMatchObject([{ host_path: "/a", container_path: "/b" }]);
  expect(w.container?.args).toEqual(["true"]);
});

test("run stops the container on SIGTERM, kills it on the second, and cleans up", async () => {
  const { w, handlers } = world((_w, write) => write("stdout F up"));
  await using daemon = await fakeDaemon(socket, handlers);
  const child = isuladTs(daemon.host, "run", "busybox");
  while (!daemon.calls.includes("ContainerStatus")) await Bun.sleep(5);
  await Bun.sleep(50);
  child.kill("SIGTERM");
  while (!daemon.calls.includes("StopContainer")) await Bun.sleep(5);
  child.kill("SIGTERM");
  expect((await resultOf(child)).code).toBe(143);
  expect(w.pods.size).toBe(0);
});

test.each(["SIGINT", "SIGHUP"] as const)(
  "a second %s ends a run whose daemon has ended, and names what is left",
  async (signal) => {
    const { handlers } = world((_w, write) => write("stdout F up"));
    const daemon = await fakeDaemon(socket, handlers);
    const child = isuladTs(daemon.host, "run", "busybox");
    using ended = new DisposableStack();
    ended.defer(() => child.kill("SIGKILL"));
    await child.stdout.getReader().read();
    await daemon[Symbol.asyncDispose]();
    child.kill(signal);
    let stderr = "";
    for await (const bytes of child.stderr) {
      const isSecond = !stderr.includes("interrupt again");
      stderr += new TextDecoder().decode(bytes);
      if (isSecond && stderr.includes("interrupt again")) child.kill(signal);
    }
    expect(await child.exited).toBe(signal === "SIGINT" ? 130 : 129);
    expect(stderr).toContain("isulad-ts: cannot stop container c1: ");
    expect(stderr).toContain("remove it with isulad-ts rmp --force");
  },
);

test("an interrupted run waits for a daemon that restarts, and stops the container", async () => {
  const { w, handlers } = world((_w, write) => write("stdout F up"));
  const before = await fakeDaemon(socket, handlers);
  const child = isuladTs(before.host, "run", "busybox");
  await child.stdout.getReader().read();
  await before[Symbol.asyncDispose]();
  child.kill("SIGTERM");
  await Bun.sleep(500);
  await using daemon = await fakeDaemon(socket, {
    ...handlers,
    StopContainer: () => {
      w.exitCode = 0;
      return {};
    },
  });
  expect(await child.exited).toBe(143);
  expect(daemon.calls).toContain("StopContainer");
  expect(w.pods.size).toBe(0);
});

test("an interrupted run waits for RunPodSandbox, and removes the pod", async () => {
  const { w, handlers } = world(() => {});
  const began = Promise.withResolvers<void>();
  await using daemon = await fakeDaemon(socket, {
    ...handlers,
    RunPodSandbox: async ({ config }) => {
      began.resolve();
      await Bun.sleep(2_000); // meanwhile the program gets the signal
      w.pods.set("pod1", config!);
      return { pod_sandbox_id: "pod1" };
    },
  });
  const child = isuladTs(daemon.host, "run", "busybox");
  await began.promise;
  child.kill("SIGINT");
  expect((await resultOf(child)).code).toBe(130);
  expect([w.pods.size, w.container]).toEqual([0, undefined]);
});

test("an interrupted run cancels its pull", async () => {
  const pulling = Promise.withResolvers<void>();
  const cancelled = Promise.withResolvers<void>();
  await using daemon = await fakeDaemon(socket, {
    ImageStatus: () => ({}),
    async *Pull(_request, signal) {
      yield { image: "docker.io/library/busybox:latest" };
      signal.addEventListener("abort", () => cancelled.resolve());
      pulling.resolve();
      await new Promise(() => {});
    },
  });
  const child = isuladTs(daemon.host, "run", "busybox");
  await pulling.promise;
  child.kill("SIGINT");
  expect((await resultOf(child)).code).toBe(130);
  await cancelled.promise;
  expect(daemon.calls).toEqual(["ImageStatus", "Pull"]);
});

test("run exits with 125 for failures of isulad-ts, 126 and 127 for commands that do not start", async () => {
  const { w, handlers } = world(() => {});
  const failing = (message: string): Handlers => ({
    ...handlers,
    StartContainer: () => {
      throw new CriError("UNKNOWN", message);
    },
  });
  const cases: [string, number][] = [
    ['runc: exec: "nosuch": executable file not found in $PATH', 127],
    ['runc: exec: "/etc": permission denied', 126],
    ["the monitor is gone", 125],
  ];
  for (const [message, code] of cases) {
    await using daemon = await fakeDaemon(socket, failing(message));
    const result = await resultOf(isuladTs(daemon.host, "run", "busybox", "nosuch"));
    expect(result).toEqual({ code, stdout: "", stderr: `isulad-ts: ${message}\n` });
    expect(w.pods.size).toBe(0);
  }
  const result = await resultOf(isuladTs("unix:///none", "run", "--volume", "nonsense", "busybox"));
  expect(result.code).toBe(125);
  expect(result.stderr).toContain('--volume "nonsense"');
});

test.each(["run -it busybox sh", "exec -it web sh"])(
  "%s without a terminal is refused, because sh would wait for ever",
  async (line) => {
    const result = await resultOf(isuladTs("unix:///none", ...line.split(" ")));
    expect(result.code).toBe(125);
    expect(result.stderr).toContain("leave out -t");
  },
);

test("run stops the container when the reader closes its output", async () => {
  const { w, handlers } = world(async (w, write) => {
    while (w.pods.size > 0) {
      write(`stdout F ${"y".repeat(10_000)}`);
      await Bun.sleep(1);
    }
  });
  await using daemon = await fakeDaemon(socket, handlers);
  const script = `${process.execPath} ${main} run busybox; echo $? >${dir}/code`;
  const shell = Bun.spawn(["sh", "-c", `( ${script} ) | head -c 5`], {
    env: { ...process.env, ISULAD_HOST: daemon.host },
  });
  expect(await shell.stdout.text()).toBe("yyyyy");
  await shell.exited;
  expect(await Bun.file(join(dir, "code")).text()).toBe("141\n");
  expect(w.pods.size).toBe(0);
});
