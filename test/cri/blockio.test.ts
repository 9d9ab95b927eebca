// Tests that an annotation's class of block I/O is in the kernel, where it has io.weight (the guest's).
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Daemon, startDaemon } from "../harness.ts";

const hasWeight = existsSync("/sys/fs/cgroup/system.slice/io.weight");
if (!hasWeight) console.error("skipped, the kernel has no io.weight: classes of block I/O");

let daemon: Daemon;
let folder = "";
beforeAll(async () => {
  if (!hasWeight) return;
  folder = mkdtempSync(join(tmpdir(), "isulad-blockio-"));
  const file = join(folder, "classes.yaml");
  writeFileSync(file, "Classes:\n  Slow:\n    - Weight: 510\n  Slower:\n    - Weight: 10\n");
  daemon = await startDaemon({ network: false, config: { "blockio-config-file": file } });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  if (folder !== "") rmSync(folder, { recursive: true });
});

/** The kernel's weights are 1 to 10,000 for 10 to 1,000; these are converted without a remainder. */
test.skipIf(!hasWeight).each([
  ["Slow", "5051"],
  ["Slower", "1"],
  [undefined, "100"],
])("class %p", async (name, weight) => {
  const key = "blockio.resources.beta.kubernetes.io/pod";
  const annotations: Record<string, string> = name === undefined ? {} : { [key]: name };
  const pod = daemon.hostPodConfig({ annotations });
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const cgroup = readFileSync(`/proc/${await daemon.pidOf(id)}/cgroup`, "utf8")
    .trim()
    .replace("0::", "");
  const text = readFileSync(join("/sys/fs/cgroup", cgroup, "io.weight"), "utf8");
  expect(text).toMatch(new RegExp(`^default ${weight}$`, "m"));
  await daemon.removePod(podId);
});
