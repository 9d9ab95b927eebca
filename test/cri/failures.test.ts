// Tests failures of CNI plugins, OCI runtimes and the monitor: the caller gets the error, and nothing leaks.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { runtime } from "../../src/proto/messages.js";
import { failure, until } from "../expect.ts";
import { type Daemon, ociRuntime, startDaemon } from "../harness.ts";

let daemon: Daemon;
/** Writes the text of its file "says" into the pid file after each call of its file "verb". */
const liar = mkdtempSync(join(tmpdir(), "isulad-liar-"));
writeFileSync(
  join(liar, "runtime"),
  `#!/bin/sh
for word; do
  [ "$last" = --pid-file ] && file=$word
  case $word in create|exec) verb=$word;; esac
  last=$word
done
${ociRuntime} "$@" || exit
[ "$verb" != "$(cat ${liar}/verb)" ] || cat ${liar}/says >"$file"
`,
  { mode: 0o755 },
);
let plugins: string;
beforeAll(async () => {
  daemon = await startDaemon({
    network: false,
    config: {
      runtimes: {
        broken: { path: "/bin/false" },
        absent: { path: "/no/such/runtime" },
        liar: { path: join(liar, "runtime") },
      },
    },
  });
  plugins = join(daemon.dir, "plugins");
  mkdirSync(plugins);
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  rmSync(liar, { recursive: true });
});

/** A CNI plugin as a shell script, next to the real ones. */
function writePlugin(name: string, script: string): void {
  const file = join(plugins, name);
  writeFileSync(file, `#!/bin/sh\n${script}\n`);
  chmodSync(file, 0o755);
}

describe("CNI", () => {
  test("without a CNI list a pod is refused with the reason, but a pod in the host's network runs", async () => {
    const before = daemon.snapshot();
    const error = await failure(daemon.runPod(daemon.podConfig()));
    expect(error.message).toContain(daemon.cniDir);
    expect(await daemon.leaksSince(before)).toEqual([]);
    await daemon.removePod(await daemon.runPod(daemon.hostPodConfig()));
  });

  test("a plugin that fails after another succeeded: its message, and the first one is rolled back", async () => {
    await using own = await startDaemon({
      network: false,
      config: { "cni-bin-dir": plugins },
    });
    for (const name of ["bridge", "host-local", "loopback"]) {
      writePlugin(name, `exec /usr/lib/cni/${name}`);
    }
    writePlugin(
      "failing",
      `[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion":"1.0.0","code":42,"msg":"the cable is out","details":"unplugged"}'; exit 1`,
    );
    own.writeNetwork();
    const file = join(own.cniDir, "10-test.conflist");
    const list = JSON.parse(readFileSync(file, "utf8")) as { plugins: { type: string }[] };
    list.plugins[1] = { type: "failing" };
    writeFileSync(file, JSON.stringify(list));
    await networkReady(own);
    const before = own.snapshot();
    const error = await failure(own.runPod(own.podConfig()));
    expect(error.message).toContain("the cable is out");
    expect(error.message).toContain("failing");
    expect(await own.leaksSince(before)).toEqual([]);
    expect((await own.client.ListPodSandbox({})).items).toEqual([]);
  });

  test("a plugin that hangs is killed at its deadline, with its name and time in the error", async () => {
    await using own = await startDaemon({
      network: false,
      config: { "cni-bin-dir": plugins },
      flags: ["--cni-timeout", "5"],
    });
    writePlugin("hanging", '[ "$CNI_COMMAND" = ADD ] || exit 0; sleep 300');
    writePlugin("loopback", "exec /usr/lib/cni/loopback");
    const conf = { cniVersion: "1.0.0", name: own.token, plugins: [{ type: "hanging" }] };
    writeFileSync(join(own.cniDir, "1.conflist"), JSON.stringify(conf));
    await networkReady(own);
    const before = own.snapshot();
    const start = performance.now();
    const error = await failure(own.runPod(own.podConfig()));
    expect(performance.now() - start).toBeWithin(4900, 60_000);
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(error.message).toContain("hanging");
    expect(await own.leaksSince(before)).toEqual([]);
  });
});

async function networkReady(own: Daemon): Promise<void> {
  const what = () => `the network is ready:\n${own.log.slice(-2000)}`;
  await until(what, async () => {
    const { status } = await own.client.Status({});
    return status?.conditions?.find((one) => one.type === "NetworkReady")?.status === true;
  });
}

