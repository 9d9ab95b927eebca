// Tests a removal that kill -9 interrupts, of a container that has written more than can be removed soon.
import { expect, test } from "bun:test";
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { until } from "../expect.ts";
import { startDaemon } from "../harness.ts";
import { silentDisk } from "../silent_disk.ts";

test("what it has left keeps no start waiting, and goes", async () => {
  await using daemon = await startDaemon({ network: false, image: false });
  await daemon.stop("SIGKILL");
  const left = join(daemon.dir, "graph/containers", `.removing-${"5a".repeat(32)}`);
  mkdirSync(join(left, "upper/etc"), { recursive: true });
  {
    using _ = silentDisk(join(left, "upper/etc/slow")); // who removes it waits
    await daemon.start();
    expect(existsSync(left)).toBe(true);
  }
  await daemon.restart();
  await until("it is gone", () => !existsSync(left));
});
