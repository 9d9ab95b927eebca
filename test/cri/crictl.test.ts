// Tests crictl with JSON files, as an administrator debugs a node. test/run builds crictl from the Go module
// proxy; without Go the tests are skipped with a message.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { until } from "../expect.ts";
import { gate, openGate } from "../gate.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { type Registry, startRegistry } from "../registry.ts";

const crictl = join(import.meta.dirname, "../.cache/crictl");
const there = existsSync(crictl);
if (!there) console.error(`crictl.test.ts: ${crictl} is not there (no Go?): skipped`);

let daemon: Daemon;
let registry: Registry;
beforeAll(async () => {
  if (!there) return;
  registry = await startRegistry();
  await registry.push("library/tool", "1", busyboxImage());
  const config = { "insecure-registries": [registry.host], "enable-pod-events": true };
  daemon = await startDaemon({ config });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
});

/** crictl's default of 2 s a call is too short for an emulated guest. */
function words(argv: string[]): string[] {
  return ["--runtime-endpoint", `unix://${daemon.socket}`, "--timeout", "60s", ...argv];
}

/** Runs in the background; collects its output so far. */
function background(...argv: string[]) {
  const child = spawn(crictl, words(argv), { stdio: ["ignore", "pipe", "inherit"] });
  const seen = { text: "" };
  child.stdout.on("data", (chunk: Buffer) => (seen.text += chunk.toString()));
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  return { child, seen, ended };
}

function run(...argv: string[]): string {
  const done = spawnSync(crictl, words(argv), { encoding: "utf8", timeout: 60_000 });
  if (done.status !== 0) throw new Error(`crictl ${argv.join(" ")}: ${done.stderr}${done.stdout}`);
  return done.stdout.trim();
}

