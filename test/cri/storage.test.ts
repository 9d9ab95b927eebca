// Tests the root file systems of containers: overlayfs, or copies where overlayfs does not work. Needs root.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { codeOf } from "../../src/base/errors.ts";
import { until } from "../expect.ts";
import { executable, type Daemon, startDaemon } from "../harness.ts";
import { busyboxEntries, makeImage, makeLayer, type TestImage } from "../image_maker.ts";

const name = "docker.io/library/layered:1";
/** What each layer hides, replaces and links. */
const image: TestImage = makeImage(
  [
    makeLayer(busyboxEntries()),
    makeLayer([
      { name: "t/", type: "5", mode: 0o1775, uid: 3, gid: 4 },
      { name: "t/gone", data: "gone" },
      { name: "t/full/", type: "5" },
      { name: "t/full/hidden", data: "hidden" },
      { name: "t/file-then-folder", data: "file" },
      { name: "t/folder-then-file/in", data: "in" },
      { name: "t/su", mode: 0o4755, uid: 7, gid: 8, data: "su" },
      { name: "t/su-too", type: "1", link: "t/su" },
      { name: "t/link", type: "2", link: "/etc/passwd" },
      { name: "t/null", type: "3", major: 1, minor: 3, mode: 0o666 },
      { name: "t/pipe", type: "6", mode: 0o640 },
      { name: "t/empty", data: "" },
    ]),
    makeLayer([
      { name: "t/.wh.gone" },
      { name: "t/full/.wh..wh..opq" },
      { name: "t/full/new", data: "new" },
      { name: "t/file-then-folder/", type: "5", mode: 0o700 },
      { name: "t/folder-then-file", data: "file" },
      { name: "t/a b c", data: "odd" },
    ]),
  ],
  { Env: ["PATH=/bin"] },
);
const listAll =
  "cd /t; find . | sort | while read -r f; do stat -c '%n %F %a %u %g %h %Y %t:%T' \"$f\"; done; find . -type f | sort | tr '\\n' '\\0' | xargs -0 md5sum; readlink link";

let dir: string;
let expected: string;
beforeAll(async () => {
  dir = fs.mkdtempSync(join(tmpdir(), "isulad-storage-"));
  await using stacked = await startDaemon({
    image: false,
    config: { "storage-driver": "overlay2" },
  });
  await stacked.loadImage(image, name);
  expected = await contentIn(stacked);
  expect(expected).toContain("./full/new regular file 644 0 0 1");
  expect(expected).not.toMatch(/gone|hidden|\.wh\./);
});
afterAll(() => fs.rmSync(dir, { recursive: true, force: true }));

test.each([
  ["names a container's layers", "graph", /lowerdir\+?=[^ ]*\/graph\/layers\/l\/[0-9a-f]+/],
  [
    "has descriptors where their paths are too long for the kernel",
    `${"long/".repeat(50)}graph`,
    /fd\//,
  ],
  ["has layers of a folder with commas and colons", "a,b:c/graph", /lowerdir\+?=/],
])("the mount table %s", async (_, folder, text) => {
  const config = {
    graph: join(dir, folder),
    "storage-driver": "overlay2",
    "storage-opts": ["overlay2.mountopt=metacopy=on"],
  };
  await using daemon = await startDaemon({ image: false, config });
  await daemon.loadImage(image, name);
  const table = await runIn(daemon, "grep ' / overlay' /proc/mounts; cat /t/full/new");
  expect(table).toMatch(text);
  expect(table).toContain("metacopy=on");
  expect(table).toEndWith("new");
});

async function runIn(daemon: Daemon, command: string): Promise<string> {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const { text } = await daemon.output(podId, pod, command, { image: { image: name } });
  await daemon.removePod(podId);
  return text;
}

/** All that the layers made, but how many links folders have, of which overlayfs says always 1. */
async function contentIn(daemon: Daemon): Promise<string> {
  const text = await runIn(daemon, listAll);
  return text.replaceAll(/( directory \d+ \d+ \d+) \d+/g, "$1");
}

/** A folder on a file system of its own. */
function mounted(folder: string, argv: string[]): { path: string } & Disposable {
  const path = join(dir, folder);
  fs.mkdirSync(path, { recursive: true });
  const done = spawnSync("mount", [...argv, path], { encoding: "utf8" });
  if (done.status !== 0) throw new Error(done.stderr);
  return { path, [Symbol.dispose]: () => void spawnSync("umount", ["-l", path]) };
}

/** Where overlayfs cannot have its upper folder. */
function onOverlay(folder: string): { path: string } & Disposable {
  const [lower, upper, work] = ["lower", "upper", "work"].map((one) =>
    join(dir, `${folder}-${one}`),
  );
  for (const path of [lower!, upper!, work!]) fs.mkdirSync(path, { recursive: true });
  const options = `lowerdir=${lower},upperdir=${upper},workdir=${work}`;
  return mounted(folder, ["-t", "overlay", "-o", options, "overlay"]);
}

/** What a daemon says that does not start. */
function refusal(config: Record<string, unknown>): string {
  const file = join(dir, "daemon.json");
  const [state, pidfile] = [join(dir, "state"), join(dir, "pid")];
  const hosts = [`unix://${dir}/isulad.sock`];
  fs.writeFileSync(file, JSON.stringify({ hosts, state, pidfile, ...config }));
  const run = spawnSync(executable, ["--config", file], { encoding: "utf8", timeout: 100_000 });
  expect(run.status).toBe(1);
  return run.stderr;
}

