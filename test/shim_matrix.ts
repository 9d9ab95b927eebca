// Runs the tests of shims with each shim that test/shims has built, and prints a table, which names the others:
// `bun test/shim_matrix.ts [--again]`. Progress is recorded in test/.cache/shim_matrix.json; an interrupted run is
// resumed if the executable is the same.
import { spawnSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { resumed } from "./run_record.ts";
import { builtRuncShims, failpointShim, gvisorShim, runcShimVersions } from "./shim_programs.ts";

type Result = { shim: string; file: string; passed: number; failed: string[] };

const runcFiles = ["cri/shim", "cri/shim_streams", "cri/checkpoint"];
const gvisorFiles = ["cri/gvisor", "cri/shim_streams"];

function runFile(shim: string, file: string): Result {
  const argv = ["test", "--timeout", "60000", join(import.meta.dirname, `${file}.test.ts`)];
  const env = { ...process.env, ...(/^\d/.test(shim) ? { ISULAD_SHIM: shim } : {}) };
  const done = spawnSync(process.execPath, argv, { env, encoding: "utf8" });
  const lines = `${done.stdout}${done.stderr}`.split("\n");
  const failed = [...new Set(lines.filter((line) => line.startsWith("(fail)")))];
  const passed = lines.filter((line) => line.startsWith("(pass)")).length;
  if (done.status !== 0 && failed.length === 0) failed.push(lines.slice(-20).join("\n"));
  return { shim, file, passed, failed };
}

function main(): number {
  const { values } = parseArgs({ options: { again: { type: "boolean", default: false } } });
  const file = join(import.meta.dirname, ".cache/shim_matrix.json");
  const record = resumed(file, { done: [] as Result[] }, values);
  const versions = builtRuncShims().flatMap((shim) => runcFiles.map((name) => [shim, name]));
  const gvisor = existsSync(gvisorShim) ? gvisorFiles.map((name) => ["gvisor", name]) : [];
  const failpoint = existsSync(failpointShim) ? [["failpoint", "cri/shim_failpoints"]] : [];
  const all = ["all", "monitor/task_client"];
  for (const version of runcShimVersions) {
    if (!builtRuncShims().includes(version))
      console.log(`${version} is not built: test/shims ${version}`);
  }
  if (failpoint.length === 0) console.log("failpoint is not built: test/shims failpoint");
  if (gvisor.length === 0) console.log("gvisor is not built: test/shims gvisor");
  let failures = 0;
  for (const [shim = "", name = ""] of [all, ...versions, ...failpoint, ...gvisor]) {
    const isSame = (one: Result) => one.shim === shim && one.file === name;
    const known = record.done.find((one) => isSame(one) && one.failed.length === 0);
    const result = known ?? runFile(shim, name);
    record.done = [...record.done.filter((one) => !isSame(one)), result];
    writeFileSync(file, JSON.stringify(record, null, 2));
    failures += result.failed.length;
    const { passed, failed } = result;
    console.log(`${shim.padEnd(9)} ${name.padEnd(20)} ${passed} passed, ${failed.length} failed`);
    for (const line of failed) console.log(`  ${line}`);
  }
  return failures === 0 ? 0 : 1;
}

if (import.meta.main) process.exitCode = main();
