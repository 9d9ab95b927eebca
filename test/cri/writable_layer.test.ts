// Tests the size of a container's writable layer in its stats, with the image's volumes.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { toBigInt } from "../../src/base/int64.ts";
import type { UInt64Value } from "../../src/proto/types.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { countedStats, until } from "../stats.ts";

let daemon: Daemon;
beforeAll(
  async () =>
    (daemon = await startDaemon({ network: false, config: { "stats-collect-period": "1s" } })),
);
afterAll(() => daemon?.[Symbol.asyncDispose]());

const count = (value: UInt64Value | null | undefined) => toBigInt(value?.value);

test("a container that writes a file has a larger writable layer", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const before = (await countedStats(daemon, id)).writable_layer!;
  expect(before.fs_id!.mountpoint).toBe(`${daemon.dir}/graph`);
  await daemon.exec(
    id,
    "mkdir /d; for i in 1 2 3 4 5; do dd if=/dev/zero of=/d/$i bs=1M count=1; done",
  );
  const after = await until(
    async () => (await daemon.client.ContainerStats({ container_id: id })).stats!,
    ({ writable_layer: layer }) =>
      count(layer!.used_bytes) >= count(before.used_bytes) + (5n << 20n),
  );
  expect(count(after.writable_layer!.inodes_used) - count(before.inodes_used)).toBe(6n);
  expect(toBigInt(after.writable_layer!.timestamp)).toBeGreaterThan(toBigInt(before.timestamp));
});

test("what a container writes into a volume of its image counts, too", async () => {
  const name = "example.test/volume:1";
  await daemon.loadImage(busyboxImage({ Volumes: { "/data": {} } }), name);
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"], { image: { image: name } });
  const before = (await countedStats(daemon, id)).writable_layer!;
  await daemon.exec(id, "for i in 1 2 3; do dd if=/dev/zero of=/data/$i bs=1M count=1; done");
  const after = await until(
    async () => (await daemon.client.ContainerStats({ container_id: id })).stats!,
    ({ writable_layer: layer }) =>
      count(layer!.used_bytes) >= count(before.used_bytes) + (3n << 20n),
  );
  expect(count(after.writable_layer!.inodes_used) - count(before.inodes_used)).toBe(3n);
});
