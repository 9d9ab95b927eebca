// Checks the alert rules of docs/monitoring with promtool, which it builds from the Go module proxy: are they valid,
// and does each fire? `bun test/promtool.ts` exits with 1 on a problem. PROMTOOL=path names an existing one.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";

const folder = join(import.meta.dirname, "../docs/monitoring");

function run(argv: string[], cwd: string): void {
  const env = { ...process.env, CGO_ENABLED: "0" };
  const { status } = spawnSync(argv[0]!, argv.slice(1), { cwd, env, stdio: "inherit" });
  if (status !== 0) process.exit(1);
}

function promtool(): string {
  const program = process.env["PROMTOOL"] ?? join(import.meta.dirname, ".cache/promtool");
  if (existsSync(program)) return program;
  const build = ["go", "build", "-p", "1", "-mod=readonly", "-trimpath", "-ldflags=-s -w"];
  const source = "github.com/prometheus/prometheus/cmd/promtool";
  run([...build, "-o", program, source], join(import.meta.dirname, "promtool"));
  return program;
}

const program = promtool();
run([program, "check", "rules", "alerts.yaml"], folder);
run([program, "test", "rules", "alerts.test.yaml"], folder);
