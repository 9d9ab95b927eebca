// Tests the bounds of peers that have not been accepted: how many, how long, and who goes first.
import { expect, test } from "bun:test";
import { Lobby } from "../../../src/base/lobby.ts";

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
  const expelled: string[] = [];
  const expel = (peer: string) => void expelled.push(peer);
  using peers = new Lobby<string>({ peersMax: 9, deadlineMs: 200, graceMs: 0, expel });
  peers.enter("a");
  await Bun.sleep(100);
  peers.enter("b");
  await Bun.sleep(150);
  expect(expelled).toEqual(["a"]);
  await Bun.sleep(150);
  expect(expelled).toEqual(["a", "b"]);
});

test("at its end nobody is left", () => {
  const { peers, expelled } = lobby();
  for (const name of ["a", "b"]) peers.enter(name);
  peers[Symbol.dispose]();
  expect(expelled).toEqual(["a", "b"]);
});
