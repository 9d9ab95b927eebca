// Tests the plugin that docs/nri.md shows: it compiles, adjusts a container, and refuses another one.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { OciSpec } from "../../src/spec/oci.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
const page = readFileSync(join(import.meta.dirname, "../../docs/nri.md"), "utf8");
let daemon: Daemon;
let lastPod: string;

/** Builds the page's program with the modules of the test plugin, if it has changed, and returns its path. */
function buildExample(): string {
  const [, code = ""] = /^```go\n([^]*?)^```/m.exec(page) ?? [];
  const folder = join(import.meta.dirname, "../.cache/nri-example");
  mkdirSync(folder, { recursive: true });
  for (const file of ["go.mod", "go.sum"]) {
    copyFileSync(join(import.meta.dirname, "v0125", file), join(folder, file));
  }
  writeFileSync(join(folder, "main.go"), code);
  const env = { ...process.env, CGO_ENABLED: "0" };
  const argv = ["build", "-p", "1", "-trimpath", "-o", "10-pids", "."];
  const { status, stderr } = spawnSync("go", argv, { cwd: folder, env, encoding: "utf8" });
  if (status !== 0) throw new Error(`go build of the example: ${stderr}`);
  return join(folder, "10-pids");
}

beforeAll(async () => {
  if (!hasGo) return;
  copyFileSync(buildExample(), join(plugins.dir, "plugins/10-pids"));
  writeFileSync(join(plugins.dir, "conf.d/10-pids.conf"), '{"max": 50}');
  daemon = await startDaemon({ config: plugins.config() });
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

async function create(limit: string | undefined): Promise<OciSpec> {
  const annotations: Record<string, string> =
    limit === undefined ? {} : { "example.com/pids": limit };
  const pod = daemon.hostPodConfig({ annotations });
  const id = await daemon.create(await daemon.runPod(pod), pod, ["true"]);
  lastPod = `test/${pod.metadata!.name}`;
  const path = join(daemon.dir, "graph/containers", id, "config.json");
  return JSON.parse(readFileSync(path, "utf8")) as OciSpec;
}

test("the example limits the processes of a pod with the annotation, and of no other", async () => {
  await until("the plugin is in service", () => daemon.log.includes("plugin in service"));
  expect(Number((await create("20")).linux.resources?.pids?.limit)).toBe(20);
  const { timelines } = await daemon.client.ListTimelines({ pod: lastPod });
  const changes = timelines[0]!.entries!.filter(({ what }) => what === "nri");
  expect(changes).toMatchObject([{ detail: "10-pids: linux.resources.pids" }]);
  const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
  const { stdout } = spawnSync(executable, ["nri", "diff", lastPod], { env, encoding: "utf8" });
  expect(page).toContain(stdout.replace(/, [^,]*:$/m, ", 2026-11-23 20:05:06:"));
  expect((await create(undefined)).linux.resources?.pids).toBeUndefined();
  await until("its output is logged", () => /test\/pod-\d+\/c-\d+: 20 processes/.test(daemon.log));
});

test("the example refuses a value over the maximum of its configuration", async () => {
  const { message } = await failure(create("51"));
  expect(message).toContain('annotation example.com/pids is "51": it must be from 1 to 50');
});
