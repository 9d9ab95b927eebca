// Layers and roots that are not as their records say: containers that have them mounted go on, and what
// is half there can be removed.
import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { busybox, type Daemon, startDaemon } from "../harness.ts";
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
  expect(daemon.log).toContain("layer dropped: its record cannot be used");
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
  expect(trees()).toEqual([record!.replace(".json", "")]);
});
