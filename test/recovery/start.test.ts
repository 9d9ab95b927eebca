// Tests the daemon's start with a few recorded pods, within the bounds of test/bench/start.ts (which has a
// hundred), and after a daemon that was killed.
import { expect, test } from "bun:test";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { problemsOf, startFigures } from "../bench/start.ts";
import { startDaemon } from "../harness.ts";

test("recorded pods hardly delay the first answer, and all are verified at once", async () => {
  await using daemon = await startDaemon({ image: false });
  const figures = await startFigures(daemon, 12);
  expect(problemsOf(figures)).toEqual([]);
});

test("a socket for a terminal that a killed daemon has left is removed", async () => {
  await using daemon = await startDaemon({ network: false, image: false });
  const left = join(daemon.dir, "state/tty/tty-00000000");
  await daemon.stop("SIGKILL");
  mkdirSync(dirname(left), { recursive: true });
  writeFileSync(left, "");
  await daemon.start();
  expect(existsSync(left)).toBe(false);
});
