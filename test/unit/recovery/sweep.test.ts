// Tests the first sweep: it removes what no record knows, and leaves everything else.
import { afterEach, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Context } from "../../../src/cri/context.ts";
import { startSweeps } from "../../../src/recovery/sweep.ts";
import type { Container } from "../../../src/state/container.ts";
import type { Sandbox } from "../../../src/state/sandbox.ts";
import { capturedLog, changingStore, containerRecord, phases, sandboxRecord } from "../fakes.ts";

const notReady = { phase: "notready", message: "stopped" } as const;
const folder = mkdtempSync(join(tmpdir(), "isulad-sweep-"));
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function fixture(sandboxes: Sandbox[], containers: Container[]) {
  const [graph, state, root] = ["graph", "state", "runc"].map((name) => join(folder, name));
  for (const path of [graph!, root!, join(state!, "stdio"), join(state!, "sandboxes")]) {
    mkdirSync(path, { recursive: true });
  }
  const { log, lines } = capturedLog("info");
  const calls: string[] = [];
  const paths: string[] = [];
  const collected = Promise.withResolvers<void>();
  const context = {
    log,
    instance: "a-test-that-has-no-namespaces",
    config: { graph, state, runtimeTimeoutMs: 100, netnsUnderState: false },
    handlers: new Map([["", { command: { path: "/runc", root } }]]),
    sandboxes: changingStore(sandboxes),
    containers: changingStore(containers),
    monitor: {
      call: async (name: string, { id }: { id: string }) => void calls.push(`${name} ${id}`),
    },
    cgroup: {
      ownPod: (id: string) => id,
      removePodCgroup: async (pod: string) => void calls.push(`cgroup ${pod}`),
    },
    cni: {
      attached: async () => ["p1", "p9"],
      del: async ({ id, netnsPath }: { id: string; netnsPath: string }) => {
        calls.push(`DEL ${id}`);
        paths.push(netnsPath);
      },
      collectGarbage: async (list: () => { id: string }[], knows: (id: string) => boolean) => {
        calls.push(
          `GC but ${list()
            .map(({ id }) => id)
            .join()}; p1 ${knows("p1")}, p9 ${knows("p9")}`,
        );
        collected.resolve();
        return true;
      },
    },
  };
  const sweep = async () => {
    using _ = startSweeps(context as unknown as Context);
    await collected.promise; // the last pass
  };
  return { sweep, calls, paths, lines, state: state!, root: root! };
}

test("what has a record stays, the rest is removed, each pass in its turn", async () => {
  const attached = { recorded: true } as unknown as Sandbox["cni"];
  const { sweep, calls, state, root } = fixture(
    [
      sandboxRecord({ cni: attached }),
      sandboxRecord({ id: "p2", cni: attached, torndown: true, phase: notReady }),
      sandboxRecord({ id: "p3" }),
    ],
    [containerRecord({ phase: phases.running })],
  );
  for (const id of ["c1", "c9"]) {
    mkdirSync(join(root, id));
    mkdirSync(join(state, "stdio", id));
  }
  for (const folder of ["sandboxes", "pod-files"]) {
    for (const id of ["p1", "p9"]) mkdirSync(join(state, folder, id), { recursive: true });
  }
  await sweep();
  expect(calls).toEqual(["remove c9", "DEL p9", "cgroup p9", "GC but p1; p1 true, p9 false"]);
  expect(readdirSync(join(state, "stdio"))).toEqual(["c1"]);
  expect(readdirSync(join(state, "sandboxes"))).toEqual(["p1"]);
  expect(readdirSync(join(state, "pod-files"))).toEqual(["p1"]);
});

test("network namespaces without a record go, also those of the state folder", async () => {
  const { sweep, paths, state } = fixture([sandboxRecord()], []);
  const netns = join(state, "netns");
  mkdirSync(netns);
  const prefix = "isulad-a-test-that-has-no-namespaces-";
  for (const name of [`${prefix}p1`, `${prefix}p7`, `${prefix}p9`, "another"]) {
    writeFileSync(join(netns, name), "");
  }
  await sweep();
  expect(readdirSync(netns).toSorted()).toEqual(["another", `${prefix}p1`, `${prefix}p9`]);
  expect(paths).toEqual([join(netns, `${prefix}p9`)]); // still attached: removed when it is not
});

test("a ready sandbox whose namespace file is gone is NOTREADY, any other stays", async () => {
  const path = join(folder, "no-such-namespace");
  const namespaces = { net: { path, inode: "1" } };
  const sandboxes = [
    sandboxRecord({ namespaces }),
    sandboxRecord({ id: "p2" }),
    sandboxRecord({ id: "p3", namespaces, phase: notReady }),
  ];
  const before = sandboxes[2];
  const { sweep, lines } = fixture(sandboxes, []);
  await sweep();
  expect(sandboxes.map(({ phase }) => phase.phase)).toEqual(["notready", "ready", "notready"]);
  expect(sandboxes[2]).toBe(before);
  expect(lines.filter((line) => line.includes("is gone"))).toHaveLength(1);
});

test("a sandbox whose teardown is not complete waits for its running container", async () => {
  const { sweep, calls, lines } = fixture(
    [sandboxRecord({ ending: "stop" }), sandboxRecord({ id: "p2" })],
    [containerRecord({ phase: phases.running })],
  );
  await sweep();
  expect(lines.filter((line) => line.includes("teardown"))).toEqual([]);
  expect(calls).toEqual(["DEL p9", "GC but ; p1 true, p9 false"]);
});
