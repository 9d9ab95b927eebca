// Tests the bounds of peers that have not been accepted: how many, how long, and who goes first.
import { expect, test } from "bun:test";
import { Lobby } from "../../../src/base/lobby.ts";
import { until } from "../../expect.ts";

function lobby(peersMax = 3, deadlineMs = 60_000) {
  const expelled: string[] = [];
  const clock = { now: 0 };
  const options = { peersMax, deadlineMs, graceMs: 100 };
  const peers = new Lobby<string>(
    { ...options, expel: (peer) => void expelled.push(peer) },
    () => clock.now,
  );
  return { peers, expelled, clock };
}

test("the oldest goes when one more comes than there is room for", () => {
  const { peers, expelled } = lobby();
  for (const name of ["a", "b", "c", "d", "e"]) peers.enter(name);
  expect(expelled).toEqual(["a", "b"]);
  expect(peers.size).toBe(3);
});

test("who was accepted is expelled no more; who was expelled is not accepted", () => {
  const { peers, expelled } = lobby();
  for (const name of ["a", "b", "c"]) peers.enter(name);
  expect(peers.leave("a")).toBe(true);
  for (const name of ["d", "e"]) peers.enter(name);
  expect(expelled).toEqual(["b"]);
  expect(peers.leave("b")).toBe(false);
});

test("room is there at once, or when the oldest has had its time", () => {
  const { peers, clock } = lobby();
  for (const name of ["a", "b", "c"]) {
    expect(peers.roomInMs()).toBe(0);
    peers.enter(name);
    clock.now += 10;
  }
  expect(peers.roomInMs()).toBe(70);
  peers.leave("a");
  expect(peers.roomInMs()).toBe(0);
  peers.enter("d");
  expect(peers.roomInMs()).toBe(80);
  clock.now += 1000;
  expect(peers.roomInMs()).toBe(0);
});

test("who stays too long goes, one after the other", async () => {
  const deadlineMs = 200;
  const entered: Record<string, number> = {};
  const stays: [string, boolean][] = [];
  const expel = (peer: string) => {
    // A timer may be early by less than a millisecond.
    stays.push([peer, performance.now() - entered[peer]! > deadlineMs - 1]);
  };
  using peers = new Lobby<string>({ peersMax: 9, deadlineMs, graceMs: 0, expel });
  for (const peer of ["a", "b"]) {
    entered[peer] = performance.now();
    peers.enter(peer);
    await Bun.sleep(100);
  }
  await until("both are expelled", () => stays.length === 2);
  expect(stays).toEqual([
    ["a", true],
    ["b", true],
  ]);
});

test("at its end nobody is left", () => {
  const { peers, expelled } = lobby();
  for (const name of ["a", "b"]) peers.enter(name);
  peers[Symbol.dispose]();
  expect(expelled).toEqual(["a", "b"]);
});