describe("the OCI runtime", () => {
  test.each(["broken", "absent"])("%s: the container says why, and nothing stays", async (name) => {
    const before = daemon.snapshot();
    const pod = daemon.hostPodConfig();
    const call = (async () => {
      const podId = await daemon.runPod(pod, name);
      try {
        const id = await daemon.create(podId, pod, "true");
        await daemon.client.StartContainer({ container_id: id });
      } finally {
        await daemon.removePod(podId);
      }
    })();
    expect((await failure(call)).message).toContain(
      name === "broken" ? "false" : "/no/such/runtime",
    );
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test.each([
    ["create", "another process"],
    ["create", "nonsense"],
    ["create", ""],
    ["exec", "another process"],
    ["exec", ""],
  ])(
    "that tells of another process than its own after %s (%j): nobody signals that one",
    async (verb, says) => {
      const before = daemon.snapshot();
      const other = spawn("sleep", ["600"]);
      const otherEnded = new Promise((resolve) => other.once("exit", resolve));
      const call = async () => {
        writeFileSync(join(liar, "verb"), verb);
        writeFileSync(join(liar, "says"), says === "another process" ? String(other.pid) : says);
        const pod = daemon.hostPodConfig();
        const podId = await daemon.runPod(pod, "liar");
        try {
          const id = await daemon.run(podId, pod, ["sleep", "600"]);
          await daemon.exec(id, ["sleep", "600"]);
        } finally {
          await daemon.removePod(podId);
        }
      };
      const error = await failure(call());
      expect(error.message).toContain("the runtime reported success, but started no process");
      expect(await Promise.race([otherEnded, sleep(300, "alive")])).toBe("alive");
      other.kill();
      await otherEnded;
      expect(await daemon.leaksSince(before)).toEqual([]);
    },
  );
});

describe("the monitor", () => {
  test("killed under running containers: they keep running, and another monitor replaces it", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const script = "i=0; while true; do i=$((i+1)); echo $i; sleep 0.05; done";
    const id = await daemon.run(podId, pod, script);
    const [monitor] = daemon.monitors();
    process.kill(monitor!, "SIGKILL");
    await until("another monitor is there", () => {
      const found = daemon.monitors();
      return found.length === 1 && found[0] !== monitor;
    });
    expect((await daemon.status(id)).state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
    expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
    const { log_path } = await daemon.status(id);
    const seen = readFileSync(log_path, "utf8").length;
    await until("the log grows", () => readFileSync(log_path, "utf8").length > seen);
    await daemon.client.StopContainer({ container_id: id });
    expect((await daemon.status(id)).state).toBe(runtime.v1.ContainerState.CONTAINER_EXITED);
    await daemon.removePod(podId);
  });
});

describe("records", () => {
  test("an unreadable record is set aside and reported, and the daemon starts", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const good = await daemon.runPod(daemon.hostPodConfig());
    await daemon.stop();
    const folder = join(daemon.dir, "graph/sandboxes", podId);
    for (const file of new Bun.Glob("*.json").scanSync(folder)) {
      writeFileSync(join(folder, file), '{"version": 1, "id": ');
    }
    await daemon.start();
    const { items } = await daemon.client.ListPodSandbox({});
    expect(items.map((one) => one.id)).toContain(good);
    expect(daemon.log).toContain(podId);
    await daemon.removePod(good);
    rmSync(folder, { recursive: true, force: true });
  });

  test("a graph folder that another program filled is refused", async () => {
    const other = join(daemon.dir, "foreign");
    mkdirSync(join(other, "engines"), { recursive: true });
    mkdirSync(join(other, "storage"), { recursive: true });
    const argv = ["--config", daemon.configFile, "--graph", other, "--state", join(other, "s")];
    const done = Bun.spawnSync([process.env["ISULAD_BIN"] ?? "dist/isulad-ts", ...argv], {
      cwd: join(import.meta.dirname, "../.."),
      timeout: 60_000,
    });
    expect(done.exitCode).toBeGreaterThan(0);
    expect(done.stderr.toString() + done.stdout.toString()).toContain(other);
  });
});

test("the log names pod and container of each step, and of an exec no argument", async () => {
  const pod = daemon.hostPodConfig({ metadata: { name: "named", uid: "n", namespace: "shop" } });
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, "sleep 600", { metadata: { name: "app" } });
  expect((await daemon.exec(id, ["echo", "tell-nobody"])).exitCode).toBe(0);
  await daemon.client.Exec({ container_id: id, cmd: ["true", "tell-nobody"], stdout: true });
  await daemon.removePod(podId);
  await failure(daemon.client.PullImage({ image: { image: "127.0.0.1:1/none:none" } }));
  const lines = daemon.log.split("\n");
  const line = (text: string) =>
    lines.find((one) => one.includes(text) && one.includes("shop/named"));
  for (const event of ["created", "started", "exited", "removed"]) {
    expect(line(`container ${event} pod=shop/named container=app id=${id}`)).toBeDefined();
  }
  for (const event of ["ready", "stopped", "removed"]) {
    expect(line(`sandbox ${event} pod=shop/named sandbox=${podId}`)).toBeDefined();
  }
  const subject = `pod=shop/named container=app id=${id}`;
  expect(line("exec ended ")).toContain(`${subject} program=echo arguments=1 exitCode=0 ms=`);
  expect(line("exec with streams ")).toContain(`${subject} program=true arguments=1 tty=false`);
  expect(daemon.log).not.toContain("tell-nobody");
  const pull = lines.filter((one) => one.includes("image pull ") && one.includes("none:none"));
  expect(pull).toEqual([
    expect.stringContaining("INFO  image: image pull begins image=127.0.0.1:1/none:none"),
    expect.stringMatching(/image pull failed .*code=UNAVAILABLE bytes=0 seconds=\d/),
  ]);
});
