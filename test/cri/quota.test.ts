// Tests storage-opts overlay2.size: writable layers are limited if the file system supports project quotas,
// as the guest's kernel does. Needs root.
import { afterAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until } from "../expect.ts";
import { executable, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { end, processesOf } from "../host.ts";

const dir = fs.mkdtempSync(join(tmpdir(), "isulad-quota-"));
const ext4 = join(dir, "ext4");
const graph = join(dir, "graph");
fs.mkdirSync(graph);
/** Whether an ext4 with project quotas is mounted at graph: what this machine's kernel was built with. */
const isMounted = mountExt4();
if (!isMounted) console.error("skipped, this kernel mounts no ext4 with project quotas: quotas");
afterAll(async () => {
  // The monitor of a daemon that was refused goes on for some seconds, and writes into the folder.
  const running = () => processesOf(executable, { dir, except: -1 });
  for (const pid of running()) end(pid);
  await until("the monitor has ended", () => running().length === 0);
  spawnSync("umount", ["-l", graph]);
  fs.rmSync(dir, { recursive: true, force: true });
});

function mountExt4(): boolean {
  // Without udev in the guest nobody loads them when they are asked for.
  for (const module of ["loop", "quota_v2"]) spawnSync("modprobe", ["-q", module]);
  fs.writeFileSync(ext4, "");
  fs.truncateSync(ext4, 400 << 20);
  const features = ["-O", "quota,project", "-E", "quotatype=prjquota"];
  const made = spawnSync("mkfs.ext4", ["-q", ...features, ext4], { encoding: "utf8" });
  if (made.status !== 0) throw new Error(`mkfs.ext4: ${made.stderr}`);
  return spawnSync("mount", ["-o", "loop,prjquota", ext4, graph]).status === 0;
}

test("is refused at the start if the file system does not support it", () => {
  const tmpfs = join(dir, "tmpfs");
  fs.mkdirSync(tmpfs);
  spawnSync("mount", ["-t", "tmpfs", "tmpfs", tmpfs]);
  try {
    const file = join(dir, "daemon.json");
    const config = {
      hosts: [`unix://${dir}/isulad.sock`],
      state: join(dir, "state"),
      pidfile: join(dir, "pid"),
      graph: tmpfs,
      "storage-opts": ["overlay2.size=10M"],
    };
    fs.writeFileSync(file, JSON.stringify(config));
    const run = spawnSync(executable, ["--config", file], { encoding: "utf8", timeout: 100_000 });
    expect(run.status).toBe(1);
    expect(run.stderr).toMatch(/"overlay2.size" cannot be enforced: .*prjquota/);
    expect(fs.readdirSync(join(tmpfs, "layers"))).toEqual([]);
  } finally {
    spawnSync("umount", ["-l", tmpfs]);
  }
});

describe.skipIf(!isMounted).each(["auto", "native"])("where it can (%s)", (driver) => {
  test("it limits a container's writable layer, and removed files no longer count", async () => {
    const config = {
      graph: join(graph, driver),
      "storage-driver": driver,
      "storage-opts": ["overlay2.size=8M"],
    };
    await using daemon = await startDaemon({ config });
    const { info } = await daemon.client.Status({ verbose: true });
    expect(JSON.parse(info["storage"]!)).toMatchObject({ containerBytes: 8 << 20 });
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const write = (mib: number) =>
      `dd if=/dev/zero of=/f${mib} bs=1M count=${mib} 2>/dev/null && echo fits || echo full`;
    for (const _ of [1, 2]) {
      const { text } = await daemon.output(podId, pod, `${write(6)}; ${write(12)}`);
      expect(text).toBe("fits\nfull\n");
    }
    // Volumes of the image share the limit; what the image has in them does not count.
    const name = "example.test/volume:1";
    const data = Buffer.alloc(9 << 20, "x").toString();
    await daemon.loadImage(
      busyboxImage({ Volumes: { "/data": {} } }, [{ name: "data/file", data }]),
      name,
    );
    const inVolume = `${write(3)}; ${write(6).replace("of=/", "of=/data/")}; wc -c < /data/file`;
    const { text } = await daemon.output(podId, pod, inVolume, { image: { image: name } });
    expect(text).toBe(`fits\nfull\n${9 << 20}\n`);
    await daemon.removePod(podId);
    const again = await daemon.runPod(pod);
    expect((await daemon.output(again, pod, write(6))).text).toBe("fits\n");
    await daemon.removePod(again);
  });
});