test.skipIf(!there)("crictl pulls, runs, lists, executes, shows logs and removes", async () => {
  const before = daemon.snapshot();
  const name = `${registry.host}/library/tool:1`;
  expect(run("pull", name)).toContain("sha256:");
  expect(run("images")).toMatch(/library\/tool\s+1\s/);

  const podFile = join(daemon.dir, "pod.json");
  const containerFile = join(daemon.dir, "container.json");
  const metadata = { name: "web", uid: "u1", namespace: "default", attempt: 1 };
  const pod = { metadata, log_directory: join(daemon.dir, "logs/web"), linux: {} };
  const container = {
    metadata: { name: "main" },
    image: { image: name },
    command: ["sh", "-c", "echo hello from crictl; sleep 600"],
    log_path: "main.log",
    linux: {},
  };
  writeFileSync(podFile, JSON.stringify(pod));
  writeFileSync(containerFile, JSON.stringify(container));

  const podId = run("runp", podFile);
  expect(podId).toMatch(/^[0-9a-f]{64}$/);
  expect(run("pods")).toMatch(new RegExp(`${podId.slice(0, 13)}.*Ready\\s+web\\s+default\\s+1`));
  const id = run("create", podId, containerFile, podFile);
  expect(run("start", id)).toBe(id);
  expect(run("ps")).toMatch(new RegExp(`${id.slice(0, 13)}.*Running\\s+main`));
  expect(run("exec", "-s", id, "echo", "executed")).toBe("executed");
  await daemon.logged(id, "hello");
  expect(run("logs", id)).toBe("hello from crictl");
  const inspected = JSON.parse(run("inspect", id)) as { status: { state: string } };
  expect(inspected.status.state).toBe("CONTAINER_RUNNING");
  const sandbox = JSON.parse(run("inspectp", podId)) as { status: { network: { ip: string } } };
  expect(sandbox.status.network.ip).toStartWith(daemon.subnet);
  const paths =
    '{{range .info.runtimeSpec.linux.namespaces}}{{if eq .type "network"}}{{.path}}{{end}}{{end}}';
  const path = run("inspectp", "-o", "go-template", "--template", paths, podId);
  expect(path).toMatch(/^\/.*netns\//);
  expect(existsSync(path)).toBe(true);
  expect(run("inspecti", name)).toContain(name);
  expect(JSON.parse(run("info"))).toBeObject();
  expect(run("version")).toContain("isulad");
  run("stop", id);
  expect(run("ps", "-a")).toMatch(/Exited\s+main/);
  run("rm", id);
  run("stopp", podId);
  run("rmp", podId);
  expect(run("pods", "-q")).toBe("");
  run("rmi", name);
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test.skipIf(!there)("crictl shows stats, statsp, metricdescs and metricsp", async () => {
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  await daemon.loadImage(busyboxImage(), "docker.io/library/busybox:latest");
  const id = await daemon.run(podId, pod, "while :; do :; done", { metadata: { name: "busy" } });
  const row = new RegExp(`${id.slice(0, 13)}\\s+busy\\s+[1-9]\\S*\\s+\\S+B\\s+\\S+B\\s+\\d+`);
  await until("it is busy", () => row.test(run("stats", "--seconds", "2")));
  const { stats } = JSON.parse(run("stats", "-o", "json", id)) as { stats: object[] };
  expect(stats).toMatchObject([{ attributes: { id, metadata: { name: "busy" } } }]);
  expect(run("statsp", "--seconds", "2")).toContain(podId.slice(0, 13));
  expect(run("metricdescs")).toContain("container_memory_working_set_bytes");
  const metrics = run("metricsp");
  expect(metrics).toContain("container_cpu_usage_seconds_total");
  expect(metrics).toContain(id);
  await daemon.removePod(podId);
});

test.skipIf(!there)("crictl logs -f follows a container to its end, past a rotation", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  await daemon.loadImage(busyboxImage(), "docker.io/library/busybox:latest");
  const steps = "one two three four";
  const script = `for i in ${steps}; do rm -f /go; echo $i; ${gate}; done; exit 3`;
  const id = await daemon.run(podId, pod, script);
  const { child, seen, ended } = background("logs", "-f", id);
  try {
    const logFile = (await daemon.status(id)).log_path;
    for (const word of steps.split(" ")) {
      await until(`it shows "${word}"`, () => seen.text.endsWith(`${word}\n`));
      if (word === "two") {
        renameSync(logFile, `${logFile}.1`);
        run("logs", "--reopen", id);
      }
      await openGate(daemon, id);
    }
    expect(await ended).toBe(0);
    expect(seen.text).toBe(`${steps.replaceAll(" ", "\n")}\n`);
    expect(run("logs", "--tail", "1", id)).toBe("four");
  } finally {
    child.kill();
  }
  await daemon.removePod(podId);
});

test.skipIf(!there)("crictl updates a container's resources", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  await daemon.loadImage(busyboxImage(), "docker.io/library/busybox:latest");
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  run("update", "--memory", String(64 << 20), "--cpu-share", "512", id);
  const { status } = JSON.parse(run("inspect", id)) as {
    status: { resources: { linux: Record<string, string> } };
  };
  expect(status.resources.linux).toMatchObject({
    cpuShares: "512",
    memoryLimitInBytes: String(64 << 20),
  });
  await daemon.removePod(podId);
});

test.skipIf(!there)("crictl events shows container events", async () => {
  const { child, seen } = background("events");
  try {
    const types = ["CREATED", "STARTED", "STOPPED", "DELETED"];
    const isTold = (type: string) =>
      seen.text.includes(`"containerEventType": "CONTAINER_${type}_EVENT"`);
    // Until it listens, nothing is told: pods come and go until one is told of from its beginning.
    await until("all events are shown", async () => {
      await daemon.removePod(await daemon.runPod(daemon.hostPodConfig()));
      await Bun.sleep(200);
      return types.every(isTold);
    });
  } finally {
    child.kill();
  }
});

test.skipIf(!there)("docs/cli_flags.md has each command of crictl with each of its flags", () => {
  const page = readFileSync(join(import.meta.dirname, "../../docs/cli_flags.md"), "utf8");
  const [crictlPart = ""] = page.split("\n## podman");
  const help = (...argv: string[]) => run(...argv, "--help");
  const rows = [...crictlPart.matchAll(/^\| `([a-z-]+)` \|(.+)\|$/gm)];
  const listed = /^COMMANDS:\n([^]*?)\n\n/m.exec(help())![1]!.matchAll(/^ +([a-z-]+)/gm);
  const commands = [...listed].map(([, name]) => name!).filter((name) => name !== "help");
  expect(rows.map(([, name]) => name!).sort()).toEqual(commands.sort());
  for (const [, name = "", cells = ""] of rows) {
    const lines = help(name).matchAll(/^ +(?:-\w, )?(--.+?)(?: {2}|$)/gm);
    const flags = [...lines].flatMap(([, left]) => left!.match(/--[a-z-]+/g)!);
    const lacking = flags.filter((flag) => flag !== "--help" && !cells.includes(`\`${flag}\``));
    expect([name, lacking]).toEqual([name, []]);
  }
});
