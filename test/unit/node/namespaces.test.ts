// Tests where the network namespaces of pods are pinned.
import { expect, test } from "bun:test";
import { netnsFolders, netnsName } from "../../../src/node/namespaces.ts";

test("netnsFolders() has the folder of new pods first, and always both", () => {
  const folders = (netnsUnderState: boolean) => netnsFolders({ state: "/s", netnsUnderState });
  expect(folders(false)).toEqual(["/var/run/netns", "/s/netns"]);
  expect(folders(true)).toEqual(["/s/netns", "/var/run/netns"]);
});

test("netnsName() has the daemon's instance and the first half of the pod's id", () => {
  expect(netnsName("0a1b", "c".repeat(64))).toBe(`isulad-0a1b-${"c".repeat(32)}`);
});
