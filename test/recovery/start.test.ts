// A few recorded pods, with the bounds of test/bench/start.ts (which has a hundred).
import { expect, test } from "bun:test";
import { problemsOf, startFigures } from "../bench/start.ts";
import { startDaemon } from "../harness.ts";

test("recorded pods hardly delay the first answer, and all are verified at once", async () => {
  await using daemon = await startDaemon({ image: false });
  const figures = await startFigures(daemon, 12);
  expect(problemsOf(figures)).toEqual([]);
}, 60_000);
