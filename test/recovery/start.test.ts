// Tests the daemon's start with a few recorded pods, within the bounds of test/bench/start.ts (which has a
// hundred), and after a daemon that was killed.
import { expect, test } from "bun:test";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { problemsOf, startFigures } from "../bench/start.ts";
import { startDaemon } from "../harness.ts";

test("recorded pods hardly delay the first answer, and all are verified at once", async () => {
  let problems: string[] = [];
  // Again if it fails: other tests may have begun between the starts that are compared.
  for (let attempt = 0; attempt < 3; attempt++) {
    await using daemon = await startDaemon({ image: false });
    problems = problemsOf(await startFigures(daemon, 12));
    if (problems.length === 0) break;
  }
  expect(problems).toEqual([]);
}, 400_000);

test("a socket for a terminal that a killed daemon has left is removed", async () => {
  await using daemon = await startDaemon({ network: false, image: false });
  const left = join(daemon.dir, "state/tty/tty-00000000");
  await daemon.stop("SIGKILL");
  mkdirSync(dirname(left), { recursive: true });
  writeFileSync(left, "");
  await daemon.start();
  expect(existsSync(left)).toBe(false);
});
