// Tests the options of the engine: daemon and monitor have them, what they start does not.
import { expect, test } from "bun:test";
import { chmodSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ociRuntime, startDaemon } from "../harness.ts";

const isOption = /^(BUN_|MIMALLOC_|ISULAD_ENGINE_OPTIONS)/;

/** The environment with which a process's program was executed. */
function environmentOf(pid: number): Map<string, string> {
  const lines = readFileSync(`/proc/${pid}/environ`, "utf8").split("\0").filter(Boolean);
  return new Map(lines.map((line) => [line.split("=", 1)[0]!, line.slice(line.indexOf("=") + 1)]));
}

test("daemon and monitor run with the engine's options, and pass none of them on", async () => {
  const own = { BUN_JSC_thresholdForOptimizeSoon: "700" };
  await using daemon = await startDaemon({ network: false, env: own });
  const [pid, monitor] = [daemon.pid, daemon.monitors()[0]!];
  for (const environment of [pid, monitor].map(environmentOf)) {
    expect(environment.get("MIMALLOC_PURGE_DELAY")).toBe("1000");
    expect(environment.get("ISULAD_ENGINE_OPTIONS")).toBe("set");
    // A registry that has moved is found within two seconds, not thirty.
    expect(environment.get("BUN_CONFIG_DNS_TIME_TO_LIVE_SECONDS")).toBe("1");
  }
  expect(environmentOf(pid).get("BUN_JSC_thresholdForOptimizeSoon")).toBe("700");
  expect(Number(readFileSync(join(daemon.dir, "isulad.pid"), "utf8"))).toBe(pid);

  const [runtime, seen] = ["runtime", "environment"].map((name) => join(daemon.dir, name)) as [
    string,
    string,
  ];
  writeFileSync(runtime, `#!/bin/sh\nenv >> ${seen}\nexec ${ociRuntime} "$@"\n`);
  chmodSync(runtime, 0o755);
  daemon.writeConfig({
    runtimes: { recording: { path: runtime } },
    "default-runtime": "recording",
  });
  await daemon.stop();
  await daemon.start();
  const pod = daemon.hostPodConfig();
  const id = await daemon.run(await daemon.runPod(pod), pod, ["sleep", "600"]);
  expect((await daemon.exec(id, "env")).stdout).not.toContain("GOGC");
  const names = readFileSync(seen, "utf8")
    .split("\n")
    .map((line) => line.split("=", 1)[0]!);
  expect(names.filter((name) => isOption.test(name))).toEqual([]);
  expect(names).toContain("GOGC");
});
