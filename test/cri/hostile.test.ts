// Tests that the daemon refuses invalid requests, which no kubelet sends, as INVALID_ARGUMENT with field and
// value, and creates nothing. The tables cover all RPCs; the last test checks that none is missing.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { ImageService, NodeService, RuntimeService } from "../../src/proto/services.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage, makeImage, makeLayer } from "../image_maker.ts";
import type { Snapshot } from "../leaks.ts";
import { big, containers, others, pods } from "./hostile_requests.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
let running: string;
let before: Snapshot;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  running = await daemon.run(podId, pod, ["sleep", "600"]);
  await daemon.exec(running, "true"); // by now the runtime's init has become the program
  before = daemon.snapshot();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

async function refused(call: Promise<unknown>, field: string): Promise<void> {
  const error = await failure(call);
  expect(error.message).toContain(field);
  expect(error.code).toBe("INVALID_ARGUMENT");
  expect(error.message.length).toBeLessThan(600);
}

describe("CreateContainer", () => {
  test.each(containers)("%s", async (field, config) => {
    await refused(daemon.create(podId, pod, ["true"], config), field);
  });

  test.each(["../x.log", "a/../../x.log", ".", "..", "a/", "a\0b", big])(
    "log_path %.20j",
    async (log_path) => {
      await refused(daemon.create(podId, pod, "true", { log_path }), "config.log_path");
    },
  );

  test("without a config; in a pod that is not there", async () => {
    const { client } = daemon;
    await refused(client.CreateContainer({ pod_sandbox_id: podId }), "config is missing");
    const config = { metadata: { name: "c" }, image: { image: "busybox" } };
    for (const pod_sandbox_id of ["", " ", "\n", "../x", "zz"]) {
      const error = await failure(client.CreateContainer({ pod_sandbox_id, config }));
      expect(error.code).toBe("NOT_FOUND");
    }
  });

  test("a log_path in folders of its own is made there", async () => {
    const id = await daemon.create(podId, pod, "true", { log_path: "./a/b//0.log" });
    const { log_path } = await daemon.status(id);
    expect(log_path).toBe(join(pod.log_directory!, "a/b/0.log"));
    expect(dirname(log_path)).toStartWith(daemon.dir);
    await daemon.client.RemoveContainer({ container_id: id });
  });

  test("of an image with an /etc/group of 100 MB", async () => {
    const group = Buffer.alloc(100 << 20, "x:x:1:y\n");
    const entries = [
      { name: "etc", type: "5" },
      { name: "etc/group", data: group },
    ];
    const image = await daemon.loadImage(makeImage([makeLayer(entries)]), "example.test/group:1");
    const error = await failure(daemon.create(podId, pod, ["true"], { image: { image } }));
    expect(error.message).toContain("/etc/group");
    expect(["FAILED_PRECONDITION", "INVALID_ARGUMENT"]).toContain(error.code);
    await daemon.client.RemoveImage({ image: { image } });
  });

  test("of an image whose own words are hostile", async () => {
    const nul = busyboxImage({ Env: ["A\0=b"] });
    const refused = await failure(daemon.loadImage(nul, "example.test/words:1"));
    expect([refused.code, refused.message]).toEqual([
      "INVALID_ARGUMENT",
      expect.stringContaining("Env"),
    ]);
    const settings = { User: "no\nsuch:user", WorkingDir: "../..", StopSignal: "x" };
    const image = await daemon.loadImage(busyboxImage(settings), "example.test/words:1");
    const error = await failure(daemon.create(podId, pod, ["true"], { image: { image } }));
    expect(error.code).toBe("INVALID_ARGUMENT");
    await daemon.client.RemoveImage({ image: { image } });
  });

  test.each(["dev", "proc", "sys"])(
    "of an image whose /%s is a link to a folder of the node",
    async (name) => {
      const victim = join(daemon.dir, `victim-${name}`);
      mkdirSync(victim);
      writeFileSync(join(victim, "ptmx"), "of the node");
      const link = { name, type: "2", link: victim };
      const image = await daemon.loadImage(busyboxImage({}, [link]), "example.test/linked:1");
      const error = await failure(daemon.create(podId, pod, ["true"], { image: { image } }));
      expect(readdirSync(victim)).toEqual(["ptmx"]);
      expect(readFileSync(join(victim, "ptmx"), "utf8")).toBe("of the node");
      expect(error.code).toBe("FAILED_PRECONDITION");
      expect(error.message).toContain(`its /${name} is a symlink`);
      await daemon.client.RemoveImage({ image: { image } });
    },
  );
});

