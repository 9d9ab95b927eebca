// Tests the commands of the CLI against a real daemon.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import process from "node:process";
import { testMs, until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { busyboxImage, makeImage, makeLayer, ociArchive } from "../image_maker.ts";
import { freePort, type Registry, startRegistry } from "../registry.ts";

let daemon: Daemon;
let registry: Registry;
let tmp: string;
beforeAll(async () => {
  registry = await startRegistry();
  const data = randomBytes(3_000_000);
  const tool = makeImage([...busyboxImage().layers, makeLayer([{ name: "data", data }])]);
  await registry.push("library/tool", "1", tool);
  daemon = await startDaemon({ config: { "insecure-registries": [registry.host] } });
  tmp = join(daemon.dir, "tmp");
  mkdirSync(tmp);
  isuladTs("run", "busybox", "true"); // The monitor and its folders are there from now on.
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
});

function environment(): NodeJS.ProcessEnv {
  return { ...process.env, TMPDIR: tmp, ISULAD_HOST: `unix://${daemon.socket}` };
}

function isuladTs(...words: string[]) {
  const options = { env: environment(), encoding: "utf8", maxBuffer: 2 ** 28 } as const;
  const { status, stdout, stderr } = spawnSync(executable, words, options);
  return { code: status, stdout, stderr };
}

/** Started in the background: what it has written so far, and its end. */
function background(...words: string[]) {
  const child = spawn(executable, words, { env: environment() });
  const seen = { stdout: "", stderr: "" };
  child.stdout.on("data", (bytes: Buffer) => (seen.stdout += bytes.toString()));
  child.stderr.on("data", (bytes: Buffer) => (seen.stderr += bytes.toString()));
  const code = new Promise<number | null>((resolve) => child.once("close", resolve));
  return { child, seen, code };
}

test("the socket may stand before the command; without one the daemon has such flags", () => {
  const socket = `unix://${daemon.socket}`;
  const run = (...words: string[]) => {
    const env = { ...environment(), ISULAD_HOST: "unix:///nowhere" };
    return spawnSync(executable, words, { env, encoding: "utf8" });
  };
  expect(run("-H", socket, "ps", "-q").status).toBe(0);
  const { status, stdout } = run(`--host=${socket}`, "-o", "json", "pods");
  expect({ status, pods: JSON.parse(stdout).items }).toEqual({ status: 0, pods: [] });
  const mistaken = run("--graph", "/x", "ps");
  expect(mistaken.status).toBe(2);
  expect(mistaken.stderr).toContain("stand behind it: see isulad-ts ps --help");
});

test("run shows the output, passes the exit code and leaves nothing", async () => {
  const before = daemon.snapshot();
  const script = "echo out; echo err >&2; hostname; exit 3";
  expect(isuladTs("run", "--name", "me", "busybox", "sh", "-c", script)).toEqual({
    code: 3,
    stdout: "out\nme\n",
    stderr: "err\n",
  });
  expect(readdirSync(tmp)).toEqual([]);
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("run takes variables, volumes, a working directory and the host's network", () => {
  writeFileSync(join(daemon.dir, "given"), "from the host\n");
  const words = ["-e", "A=1 2", "--env=B=", "-v", `${daemon.dir}:/host:ro`, "-w", "/host"];
  const script = 'echo "$A,$B,"; cat given; touch /host/new 2>/dev/null || echo read-only; pwd';
  const result = isuladTs("run", ...words, "--host-network", "busybox", "sh", "-c", script);
  expect(result).toEqual({
    code: 0,
    stdout: "1 2,,\nfrom the host\nread-only\n/host\n",
    stderr: "",
  });
});

/** Returns what a server sends; "" without one. The client ends last: before that, nc would end without a word. */
async function received(host: string, port: number): Promise<string> {
  const socket = connect(port, host).setTimeout(20_000, () => socket.destroy());
  const chunks: Buffer[] = [];
  try {
    for await (const chunk of socket) chunks.push(chunk as Buffer);
  } catch {
    return "";
  }
  return Buffer.concat(chunks).toString();
}

test("run publishes a port of the pod", async () => {
  const port = await freePort();
  const server = ["sh", "-c", "echo hello | nc -l -p 80; echo served"];
  const { seen, code } = background("run", "-p", `${port}:80`, "busybox", ...server);
  const address = `${daemon.subnet}.1`; // The bridge: not loopback, which needs route_localnet.
  await until("the pod's bridge is there", () => existsSync(`/sys/class/net/${daemon.bridge}`));
  await until("the server answers", async () => (await received(address, port)) === "hello\n");
  expect(await code).toBe(0);
  expect(seen.stdout).toBe("served\n");
});

test("run prints large output completely, with whole lines", () => {
  const script = "seq 1 200000; head -c 100000 /dev/zero | tr '\\0' x; echo; printf end";
  const { code, stdout } = isuladTs("run", "busybox", "sh", "-c", script);
  const lines = stdout.split("\n");
  expect(code).toBe(0);
  expect(lines.slice(0, 200_000).every((line, i) => line === String(i + 1))).toBe(true);
  expect(lines.slice(200_000)).toEqual(["x".repeat(100_000), "end"]);
});

test("run exits with 127 or 126 for commands that cannot start, and with 125 for missing images", async () => {
  const before = daemon.snapshot();
  expect(isuladTs("run", "busybox", "nosuch")).toMatchObject({ code: 127, stdout: "" });
  expect(isuladTs("run", "busybox", "/etc")).toMatchObject({ code: 126, stdout: "" });
  const missing = isuladTs("run", `${registry.host}/library/none:1`);
  expect(missing.code).toBe(125);
  expect(missing.stderr).toContain("library/none");
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("run forwards SIGTERM and exits with the container's code; a second SIGTERM ends it at once", async () => {
  const before = daemon.snapshot();
  const polite = background(
    "run",
    "busybox",
    "sh",
    "-c",
    "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done",
  );
  await until("it is up", () => polite.seen.stdout === "up\n");
  polite.child.kill("SIGTERM");
  expect(await polite.code).toBe(143);
  expect(polite.seen.stdout).toBe("up\nbye\n");

  // After 10 s the first signal alone would end it; on a loaded machine one quick end of several will do.
  let tookMs = Infinity;
  for (let tries = 0; tries < 3 && tookMs >= 9_000; tries++) {
    const script = "trap '' TERM; echo up; while :; do sleep 1; done";
    const deaf = background("run", "busybox", "sh", "-c", script);
    await until("it is up", () => deaf.seen.stdout === "up\n");
    const startMs = Date.now();
    deaf.child.kill("SIGINT");
    await until("a second signal is asked for", () => deaf.seen.stderr.includes("interrupt again"));
    deaf.child.kill("SIGINT");
    expect(await deaf.code).toBe(130);
    tookMs = Date.now() - startMs;
  }
  expect(tookMs).toBeLessThan(9_000);
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("run continues across a restart of the daemon", async () => {
  const script = "echo one; sleep 3; echo two; exit 5";
  const { seen, code } = background("run", "busybox", "sh", "-c", script);
  await until("its first line is there", () => seen.stdout.startsWith("one\n"));
  await daemon.restart();
  expect(await code).toBe(5);
  expect(seen.stdout).toBe("one\ntwo\n");
});

test("pull and load report each layer, or nothing with --quiet", () => {
  const name = `${registry.host}/library/tool:1`;
  const result = isuladTs("pull", name);
  expect(result).toMatchObject({ code: 0 });
  expect(result.stderr).toMatch(
    new RegExp(
      `^Pulling ${name}\n(?:[0-9a-f]{12}: (?:[\\d.]+[kM]?B(?:, done)?|already present)\n)+$`,
    ),
  );
  expect(result.stderr).toMatch(/^[0-9a-f]{12}: 3\.\d+MB, done$/m);
  expect(result.stderr).toMatch(/^[0-9a-f]{12}: already present$/m); // busybox's
  expect(result.stdout).toMatch(/^Image is up to date for sha256:[0-9a-f]{64}\n$/);
  expect(isuladTs("images", name).stdout).toMatch(/library\/tool +1 +[0-9a-f]{13} +\d/);
  const quiet = isuladTs("pull", "--quiet", name);
  expect(quiet).toMatchObject({ code: 0, stderr: "" });
  expect(quiet.stdout).toMatch(/^sha256:[0-9a-f]{64}\n$/);

  const loaded = makeImage(busyboxImage().layers, { Entrypoint: ["echo", "says"] });
  const archive = join(daemon.dir, "image.tar");
  writeFileSync(archive, ociArchive([{ image: loaded, name: "docker.io/me/loaded:2" }]));
  const load = isuladTs("load", archive);
  expect(load.stdout).toBe("Loaded image: docker.io/me/loaded:2\n");
  expect(load.stderr).toMatch(/^Loading \S+\n[0-9a-f]{12}: already present\n$/);
  expect(isuladTs("run", "me/loaded:2", "hi").stdout).toBe("says hi\n");
});

test("a terminal sees a line for each layer, which goes at the end", () => {
  const name = `${registry.host}/library/tool:1`;
  isuladTs("pull", "--quiet", name);
  // A pull of so little may be over before its layers are drawn: then once more.
  const onTerminal = (columns: number): string => {
    const line = `stty cols ${columns} rows 24; ${executable} pull ${name}`;
    for (let left = 20; left > 0; left--) {
      expect(isuladTs("rmi", name).code).toBe(0);
      const { stdout } = spawnSync("script", ["-qec", line, "/dev/null"], { env: environment() });
      const text = stdout.toString().replaceAll("\r\n", "\n").replaceAll("\u001B[K", "");
      if (/^[0-9a-f]{12} /m.test(text)) return text;
    }
    throw new Error("no layer was ever drawn");
  };
  // Each screen goes up by as many lines as the one before it has, and clears what is below its own.
  const screens = onTerminal(80).split("\u001B[J");
  const whole = /\rPulling \S+\n([0-9a-f]{12} .*\n){2}$/;
  const next = screens.findIndex((screen) => whole.test(screen)) + 1;
  expect(next).toBeGreaterThan(0);
  expect(screens[next]).toStartWith("\u001B[3A\r");
  expect(screens.at(-1)).toMatch(/^Image is up to date for sha256:[0-9a-f]{64}\n$/);
  const lines = onTerminal(30).split(/\n|\r/);
  const narrow = lines.filter((text) => /^(?:Pulling|[0-9a-f]{12})/.test(text));
  expect(narrow.length).toBeGreaterThan(1);
  for (const text of narrow) expect(text.length).toBeLessThan(30);
});

test("logs follows a container to its end; exec, stop and rm work", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const script =
    "for i in 1 2 3; do echo line $i; done; until [ -e /tmp/go ]; do sleep 0.1; done; echo end";
  const id = await daemon.run(podId, pod, script, { metadata: { name: "app", attempt: 0 } });
  const follower = background("logs", "-f", "--tail", "2", id.slice(0, 12));
  await until("the last lines are there", () => follower.seen.stdout === "line 2\nline 3\n");
  expect(isuladTs("exec", id, "sh", "-c", "mkdir -p /tmp; echo ok; exit 9")).toEqual({
    code: 9,
    stdout: "ok\n",
    stderr: "",
  });
  isuladTs("exec", id, "touch", "/tmp/go"); // the container ends, perhaps before this exec
  expect(await follower.code).toBe(0);
  expect(follower.seen.stdout).toBe("line 2\nline 3\nend\n");
  expect(isuladTs("exec", id, "true").code).toBe(125);
  expect(isuladTs("ps", "-a", "--pod", podId).stdout).toMatch(/Exited +app +0 +/);
  expect(JSON.parse(isuladTs("inspect", id).stdout).status).toMatchObject({
    state: "CONTAINER_EXITED",
    exitCode: 0,
    reason: "Completed",
  });
  expect(
    JSON.parse(isuladTs("inspectp", podId).stdout).info.networkSettings.SandboxKey,
  ).toStartWith("/var/run/netns/");
  expect(isuladTs("rm", id)).toEqual({ code: 0, stdout: `${id}\n`, stderr: "" });
  expect(isuladTs("rmp", podId)).toMatchObject({ code: 1, stdout: "" });
  expect(isuladTs("rmp", "--force", podId).code).toBe(0);
  expect(isuladTs("pods", "-q").stdout).toBe("");
});

test(
  "a command that exits before its start returns is no failure",
  async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const codes: number[] = [];
    const runs = async () => {
      for (let i = 0; i < 10; i++) {
        codes.push((await daemon.exited(await daemon.run(podId, pod, ["true"]))).exitCode);
      }
    };
    await Promise.all([runs(), runs(), runs()]);
    expect(codes).toEqual(Array.from({ length: 30 }, () => 0));
    await daemon.removePod(podId);
  },
  testMs(180_000),
);

test("runp, create, start and update take crictl's files; ps and inspect choose by label", async () => {
  const podFile = join(tmp, "pod.yaml");
  const metadata = "metadata: {name: steps, namespace: test, uid: u1}";
  const pod = `${metadata}\nlog_directory: ${tmp}\nlinux: {security_context: {namespace_options: {network: NODE}}}\n`;
  writeFileSync(podFile, pod);
  const file = join(tmp, "container.json");
  const command = ["sh", "-c", "echo out; echo err >&2; sleep 100"];
  const config = { metadata: { name: "app" }, image: { image: "busybox" }, command };
  writeFileSync(file, JSON.stringify({ ...config, labels: { step: "1" }, log_path: "app.log" }));
  const podId = isuladTs("runp", podFile).stdout.trim();
  expect(podId).toMatch(/^[0-9a-f]{64}$/);
  const id = isuladTs("create", "test/steps", file, podFile).stdout.trim();
  expect(isuladTs("start", "test/steps/app")).toEqual({
    code: 0,
    stdout: "test/steps/app\n",
    stderr: "",
  });
  expect(isuladTs("update", "--memory", "64000000", "steps").code).toBe(0);
  const template = [
    "-o",
    "go-template",
    "--template",
    "{{.status.resources.linux.memoryLimitInBytes}}",
  ];
  expect(isuladTs("inspect", "--label", "step=1", ...template).stdout).toBe("64000000\n");
  expect(isuladTs("ps", "-q", "--namespace", "test", "--image", "busybox").stdout).toBe(`${id}\n`);
  expect(isuladTs("logs", "--stream", "stderr", "test/steps/app").stdout).toBe("");
  await daemon.logged(id, "out");
  const part = ["--stream", "stdout", "--limit-bytes", "2", "--since", "1h"];
  expect(isuladTs("logs", ...part, "test/steps/app").stdout).toBe("ou");
  expect(isuladTs("logs", "--previous", "test/steps/app").stderr).toContain(
    "has no earlier attempt",
  );
  expect(isuladTs("runtime-config", "-o", "yaml").stdout).toMatch(
    /cgroupDriver: (CGROUPFS|SYSTEMD)/,
  );
  expect(isuladTs("imagefsinfo").stdout).toContain("imageFilesystems");
  expect(isuladTs("rmp", "-f", "test/steps").code).toBe(0);
});

test("run -d leaves a pod, which top, kill and wait reach by its name", async () => {
  const limits = ["--memory", "64m", "--cpus", "0.5", "--user", "1000:2000"];
  const names = ["--name", "left", "--label", "a=b", "--annotation", "c=d"];
  const words = ["run", "-d", ...limits, ...names, "--entrypoint", "sh", "busybox"];
  const id = isuladTs(...words, "-c", "id; exec sleep 1000").stdout.trim();
  try {
    const { status, info } = JSON.parse(isuladTs("inspect", "left").stdout);
    expect(status).toMatchObject({ id, labels: { a: "b" }, annotations: { c: "d" } });
    expect(info.runtimeSpec.linux.resources).toMatchObject({
      memory: { limit: 64 << 20 },
      cpu: { quota: 50_000, period: 100_000 },
    });
    let header: string | undefined;
    await until("top shows that it sleeps", () => {
      const [first, row = ""] = isuladTs("top", "left").stdout.split("\n");
      header = first;
      return /^1000 +1 +\d+ +S .* sleep 1000$/.test(row);
    });
    expect(header).toMatch(/^USER +PID +HOST PID +STATE +MEM +ELAPSED +TIME +COMMAND$/);
    await daemon.logged(id, "uid=");
    expect(isuladTs("logs", "left").stdout).toMatch(/^uid=1000\(user\) gid=2000/);
    expect(isuladTs("kill", "--signal", "no", "left").code).toBe(2);
    expect(isuladTs("kill", "-s", "KILL", "left").stdout).toBe("left\n");
    expect(isuladTs("wait", "left").stdout).toBe("137\n");
    expect(isuladTs("top", "left").stderr).toContain("is not running: see isulad-ts ps -a");
  } finally {
    expect(isuladTs("rmp", "-f", "left").code).toBe(0);
    for (const name of readdirSync("/var/log/pods").filter((one) => one.includes("_left_"))) {
      rmSync(join("/var/log/pods", name), { recursive: true });
    }
  }
  expect(isuladTs("run", "-d", "--rm", "busybox").code).toBe(125);
});

test("run -i passes its input, and run -t shows all output of a short command", () => {
  const given = { env: environment(), encoding: "utf8", input: "b\na\n" } as const;
  expect(spawnSync(executable, ["run", "-i", "busybox", "sort"], given).stdout).toBe("a\nb\n");
  const script = "echo one; echo two; exit 3";
  const short = isuladTs("run", "-t", "busybox", "sh", "-c", script);
  expect(short).toEqual({ code: 3, stdout: "one\r\ntwo\r\n", stderr: "" });
});
