// Tests isulad-ts why against a daemon: what happened to a pod, also after its removal.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { failure } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

function why(...words: string[]) {
  const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
  return spawnSync(executable, ["why", ...words], { env, encoding: "utf8" });
}

test("a pod's timeline has its network, failures, timeouts and exits, also after its removal", async () => {
  const pod = daemon.podConfig({ metadata: { name: "web" } });
  const podId = await daemon.runPod(pod);
  const app = await daemon.run(podId, pod, "sleep 600", { metadata: { name: "app" } });
  const probe = failure(daemon.exec(app, "sleep 60", 1));
  const named = { metadata: { name: "broken" } };
  await failure(daemon.run(podId, pod, ["/no/such"], named));
  await daemon.exited(await daemon.run(podId, pod, "exit 3", { metadata: { name: "short" } }));
  await probe;
  await daemon.client.StopContainer({ container_id: app, timeout: 0 as never });
  await daemon.removePod(podId);

  const { status, stdout } = why("test/web");
  expect(status).toBe(0);
  expect(stdout).toMatch(/\(pod\) +network made by bridge.* in [\d.]+ m?s/);
  expect(stdout).toMatch(/app +created from .*busybox:latest/);
  expect(stdout).toMatch(/app +exec \(a probe or hook\) timed out after [1-9][\d.]* s/);
  expect(stdout).toMatch(/app +exited with code 137 \(SIGKILL\) after/);
  expect(stdout).toMatch(/broken +StartContainer failed after .* with/);
  expect(stdout).toMatch(/short +exited with code 3 after/);
  expect(stdout).toMatch(/\(pod\) +removed\n$/);
  expect(Math.max(...stdout.split("\n").map((line) => line.length))).toBeLessThanOrEqual(80);

  const { entries, objects } = JSON.parse(why("-o", "json", podId.slice(0, 12)).stdout);
  expect(objects[0]).toMatchObject({ id: podId, container: "" });
  expect(entries.map(({ what }: { what: string }) => what)).toContain("ExecSync");
  expect(why("test/web/short").stdout).not.toContain("app");
  expect(why("wob").stderr).toContain("pod wob not found");
});

test("of a pod that is older than the daemon's start it says since when it knows", async () => {
  const pod = daemon.podConfig({ metadata: { name: "old" } });
  const podId = await daemon.runPod(pod);
  const line =
    /^The daemon was started at [\d-]+ [\d:]+; of the time before, this has what\nthe records tell/;
  expect(why("test/old").stdout).not.toMatch(line);
  const metadata = { name: "done", attempt: 4 };
  await daemon.exited(await daemon.run(podId, pod, "exit 3", { metadata }));
  await daemon.restart();
  const told = why("test/old").stdout;
  expect(told).toMatch(line);
  expect(told).toMatch(/\(pod\) +pod created\n/);
  expect(told).toMatch(/done +created from .*busybox:latest, restart 4\n/);
  expect(told).toMatch(/done +started\n/);
  expect(told).toMatch(/done +exited with code 3 after/);
  const app = await daemon.run(podId, pod, "sleep 600", { metadata: { name: "app" } });
  expect(why("test/old").stdout).toMatch(line);
  expect(why("test/old").stdout).toMatch(/app +started in/);
  expect(why(app).stdout).not.toMatch(line);
  await daemon.removePod(podId);
});
