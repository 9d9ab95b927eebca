// Tests containers with a terminal that end at once: the daemon asks for terminals that have gone meanwhile.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readdirSync, readlinkSync } from "node:fs";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

let daemon: Daemon;
beforeAll(async () => (daemon = await startDaemon({ network: false })));
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** How many terminals the daemon has open. */
function terminals(): number {
  const folder = `/proc/${daemon.pid}/fd`;
  const links = readdirSync(folder).map((fd) => {
    try {
      return readlinkSync(`${folder}/${fd}`);
    } catch {
      return ""; // closed meanwhile
    }
  });
  return links.filter((link) => link === "/dev/ptmx" || link.startsWith("/dev/pts/")).length;
}

test("leave no warning and no descriptor when they end before the daemon has their terminal", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  for (let round = 0; round < 5; round++) {
    const runs = Array.from({ length: 6 }, () =>
      daemon.run(podId, pod, ["true"], { tty: true }).then((id) => daemon.exited(id)),
    );
    await Promise.all(runs);
  }
  expect(daemon.log).not.toContain("keeping a terminal for the next monitor failed");
  await until("the daemon has closed every terminal", () => terminals() === 0);
  await daemon.removePod(podId);
});
