// Tests what a daemon makes of an earlier daemon's records at its start.
import { expect, test } from "bun:test";
import type { Context } from "../../../src/cri/context.ts";
import { runtime } from "../../../src/proto/messages.js";
import { recoverRecords } from "../../../src/recovery/start.ts";
import type { Container } from "../../../src/state/container.ts";
import type { Sandbox } from "../../../src/state/sandbox.ts";
import {
  capturedLog,
  changingStore,
  containerRecord,
  failureOf,
  phases,
  sandboxRecord,
} from "../fakes.ts";

type Given = { sandboxes?: Sandbox[]; containers?: Container[]; restore?: () => void };

function fixture({ sandboxes = [], containers = [], restore = () => {} }: Given) {
  const { log, lines } = capturedLog("info");
  const granted: [string, number][] = [];
  const store = <Item extends { id: string }>(items: Item[]) => ({
    ...changingStore(items),
    restoreStrays: async () => [],
    load: async () => [],
    finishRemovals: async () => [],
    release: () => {},
    remove: async (id: string) => {
      const at = items.findIndex((one) => one.id === id);
      items.splice(at, 1);
    },
  });
  const context = {
    log,
    bootId: "boot",
    config: { graph: "/graph", state: "/state" },
    cgroup: { name: "cgroupfs" },
    sandboxes: store(sandboxes),
    containers: store(containers),
    images: { unmountRootfs: async () => {} },
    history: { recovered: () => {} },
    usernsAccess: {
      restore: (gids: Map<string, number>) => {
        granted.push(...gids);
        restore();
      },
    },
  };
  const recover = () => recoverRecords(context as unknown as Context);
  return { recover, lines, granted, sandboxes, containers };
}

const full = () => {
  throw new Error("no access control lists here");
};

test("records of this boot stay as they are", async () => {
  const [sandbox, container] = [sandboxRecord(), containerRecord({ phase: phases.running })];
  const { recover, lines, sandboxes, containers } = fixture({
    sandboxes: [sandbox],
    containers: [container],
  });
  await recover();
  expect([sandboxes, containers]).toEqual([[sandbox], [container]]);
  expect(lines).toEqual([]);
});

test("after a reboot containers are lost and sandboxes end", async () => {
  const { recover, sandboxes, containers } = fixture({
    sandboxes: [sandboxRecord({ bootId: "earlier" })],
    containers: [containerRecord({ bootId: "earlier", phase: phases.running })],
  });
  await recover();
  expect(containers[0]!.phase).toMatchObject({
    phase: "exited",
    message: "the node was restarted",
  });
  expect(sandboxes[0]!.ending).toBe("stop");
});

test("a RunPodSandbox and a CreateContainer that were cut off are undone", async () => {
  const { recover, lines, sandboxes, containers } = fixture({
    sandboxes: [sandboxRecord(), sandboxRecord({ id: "p2", phase: { phase: "creating" } })],
    containers: [containerRecord(), containerRecord({ id: "c2", phase: phases.creating })],
  });
  await recover();
  expect(containers.map(({ id }) => id)).toEqual(["c1"]);
  expect(sandboxes.map(({ ending }) => ending)).toEqual([undefined, "undo"]);
  expect(lines).toHaveLength(1);
  expect(lines[0]).toContain("undoing a CreateContainer that was cut off");
});

const ids = [{ container_id: 0, host_id: 70_000, length: 65_536 }];
const userns_options = { mode: runtime.v1.NamespaceMode.POD, uids: ids, gids: ids };
const withUserns = () =>
  sandboxRecord({
    id: "p2",
    config: { linux: { security_context: { namespace_options: { userns_options } } } },
    namespaces: { user: { path: "/ns", inode: "1" } },
  });

test("pods with a user namespace, and no others, get access to their root file systems", async () => {
  const { recover, granted } = fixture({ sandboxes: [sandboxRecord(), withUserns()] });
  await recover();
  expect(granted).toEqual([["p2", 70_000]]);
});

test("without access control lists the daemon starts if a pod needs them, and fails if none does", async () => {
  const needed = fixture({ sandboxes: [withUserns()], restore: full });
  await needed.recover();
  expect(needed.lines[0]).toContain("cannot be started");
  const unneeded = fixture({ sandboxes: [sandboxRecord()], restore: full });
  expect(await failureOf(unneeded.recover())).toBe("no access control lists here");
});
