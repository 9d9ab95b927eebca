// Tests layers and root file systems that do not match their records: containers that have them mounted go
// on, and incomplete ones can be removed.
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, statfsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { failure, until } from "../expect.ts";
import { busybox, Daemon, startDaemon } from "../harness.ts";
import { mountTmpfs } from "../host.ts";
import { busyboxImage } from "../image_maker.ts";

let daemon: Daemon;

beforeAll(async () => {
  daemon = await startDaemon({ network: false });
});
afterAll(() => daemon?.[Symbol.asyncDispose]());
/** A test that failed may have left neither. */
beforeEach(async () => {
  if (daemon.pid < 0) await daemon.start();
  const { images } = await daemon.client.ListImages({});
  if (images.length === 0) await daemon.loadImage(busyboxImage(), busybox);
});

function layersFolder(): string {
  return join(daemon.dir, "graph/layers");
}

function trees(): string[] {
  return readdirSync(join(layersFolder(), "l")).filter((name) => name !== "empty");
}

test("a layer whose record is damaged: its containers keep it, its image comes again beside it", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const old = await daemon.run(podId, pod, ["sleep", "600"]);
  await daemon.stop("SIGKILL");
  const [record] = readdirSync(layersFolder()).filter((name) => name.endsWith(".json"));
  const path = join(layersFolder(), record!);
  const text = readFileSync(path, "utf8");
  writeFileSync(path, text.slice(0, text.length / 2));
  await daemon.start();
  expect(daemon.log).toContain("layer dropped: its record is invalid");
  expect((await daemon.client.ListImages({})).images).toEqual([]);
  expect((await daemon.exec(old, "echo alive; ls /bin/sh")).stdout).toBe("alive\n/bin/sh\n");

  await daemon.loadImage(busyboxImage(), busybox);
  const young = await daemon.run(podId, pod, ["sleep", "600"]);
  expect(trees()).toHaveLength(2);
  for (const how of ["SIGKILL", "SIGTERM"] as const) {
    await daemon.restart(how);
    for (const id of [old, young])
      expect((await daemon.exec(id, "ls /bin/sh")).stdout).toBe("/bin/sh\n");
  }
  await daemon.removePod(podId);
  await until("the other one's tree is gone", () => trees().length === 1);
  expect(trees()).toEqual([record!.replace(".json", "")]);
});

describe.each(["overlay2", "native"])("a root that somebody has unmounted (%s)", (driver) => {
  let podId: string;
  const pod = () => daemon.hostPodConfig();
  const rootOf = (id: string) => join(daemon.dir, "graph/containers", id, "rootfs");

  async function unmounted(): Promise<string> {
    const id = await daemon.create(podId, pod(), ["sleep", "600"]);
    expect(spawnSync("umount", [rootOf(id)]).status).toBe(0);
    return id;
  }

  beforeAll(async () => {
    daemon.writeConfig({ "storage-driver": driver });
    await daemon.restart();
    podId = await daemon.runPod(pod());
  });
  afterAll(() => daemon.removePod(podId));

  test("Start refuses, and Remove works", async () => {
    const before = daemon.snapshot();
    const id = await unmounted();
    const { code, message } = await failure(daemon.client.StartContainer({ container_id: id }));
    expect({ code, message }).toEqual({
      code: "FAILED_PRECONDITION",
      message: expect.stringContaining(`unmounted its root file system ${rootOf(id)}`),
    });
    expect(readdirSync(rootOf(id))).toEqual([]);
    expect((await daemon.exited(id)).reason).toBe("StartError");
    await daemon.client.RemoveContainer({ container_id: id });
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("and filled: Remove takes all of it, and unmounts what is in it", async () => {
    const before = daemon.snapshot();
    const id = await unmounted();
    const kept = join(daemon.dir, `kept by ${driver}`);
    mkdirSync(kept);
    writeFileSync(join(kept, "file"), "of somebody else");
    mkdirSync(join(rootOf(id), "dev/a place"), { recursive: true });
    const place = join(rootOf(id), "dev/a place");
    expect(spawnSync("mount", ["--bind", kept, place]).status).toBe(0);
    await daemon.client.RemoveContainer({ container_id: id });
    expect(readFileSync(join(kept, "file"), "utf8")).toBe("of somebody else");
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

describe("a graph folder that is full at a start", () => {
  /** On a tmpfs of its own; disposing of the daemon unmounts it. */
  async function startOnTmpfs(config: Record<string, unknown>): Promise<Daemon> {
    await using stack = new AsyncDisposableStack();
    const full = stack.use(new Daemon({ network: false }));
    for (const name of ["graph", "state"]) mountTmpfs(join(full.dir, name));
    full.writeConfig(config);
    mkdirSync(full.cniDir);
    await full.start();
    stack.move();
    return full;
  }

  function remount(full: Daemon, options: string): void {
    const args = ["-o", `remount,${options}`, join(full.dir, "graph")];
    expect(spawnSync("mount", args).status).toBe(0);
  }

  /** Restarts it with so many files free, too few to try overlayfs. */
  async function startFull(full: Daemon, filesFree: number): Promise<string> {
    await full.stop();
    const { files, ffree } = statfsSync(join(full.dir, "graph"));
    remount(full, `nr_inodes=${files - ffree + filesFree}`);
    await full.start();
    remount(full, "nr_inodes=20000");
    const { info } = await full.client.Status({ verbose: true });
    return (JSON.parse(info["storage"]!) as { driver: string }).driver;
  }

  const images = async (full: Daemon) => (await full.client.ListImages({})).images.length;

  test("the driver stays overlay2, and images that come then stay, too", async () => {
    await using full = await startOnTmpfs({});
    for (const room of [0, 1, 5, 9, 12, 15, 20]) {
      expect(await startFull(full, room)).toBe("overlay2");
    }
    expect(full.log).toContain("no trial overlay mount is possible now");
    await full.loadImage(busyboxImage(), busybox);
    await full.restart();
    expect(await images(full)).toBe(1);
  });

  test("the driver stays native where the layers are for that", async () => {
    await using full = await startOnTmpfs({ "storage-driver": "native" });
    await full.loadImage(busyboxImage(), busybox);
    full.writeConfig();
    expect(await startFull(full, 0)).toBe("native");
    expect(await images(full)).toBe(1);
  });
});
