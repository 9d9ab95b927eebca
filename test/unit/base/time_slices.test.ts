// Tests that peers share one slice of each turn, with a clock and turns that the test makes.
import { expect, test } from "bun:test";
import { PeerQueue, PeerTurn } from "../../../src/base/time_slices.ts";

function makeQueue() {
  const clock = { now: 0 };
  const turns: (() => void)[] = [];
  const queue = new PeerQueue(
    () => clock.now,
    (react) => turns.push(react),
  );
  /** Runs the next turn of the loop, and what it resumes. */
  const turn = async () => {
    for (const react of turns.splice(0)) react();
    await Promise.resolve();
  };
  return { clock, queue, turns, turn };
}

/** A loop that takes `takesMs` for each step. */
function peer(
  { clock, queue }: Pick<ReturnType<typeof makeQueue>, "clock" | "queue">,
  takesMs: number,
) {
  const self = { steps: 0, isEnded: false };
  const turn = new PeerTurn(queue);
  const run = async () => {
    while (!self.isEnded) {
      if (turn.isOver) await turn.next();
      self.steps++;
      clock.now += takesMs;
    }
  };
  return { self, run };
}

test("a peer goes on until the slice is over, then in the next turn", async () => {
  const made = makeQueue();
  const { self, run } = peer(made, 1);
  void run();
  expect(self.steps).toBe(3);
  await made.turn();
  expect(self.steps).toBe(6);
});

test("all peers have one slice of a turn together, and each gets its turn", async () => {
  const made = makeQueue();
  const peers = Array.from({ length: 10 }, () => peer(made, 1));
  for (const { run } of peers) void run();
  expect(made.clock.now).toBe(3);
  for (let turn = 1; turn <= 20; turn++) {
    await made.turn();
    expect(made.clock.now).toBe(3 * (turn + 1));
  }
  const steps = peers.map(({ self }) => self.steps);
  expect(Math.min(...steps)).toBeGreaterThanOrEqual(6);
  expect(Math.max(...steps)).toBeLessThanOrEqual(9);
});

test("a peer that comes while others wait is served after them", async () => {
  const made = makeQueue();
  const floods = [peer(made, 1), peer(made, 1)];
  for (const { run } of floods) void run();
  const late = peer(made, 1);
  void late.run();
  await made.turn();
  expect(late.self.steps).toBe(0);
  await made.turn();
  await made.turn();
  expect(late.self.steps).toBe(3);
});

test("without a peer there are no turns", async () => {
  const made = makeQueue();
  const { self, run } = peer(made, 1);
  void run();
  await made.turn();
  self.isEnded = true;
  await made.turn();
  await made.turn();
  expect(made.turns).toHaveLength(0);
  expect(new PeerTurn(made.queue).isOver).toBe(false);
});