describe("RunPodSandbox", () => {
  test.each(pods)("%s", async (field, more) => {
    await refused(daemon.runPod({ ...daemon.podConfig(), ...more }), field);
  });

  test("without a config; with a handler that is not there", async () => {
    await refused(daemon.client.RunPodSandbox({}), "config is missing");
    await refused(daemon.runPod(daemon.podConfig(), "no-such"), 'handler "no-such"');
    await refused(daemon.runPod(daemon.podConfig(), "a\nb"), "runtime_handler");
  });
});

test.each(others)("%s: %s", async (rpc, field, request) => {
  const call = daemon.client[rpc] as (request: object) => Promise<unknown> | AsyncIterable<unknown>;
  const result = call(request);
  const end = result instanceof Promise ? result : Array.fromAsync(result);
  const error = await failure(end);
  await refused(Promise.reject(error), field);
});

/** With nothing but an id: what does not exist is NOT_FOUND, or done already. */
const byId = {
  PodSandboxStatus: "NOT_FOUND",
  StopPodSandbox: "OK",
  RemovePodSandbox: "OK",
  PodSandboxStats: "NOT_FOUND",
  ContainerStatus: "NOT_FOUND",
  StartContainer: "NOT_FOUND",
  StopContainer: "OK",
  RemoveContainer: "OK",
  ReopenContainerLog: "NOT_FOUND",
  ContainerStats: "NOT_FOUND",
  ExecSync: "NOT_FOUND",
  UpdateContainerResources: "NOT_FOUND",
  UpdatePodSandboxResources: "NOT_FOUND",
  ListNriChanges: "NOT_FOUND",
  AbandonNetwork: "NOT_FOUND",
} as const;
/** Nothing to be wrong with, or not served. */
const takeNothing = `Version Status RuntimeConfig ImageFsInfo GetContainerEvents
  ListMetricDescriptors ListPodSandboxMetrics StreamPodSandboxMetrics CheckpointPod RestorePod
  ListTimelines NriPlugins PruneImages Reload Dump`;

describe("ids are ids, never paths", () => {
  const ids = () => [`../sandboxes/${podId}`, "", " ", "\n", "/", ".", "\0", "é".repeat(100_000)];

  test.each(Object.entries(byId))("%s: %s", async (rpc, code) => {
    const call = daemon.client[rpc as keyof typeof byId] as (request: object) => Promise<unknown>;
    for (const id of ids()) {
      const done = call({ pod_sandbox_id: id, container_id: id, cmd: ["true"] });
      if (code === "OK") await done;
      else expect((await failure(done)).code).toBe(code);
    }
  });
});

test("an error of any length is returned, and other calls continue", async () => {
  const long = "é".repeat(60_000);
  const [first, second] = await Promise.all([
    failure(daemon.exec(running, [`/${long}`])),
    daemon.exec(running, "echo on"),
  ]);
  expect(first.message).toMatch(/^exec in container .* \[…\] .* too long$/s);
  expect(second.stdout).toBe("on\n");
});

test("names of JavaScript's own properties are only names", async () => {
  const hostile = JSON.parse('{"__proto__": "a", "constructor": "b", "toString": "c"}') as {
    [key: string]: string;
  };
  const more = { labels: hostile, annotations: hostile };
  const id = await daemon.create(podId, pod, ["true"], more);
  const { labels, annotations } = await daemon.status(id);
  expect(JSON.stringify({ labels, annotations })).toBe(
    JSON.stringify({ labels: hostile, annotations: hostile }),
  );
  const listed = async (label_selector: Record<string, string>) =>
    (await daemon.client.ListContainers({ filter: { label_selector } })).containers.length;
  expect(await listed(hostile)).toBe(1);
  expect(await listed({ valueOf: "" })).toBe(0);
  await daemon.client.RemoveContainer({ container_id: id });
});

test("a request over 16 MiB ends itself and nothing else", async () => {
  const annotations = { a: "x".repeat(17 << 20) };
  const [error, { stdout }] = await Promise.all([
    failure(daemon.create(podId, pod, ["true"], { annotations })),
    daemon.exec(running, "echo on"),
  ]);
  expect(error.code).toBe("RESOURCE_EXHAUSTED");
  expect(stdout).toBe("on\n");
});

test("nothing was created, and the container still runs", async () => {
  expect(await daemon.leaksSince(before)).toEqual([]);
  expect((await daemon.client.ListPodSandbox({})).items).toHaveLength(1);
  expect((await daemon.client.ListContainers({})).containers).toHaveLength(1);
  expect((await daemon.exec(running, "echo on")).stdout).toBe("on\n");
});

test("every RPC is covered", () => {
  const all = Object.keys({ ...RuntimeService, ...ImageService, ...NodeService });
  const here = new Set<string>([
    "RunPodSandbox",
    "CreateContainer",
    ...others.map(([rpc]) => String(rpc)),
    ...Object.keys(byId),
    ...takeNothing.split(/\s+/),
  ]);
  expect(all.filter((rpc) => !here.has(rpc))).toEqual([]);
});
