// Tests how an installation starts the service, and which processes it takes for the daemon's.
import { expect, test } from "bun:test";
import { chmodSync, copyFileSync, mkdtempSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { servicePlan } from "../../../src/install/install.ts";
import { processesOf } from "../../../src/install/service.ts";
import { until } from "../../expect.ts";

test.each([
  ["a first installation", false, false, false, true, "start"],
  ["an upgrade", true, true, true, true, "restart"],
  ["a disabled service, upgraded by a package", false, false, true, false, undefined],
  ["one that runs nevertheless", true, false, true, false, "restart"],
  ["a disabled service, installed by hand", false, false, false, true, "start"],
])("%s: whether the service is enabled and started", (...row) => {
  const [, isRunning, isEnabled, isPackageUpgrade, enables, verb] = row;
  expect(servicePlan({ isRunning, isEnabled, isPackageUpgrade })).toEqual({
    enables,
    verb,
  } as never);
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
