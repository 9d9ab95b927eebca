// Runs the command lines of README.md and docs/ against a daemon, with names of its own for those of the pages.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { runtime } from "../../src/proto/messages.js";
import { busybox, type Daemon, executable, startDaemon } from "../harness.ts";
import { busyboxImage, ociArchive } from "../image_maker.ts";
import { type Registry, startRegistry } from "../registry.ts";
import { shownCommands } from "../shown_commands.ts";

const { ContainerState } = runtime.v1;

/** Lines that do not run here, and why. */
const elsewhere: readonly [RegExp, string][] = [
  [/^(daemon$|--hosts |--allow-failpoints)/, "is a daemon, as in all tests"],
  [/^(un)?install\b/, "changes the machine: test/install.test.ts"],
  [/^rmp$/, "is the command's name in a sentence"],
];
/** They go on until they are interrupted; statistics end then as if asked to. */
const endless = /^(logs -f|attach|events|stats -w)\b/;
const codesOfInterrupted = [130, "SIGINT", 0];

const shown = [...new Set(shownCommands().map(({ words }) => words.join(" ")))];
const isElsewhere = (line: string) => elsewhere.some(([pattern]) => pattern.test(line));

let daemon: Daemon;
let registry: Registry;
let folder: string;
let image: string;
let archive: string;
let podId = "";
let id = "";
const nriSocket = `/run/isulad-docs-${process.pid}.sock`;

beforeAll(async () => {
  registry = await startRegistry();
  await registry.push("team/app", "1", busyboxImage());
  image = `${registry.host}/team/app:1`;
  daemon = await startDaemon({
    config: {
      "insecure-registries": [registry.host],
      "enable-pod-events": true,
      "nri-support": true,
      "nri-socket-path": nriSocket,
    },
  });
  folder = join(daemon.dir, "work");
  mkdirSync(folder);
  writeFileSync(join(folder, "config.toml"), "version = 3\n");
  writeFileSync(join(folder, "pod.json"), JSON.stringify(podConfig()));
  const metadata = { name: "second" };
  writeFileSync(join(folder, "container.json"), JSON.stringify({ metadata, image: { image } }));
  const name = "docker.io/library/app:1";
  archive = join(folder, "app.tar");
  writeFileSync(archive, ociArchive([{ image: busyboxImage(), name }]));
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
  rmSync(nriSocket, { force: true });
});

function podConfig() {
  return daemon.podConfig({ metadata: { name: "web", namespace: "default" } });
}

/** Makes what the pages take for granted: images, and a pod with one container that runs and writes. */
async function prepare(): Promise<void> {
  const { images } = await daemon.client.ListImages({});
  if (images[0]?.repo_tags?.length !== 3) {
    await daemon.client.PullImage({ image: { image } });
    await Array.fromAsync(daemon.client.Load({ path: archive, name: "" }));
    await daemon.loadImage(busyboxImage(), busybox);
  }
  const { containers } = await daemon.client.ListContainers({});
  const [one] = containers;
  const runs = one?.id === id && one.state === ContainerState.CONTAINER_RUNNING;
  if (containers.length === 1 && runs) return;
  await daemon.removeAllPods();
  podId = await daemon.runPod(podConfig());
  id = await add("web", "trap exit TERM; while echo tick; do sleep 0.2; done");
}

function add(name: string, command: string): Promise<string> {
  return daemon.run(podId, podConfig(), command, { metadata: { name } });
}

/** Returns the line with names that exist here, whose state is the one that the line is for. */
async function filled(line: string): Promise<string[]> {
  const values: Record<string, string> = {
    POD: "default/web",
    CONTAINER: "default/web/web",
    WEB: "web",
    VALUE: id,
    "4f2a": id.slice(0, 12),
    IMAGE: image,
    "registry.example/team/app:1": image,
    "registry.example/shop/app:1": image,
    FILE: line.includes("migrate") ? join(folder, "config.toml") : archive,
    "app.tar": archive,
    "images.tar": archive,
    "app.tar.zst": line.startsWith("save") ? join(folder, `${Date.now()}.tar.zst`) : archive,
    "CONTAINER-FILE": join(folder, "container.json"),
    "POD-FILE": join(folder, "pod.json"),
    "daemon.json": daemon.configFile,
    "/etc/isulad/daemon.json": daemon.configFile,
    "10-migrated.json": daemon.configFile,
    "/etc/containerd/config.toml": join(folder, "config.toml"),
    "unix:///run/isulad.sock": `unix://${daemon.socket}`,
    BYTES: String(64 << 20),
    CMD: "true",
    "30": "1",
  };
  if (line === "config check FILE") values["FILE"] = daemon.configFile;
  if (line === "nri diff limited") values["limited"] = "web";
  if (line === "start CONTAINER") {
    values["CONTAINER"] = await daemon.create(podId, podConfig(), "true");
  }
  if (line === "wait CONTAINER") values["CONTAINER"] = await add("short", "true");
  if (line.startsWith("rmp --abandon"))
    await daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
  return line.split(" ").map((word) => values[word] ?? word);
}

/** -t needs a terminal, which script(1) makes. */
function start(words: string[]) {
  const isTerminal = words.includes("-it");
  const quoted = [executable, ...words].map((word) => `'${word}'`).join(" ");
  const argv = isTerminal ? ["script", "-qec", quoted, "/dev/null"] : [executable, ...words];
  const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}`, TMPDIR: folder };
  const child = spawn(argv[0]!, argv.slice(1), { cwd: folder, env });
  const seen = { text: "" };
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (bytes: Buffer) => (seen.text += bytes.toString()));
  }
  child.stdin.end(isTerminal ? "exit\n" : "");
  const ended = new Promise<number | string>((resolve) =>
    child.once("close", (code, signal) => resolve(code ?? signal ?? "")),
  );
  return { child, seen, ended };
}

test.each(shown.filter((line) => !isElsewhere(line)))("isulad-ts %s", async (line) => {
  await prepare();
  const { child, seen, ended } = start(await filled(line));
  if (!endless.test(line)) {
    const code = await ended;
    const isFine = code === 0 || (code === 1 && line === "doctor"); // its findings are the machine's
    expect({ isFine, code, text: seen.text }).toEqual({ isFine: true, code, text: seen.text });
    return;
  }
  while (seen.text === "" && child.exitCode === null) {
    if (line === "events") await add(`event-${Date.now()}`, "true");
    await sleep(100);
  }
  child.kill("SIGINT");
  expect(codesOfInterrupted).toContain(await ended);
});

test("what does not run here is on a page", () => {
  const stale = elsewhere.filter(([pattern]) => !shown.some((line) => pattern.test(line)));
  expect(stale).toEqual([]);
  expect(shown.filter((line) => !isElsewhere(line)).length).toBeGreaterThan(60);
});
