// Tests how an installation starts the service, and which processes it takes for the daemon's.
import { expect, test } from "bun:test";
import { chmodSync, copyFileSync, mkdtempSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startVerb } from "../../../src/install/install.ts";
import { processesOf } from "../../../src/install/service.ts";
import { until } from "../../expect.ts";

test.each([
  ["a stopped service that is enabled", false, true, "start"],
  ["a running service", true, true, "restart"],
  ["a disabled service", false, false, undefined],
  ["a disabled service that runs nevertheless", true, false, "restart"],
])("%s: whether it is started", (_, isRunning, enables, verb) => {
  expect(startVerb({ isRunning, enables })).toBe(verb as never);
});

test("the processes of a program are not those of containers", async () => {
  const scratch = mkdtempSync(join(tmpdir(), "isulad-service-"));
  const program = join(scratch, "sleep");
  copyFileSync("/bin/sleep", program);
  chmodSync(program, 0o755);
  const own = Bun.spawn([program, "30"]);
  const contained = Bun.spawn(["unshare", "-r", "-p", "-f", "--kill-child", program, "30"]);
  try {
    const containedIds = () =>
      readFileSync(`/proc/${contained.pid}/task/${contained.pid}/children`, "utf8").trim();
    const runs = (pid: string | number) => readlinkSync(`/proc/${pid}/exe`) === program;
    await until("both run the program", () => containedIds() !== "" && runs(containedIds()));
    await until("both run the program", () => runs(own.pid));
    expect(processesOf(program)).toEqual([own.pid]);
  } finally {
    own.kill();
    contained.kill("SIGKILL"); // unshare ignores SIGTERM
    await Promise.all([own.exited, contained.exited]);
    rmSync(scratch, { recursive: true });
  }
});
