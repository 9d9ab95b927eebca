// Tests the daemon process: its socket, its start and exit, and its version and status calls.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { runtime } from "../../src/proto/messages.js";
import { failure, pace, until } from "../expect.ts";
import {
  cgroupDriver,
  type Daemon,
  Daemon as DaemonClass,
  executable,
  startDaemon,
} from "../harness.ts";
import { wholeLines } from "../whole_lines.ts";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

async function condition(type: string) {
  const { status } = await daemon.client.Status({});
  return status!.conditions!.find((one) => one.type === type)!;
}

describe("what it says about itself", () => {
  test("--version prints version, commit and Bun's version", () => {
    const { stdout, status } = spawnSync(executable, ["--version"], { encoding: "utf8" });
    expect(status).toBe(0);
    expect(stdout).toMatch(/\d+\.\d+\.\d+/);
    expect(stdout).toMatch(/[0-9a-f]{12}/);
    expect(stdout.toLowerCase()).toContain("bun");
  });

  test("licenses names what is bundled", () => {
    const { stdout, status } = spawnSync(executable, ["licenses"], {
      encoding: "utf8",
      maxBuffer: 1 << 26,
    });
    expect(status).toBe(0);
    for (const name of ["@grpc/grpc-js", "protobufjs", "valibot", "citty"]) {
      expect(stdout).toContain(name);
    }
  });

  test("Version answers as a CRI v1 runtime", async () => {
    const version = await daemon.client.Version({});
    expect(version.runtime_name).toMatch(/isulad/);
    expect(version.runtime_version).toMatch(/^\d+\.\d+\.\d+/);
    expect(version.runtime_api_version).toBe("v1");
  });

  test("Status is ready, and names the default handler and each configured one", async () => {
    expect(await condition("RuntimeReady")).toMatchObject({ status: true });
    expect(await condition("NetworkReady")).toMatchObject({ status: true });
    const { runtime_handlers } = await daemon.client.Status({ verbose: true });
    const names = runtime_handlers.map((one) => one.name ?? "");
    expect(names).toContain("");
    expect(names).toContain("runc");
  });

  test("RuntimeConfig names the cgroup driver", async () => {
    const { linux } = await daemon.client.RuntimeConfig({});
    const { CgroupDriver } = runtime.v1;
    const wanted = cgroupDriver === "systemd" ? CgroupDriver.SYSTEMD : CgroupDriver.CGROUPFS;
    expect(linux?.cgroup_driver).toBe(wanted);
  });

  test("NetworkReady follows the CNI folder, and a broken list does not replace a valid one", async () => {
    rmSync(join(daemon.cniDir, "10-test.conflist"));
    await until("the network is not ready", async () => !(await condition("NetworkReady")).status);
    expect((await condition("NetworkReady")).reason).toBe("NetworkPluginNotReady");
    daemon.writeNetwork();
    await until(
      "the network is ready",
      async () => (await condition("NetworkReady")).status === true,
    );
    writeFileSync(join(daemon.cniDir, "10-test.conflist"), '{"cniVersion": "1.0.0", "name": ');
    await sleep(500);
    expect((await condition("NetworkReady")).status).toBe(true);
    daemon.writeNetwork();
  });

  test("an RPC without a handler returns UNIMPLEMENTED, with the reason", async () => {
    for (const name of ["CheckpointPod", "RestorePod"] as const) {
      const { code, message } = await failure(daemon.client[name]({}));
      expect(code).toBe("UNIMPLEMENTED");
      expect(message).toMatch(new RegExp(`^isulad-ts has no ${name}: no OCI runtime`));
    }
  });
});

describe("its socket", () => {
  test("belongs to root alone, and to the group where one is given", async () => {
    expect(statSync(daemon.socket).mode & 0o777).toBe(0o600);
    await using grouped = await startDaemon({
      config: { group: "daemon" },
      network: false,
      image: false,
    });
    expect(statSync(grouped.socket).mode & 0o777).toBe(0o660);
    expect(statSync(grouped.socket).gid).toBe(1);
  });

  test("a stale one is replaced", async () => {
    await using second = new DaemonClass({ network: false, image: false });
    second.writeConfig();
    mkdirSync(second.cniDir);
    const script = `require("node:net").createServer().listen("${second.socket}", () => process.kill(process.pid, "SIGKILL"))`;
    spawnSync(process.execPath, ["-e", script]);
    expect(statSync(second.socket).isSocket()).toBe(true);
    await second.start();
    expect((await second.client.Version({})).runtime_api_version).toBe("v1");
  });

  test("a socket in use is refused, with its path", async () => {
    await using second = new DaemonClass({ network: false, image: false });
    second.writeConfig();
    mkdirSync(second.cniDir);
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(second.socket, resolve));
    try {
      expect((await second.start().catch(String)) as string).toContain(second.socket);
    } finally {
      server.close();
    }
  });

  test("a second daemon on the same folders is refused", () => {
    const done = spawnSync(executable, ["--config", daemon.configFile], {
      encoding: "utf8",
      timeout: 60_000,
    });
    expect(done.status).toBeGreaterThan(0);
    expect(done.stderr + done.stdout).toMatch(/isulad/i);
  });
});

describe("its start and end", () => {
  test("an unknown key stops the start with file, line, key and the nearest known one", () => {
    const file = join(daemon.dir, "wrong.json");
    writeFileSync(file, '{\n  "hosts": [],\n  "grpah": "/tmp/x"\n}\n');
    const done = spawnSync(executable, ["--config", file], { encoding: "utf8", timeout: 60_000 });
    expect(done.status).toBeGreaterThan(0);
    const text = done.stderr + done.stdout;
    expect(text).toContain(`${file}:3`);
    expect(text).toContain("grpah");
    expect(text).toContain("graph");
  });

  test("SIGTERM ends it at once and leaves containers running; the next start finds everything", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, "echo before; sleep 1; echo after; sleep 600");
    const { log_path } = await daemon.status(id);
    const images = await daemon.client.ListImages({});
    expect(await daemon.stop()).toBeLessThan(9_000 * pace); // its own deadline is 15 s
    expect(existsSync(daemon.socket)).toBe(false);
    await until("the log goes on", () => readFileSync(log_path, "utf8").includes("after"));
    await daemon.start();
    expect((await daemon.status(id)).state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    expect(status?.state).toBe(runtime.v1.PodSandboxState.SANDBOX_READY);
    expect((await daemon.client.ListImages({})).images).toEqual(images.images);
    await daemon.removePod(podId);
  });

  test("an exit without a daemon is reported by the next daemon, with code and time", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, "sleep 0.5; exit 7");
    await daemon.stop();
    await sleep(1200);
    await daemon.start();
    const { exitCode, reason, status } = await daemon.exited(id);
    expect({ exitCode, reason }).toEqual({ exitCode: 7, reason: "Error" });
    expect(status.finished_at!.toBigInt()).toBeGreaterThan(status.started_at!.toBigInt());
    await daemon.removePod(podId);
  });

  test("kill -9 loses nothing either", async () => {
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    await daemon.restart("SIGKILL");
    expect((await daemon.status(id)).state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
    expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
    await daemon.removePod(podId);
  });

  test("logs are JSON lines on request", async () => {
    await using second = await startDaemon({
      flags: ["--log-format", "json"],
      network: false,
      image: false,
    });
    const lines = wholeLines(second.logFile);
    expect(lines.length).toBeGreaterThan(0);
    for (const line of lines) expect(JSON.parse(line)).toBeObject();
  });
});
