// Compares pods by runtime: runc by its command line, runc's shim, gVisor. Prints the time until a pod with one
// container runs, and the memory that the pod takes beside its own processes: `bun test/bench/shims.ts [--pods
// 10]`. Needs `test/shims 2.4.2 gvisor` and a quiet machine.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { type Daemon, startDaemon } from "../harness.ts";
import { pssKib } from "../leaks.ts";
import { median } from "../median.ts";
import { gvisorHandler, gvisorShim, runcHandler, runcShim } from "../shim_programs.ts";

const version = "2.4.2";
/** Time for what a start leaves behind to end. */
const settleMs = 3_000;

/** Returns the PSS of daemon, monitor, shims and sandboxes in KiB, without the containers' own processes. */
function memory(daemon: Daemon): number {
  const { stdout } = spawnSync("ps", ["-eo", "pid,args"], { encoding: "utf8" });
  const lines = stdout.split("\n").filter((line) => /containerd-shim|runsc/.test(line));
  const pids = lines
    .filter((line) => line.includes(daemon.dir))
    .map((line) => Number.parseInt(line, 10));
  return [...daemon.scope.pids(), ...pids].reduce((sum, pid) => sum + pssKib(pid), 0);
}

async function measure(daemon: Daemon, runtime_handler: string, pods: number): Promise<string> {
  await sleep(settleMs);
  const before = memory(daemon);
  const times: number[] = [];
  for (let count = 0; count < pods; count++) {
    const config = daemon.podConfig();
    const begin = performance.now();
    const { pod_sandbox_id } = await daemon.client.RunPodSandbox({ config, runtime_handler });
    await daemon.run(pod_sandbox_id, config, ["sleep", "3600"]);
    times.push(performance.now() - begin);
  }
  await sleep(settleMs);
  const podKib = (memory(daemon) - before) / pods;
  await daemon.removeAllPods();
  return `${runtime_handler.padEnd(8)} ${median(times).toFixed(0).padStart(5)} ms ${(podKib / 1024).toFixed(2).padStart(7)} MiB a pod`;
}

const { values } = parseArgs({ options: { pods: { type: "string", default: "10" } } });
for (const program of [runcShim(version), gvisorShim]) {
  if (!existsSync(program)) throw new Error(`${program} is missing: test/shims ${version} gvisor`);
}
await using daemon = await startDaemon();
await daemon.stop();
const gvisor = gvisorHandler(join(daemon.dir, "gvisor.toml"));
daemon.writeConfig({ runtimes: { shim: runcHandler(version), gvisor } });
await daemon.start();
for (const handler of ["runc", "shim", "gvisor"]) {
  console.log(await measure(daemon, handler, Number(values.pods)));
}
