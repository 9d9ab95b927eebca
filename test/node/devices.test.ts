// Tests which device nodes of a folder are a container's devices, with nodes that only root can make.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { lookupDevice } from "../../src/node/devices.ts";
import { mknod } from "../../src/sys/path.ts";

test("a folder of devices has those of its folders, without LXC's and udev's own", async () => {
  const folder = mkdtempSync(join(tmpdir(), "devices-"));
  try {
    for (const name of [".lxc", ".lxd-mounts", ".udev", "sub"]) {
      mkdirSync(join(folder, name));
      mknod(join(folder, name, "zero"), 0o020600, 1, 5);
    }
    const found = await lookupDevice({ host_path: folder, container_path: "/dev/x" });
    expect(found.map(({ node }) => node.path)).toEqual(["/dev/x/sub/zero"]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
