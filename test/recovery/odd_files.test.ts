// Tests folders and links in place of the files that the daemon reads: it logs each with its path, starts all
// the same, and pods whose records are whole are not affected.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, readdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import process from "node:process";
import { runtime } from "../../src/proto/messages.js";
import { MNT_DETACH, mount, unmount } from "../../src/sys/mount.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const id = "ab".repeat(32);
const strayId = "ef".repeat(32);

let daemon: Daemon;
let podId: string;
let containerId: string;

beforeAll(async () => {
  daemon = await startDaemon();
  const pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  containerId = await daemon.run(podId, pod, ["sleep", "600"]);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** A folder with something in it. */
function folder(path: string): void {
  mkdirSync(join(path, "within"), { recursive: true });
}

/** A link to itself. */
function loop(path: string): void {
  mkdirSync(dirname(path), { recursive: true });
  symlinkSync(path, path);
}

const odd: [what: string, path: string, make: (path: string) => void][] = [
  ["a sandbox's record", `graph/sandboxes/${id}/sandbox.json`, folder],
  ["a container's record", `graph/containers/${id}/container.json`, loop],
  ["a change of no record", `state/records/container-${strayId}.json`, folder],
  ["an image's record", `graph/images/${id}.json`, folder],
  ["an image's record half written", "graph/images/x.tmp", folder],
  ["an image's configuration", `graph/images/${id}.config`, folder],
  ["a layer's record", "graph/layers/abababababab.json", folder],
  ["a layer's record half written", "graph/layers/x.tmp", folder],
  ["a layer's listing", "graph/layers/abababababab.list", folder],
  ["the event clock", "state/event-clock", folder],
];

async function expectWhole(): Promise<void> {
  const { state } = await daemon.status(containerId);
  expect(state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
  expect((await daemon.exec(containerId, "echo alive")).stdout).toBe("alive\n");
  expect((await daemon.client.ListImages({})).images).toHaveLength(1);
}

test("what is no file stops no start, and is in the way of nothing", async () => {
  await daemon.stop();
  for (const [, path, make] of odd) {
    rmSync(join(daemon.dir, path), { recursive: true, force: true });
    make(join(daemon.dir, path));
  }
  const logged = daemon.log.length;
  await daemon.start();
  await expectWhole();
  const told = daemon.log.slice(logged);
  const records = odd.filter(([what]) =>
    /^a (?:sandbox|container|image|layer)'s record$/.test(what),
  );
  for (const [, path] of records) expect(told).toContain(join(daemon.dir, path));
  for (const name of [`sandbox-${id}`, `container-${id}`]) {
    const aside = readdirSync(join(daemon.dir, "graph/set-aside"));
    expect(aside.some((one) => one.startsWith(name))).toBe(true);
  }
  const again = daemon.log.length;
  await daemon.restart();
  expect(daemon.log.slice(again)).not.toMatch(/ (?:ERROR|WARN ) /);
  await expectWhole();
});

test("one of a record's two files that is a folder: the other one counts", async () => {
  const [change, record] = [
    join(daemon.dir, `state/records/container-${containerId}.json`),
    join(daemon.dir, `graph/containers/${containerId}/container.json`),
  ];
  await daemon.stop();
  rmSync(record);
  folder(record);
  await daemon.start();
  await expectWhole();
  await daemon.stop();
  expect(existsSync(record)).toBe(false);
  expect(existsSync(change)).toBe(true);
  await daemon.start();
  await expectWhole();
});

test("a damaged image record whose place aside is taken is passed over", async () => {
  await daemon.stop();
  const path = join(daemon.dir, "graph/images", `${"cd".repeat(32)}.json`);
  writeFileSync(path, "{");
  folder(`${path}.unreadable`);
  const logged = daemon.log.length;
  await daemon.start();
  expect(daemon.log.slice(logged)).toContain(path);
  await expectWhole();
});

test("a damaged record of the monitor whose place aside is taken keeps no monitor from serving", async () => {
  const path = join(daemon.dir, "state/monitor/containers", `${"cd".repeat(32)}.json`);
  writeFileSync(path, "{");
  folder(`${path}.damaged`);
  for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
  await until("another monitor serves", () =>
    daemon.exec(containerId, "true").then(
      () => true,
      () => false,
    ),
  );
  await expectWhole();
  rmSync(path);
});

test("an orphaned folder that cannot be removed holds up no other (needs root)", async () => {
  await daemon.stop();
  const [kept, gone] = ["aa", "cc"].map((two) =>
    join(daemon.dir, "state/stdio", two.repeat(32)),
  ) as [string, string];
  for (const path of [kept, gone]) folder(path);
  mount("tmpfs", join(kept, "within"), "tmpfs", 0);
  try {
    const logged = daemon.log.length;
    await daemon.start();
    await until("the other one is removed", () => !existsSync(gone));
    await until("it is told of", () => daemon.log.slice(logged).includes(kept));
    expect(existsSync(kept)).toBe(true);
  } finally {
    unmount(join(kept, "within"), MNT_DETACH);
  }
});
