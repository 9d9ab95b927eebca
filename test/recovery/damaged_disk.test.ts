// Tests a start on a disk with folders that a power loss has damaged so that nothing can remove them.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DamagedDisk } from "../damaged_disk.ts";
import { until } from "../expect.ts";
import { startDaemon } from "../harness.ts";

test("the daemon starts, names what it cannot remove, and runs pods", async () => {
  const dir = mkdtempSync(join(tmpdir(), "isulad-damaged-"));
  {
    using disk = new DamagedDisk(join(dir, "disk"));
    await using daemon = await startDaemon({ config: { graph: disk.folder } });
    await daemon.stop();
    const id = "ab".repeat(32);
    const left = [`sandboxes/.removing-${id}`, "layers/scratch/0123456789abcdef"];
    for (const path of [...left, `sandboxes/${id}`]) {
      mkdirSync(join(disk.folder, path));
      disk.damage(path);
    }
    await daemon.start();
    const reported = left.map(
      (path) => `cannot remove ${join(disk.folder, path)}: it lists no entry`,
    );
    for (const text of [`sandbox ${id} cannot be read`, ...reported]) {
      await until(text, () => daemon.log.includes(text));
    }
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    expect((await daemon.output(podId, pod, "echo works")).text).toBe("works\n");
    await daemon.removePod(podId);
    await daemon.stop(); // before the disk goes
  }
  rmdirSync(dir);
});