async function storageOf(daemon: Daemon): Promise<Record<string, unknown>> {
  const { info } = await daemon.client.Status({ verbose: true });
  return JSON.parse(info["storage"]!) as Record<string, unknown>;
}

describe("on a file system that overlayfs does not take", () => {
  test("containers get copies with the same content, which are logged and removed with them", async () => {
    using graph = onOverlay("graph");
    await using daemon = await startDaemon({ image: false, config: { graph: graph.path } });
    expect(daemon.log.match(/each container gets a copy of its image/g)).toHaveLength(1);
    expect(await storageOf(daemon)).toMatchObject({
      driver: "native",
      problem: expect.any(String),
    });
    await daemon.loadImage(image, name);
    expect(await contentIn(daemon)).toBe(expected);

    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const volume = { container_path: "/volume", image: { image: name }, readonly: true };
    const spec = { image: { image: name }, mounts: [volume] };
    const [one, two] = await Promise.all([
      daemon.run(podId, pod, "echo one >/t/empty; exec sleep 600", spec),
      daemon.run(podId, pod, "rm -r /t; exec sleep 600", spec),
    ]);
    const done = async (id: string, state: string) =>
      (await daemon.exec(id, `until [ ${state} ]; do sleep 0.1; done`)).exitCode;
    expect([await done(one, "-s /t/empty"), await done(two, "! -e /t")]).toEqual([0, 0]);
    const volumeWrite = await daemon.exec(
      one,
      "cat /volume/t/full/new; echo x >/volume/t/full/new",
    );
    expect(volumeWrite.stdout).toBe("new");
    expect(volumeWrite.stderr).toContain("Read-only");
    expect((await daemon.exec(one, "cat /t/empty")).stdout).toBe("one\n");
    expect((await daemon.exec(two, "ls /volume/t/full; ls /t")).stdout).toBe("new\n");
    await daemon.restart("SIGKILL");
    expect((await daemon.exec(one, "cat /t/empty")).stdout).toBe("one\n");
    // A copy needs no layers any more.
    await daemon.client.RemoveImage({ image: { image: name } });
    expect(fs.readdirSync(join(graph.path, "layers/l"))).toEqual(["empty"]);
    expect((await daemon.exec(one, "cat /t/full/new")).stdout).toBe("new");
    await daemon.removePod(podId);
    expect(fs.readdirSync(join(graph.path, "containers"))).toEqual([]);
    expect(fs.readFileSync("/proc/self/mountinfo", "utf8")).not.toContain(`${graph.path}/`);
  });

  test("overlay2 refuses to start, and says what to do", () => {
    using graph = onOverlay("strict");
    const said = refusal({ graph: graph.path, "storage-driver": "overlay2" });
    expect(said).toMatch(/"storage-driver": "overlay2" does not work.*"auto"/);
    expect(fs.readFileSync("/proc/self/mountinfo", "utf8")).not.toContain(`${graph.path}/`);
  });

  test("without extended attributes containers get copies as well; a later overlay is built from scratch", async () => {
    using graph = mounted("ramfs", ["-t", "ramfs", "ramfs"]);
    await using daemon = await startDaemon({ image: false, config: { graph: graph.path } });
    expect(await storageOf(daemon)).toMatchObject({ driver: "native" });
    await daemon.loadImage(image, name);
    expect(await contentIn(daemon)).toBe(expected);
  });
});

test("storage-driver may change: what overlayfs cannot read is dropped, copies can be made of all", async () => {
  await using daemon = await startDaemon({ image: false });
  await daemon.loadImage(image, name);
  daemon.writeConfig({ "storage-driver": "native" });
  await daemon.restart();
  expect(await contentIn(daemon)).toBe(expected);
  await daemon.client.RemoveImage({ image: { image: name } });
  await daemon.loadImage(image, name);
  expect(await contentIn(daemon)).toBe(expected);
  daemon.writeConfig({ "storage-driver": "auto" });
  await daemon.restart();
  expect((await daemon.client.ListImages({})).images).toEqual([]);
  expect(daemon.log).toContain("it was unpacked for storage-driver native");
  await daemon.loadImage(image, name);
  expect(await contentIn(daemon)).toBe(expected);
});

test("a copy cut off by the daemon's exit is removed by the next daemon", async () => {
  const config = { "storage-driver": "native" };
  await using daemon = await startDaemon({ image: false, config });
  await daemon.loadImage(image, name);
  const files = Array.from({ length: 2_500 }, (_, i) => ({ name: `d${i % 99}/${i}`, data: "x" }));
  const many = await daemon.loadImage(makeImage([makeLayer(files)]), "docker.io/library/many:1");
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const before = daemon.snapshot();
  const containers = join(daemon.dir, "graph/containers");
  const isCopying = () => fs.globSync(join(containers, "*/upper/d*/*")).length > 0;
  /** Kills the daemon while it copies. Returns the id if it was too late. */
  const cut = async () => {
    const created = daemon.create(podId, pod, ["/x"], { image: { image: many } }).catch(codeOf);
    await until("files are copied", isCopying);
    await daemon.restart("SIGKILL");
    return created;
  };
  let result = await cut();
  for (; /^[0-9a-f]{64}$/.test(result); result = await cut())
    await daemon.client.RemoveContainer({ container_id: result });
  expect(result).toBe("UNAVAILABLE");
  const leaks = await daemon.leaksSince(before);
  expect(leaks.filter((leak) => !leak.startsWith("descriptor"))).toEqual([]); // of the daemon before
  expect(fs.readdirSync(containers)).toEqual([]);
  expect(await runIn(daemon, "cat /t/full/new")).toBe("new");
  await daemon.removePod(podId);
});
