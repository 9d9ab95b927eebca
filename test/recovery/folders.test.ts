// Tests that the daemon refuses the graph of another program, of a newer version or of a running daemon, and
// a truncated marker file, each with a message, and leaves it unchanged.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import { until } from "../expect.ts";
import { Daemon, executable, startDaemon } from "../harness.ts";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** Starts a daemon that must refuse to; what it says. */
function refused(folders: { graph: string; state: string }): string {
  const config = join(daemon.dir, "other.json");
  const hosts = [`unix://${join(daemon.dir, "other.sock")}`];
  const pidfile = join(daemon.dir, "other.pid");
  writeFileSync(config, JSON.stringify({ hosts, pidfile, ...folders }));
  const done = spawnSync(executable, ["--config", config], { encoding: "utf8", timeout: 60_000 });
  expect(done.signal).toBeNull();
  expect(done.status).toBeGreaterThan(0);
  expect(existsSync(join(daemon.dir, "other.sock"))).toBe(false);
  return done.stderr + done.stdout;
}

/** Every path under a folder with its size, mode and text. */
function inventory(folder: string): string[] {
  return (readdirSync(folder, { recursive: true }) as string[]).toSorted().map((name) => {
    const path = join(folder, name);
    const { mode, size, mtimeMs } = statSync(path);
    const text = statSync(path).isFile() ? readFileSync(path, "utf8") : "";
    return [name, mode, size, mtimeMs, text].join(" ");
  });
}

const aliens: Record<string, Record<string, string>> = {
  iSulad: {
    "engines/lcr/0123/config.json": "{}",
    "storage/overlay-layers/layers.json": "[]",
    "isulad_server.sock": "",
  },
  docker: { "image/overlay2/repositories.json": "{}", "containers/ab/config.v2.json": "{}" },
  "somebody who has our folders' names": { "sandboxes/x/y": "1", "containers/z": "2" },
  "somebody with a hidden file": { ".secret": "s" },
};

describe("a graph folder", () => {
  test.each(Object.keys(aliens))("of %s is refused and not touched", (owner) => {
    const graph = join(daemon.dir, "alien", owner.replaceAll(/\W/g, ""));
    for (const [name, text] of Object.entries(aliens[owner]!)) {
      mkdirSync(join(graph, name, ".."), { recursive: true });
      writeFileSync(join(graph, name), text);
    }
    const before = inventory(graph);
    expect(refused({ graph, state: join(daemon.dir, "alien-state") })).toContain(graph);
    expect(inventory(graph)).toEqual(before);
  });

  test("of a layout that a newer version made is refused and not touched", () => {
    const graph = join(daemon.dir, "newer");
    mkdirSync(join(graph, "sandboxes"), { recursive: true });
    writeFileSync(join(graph, "isulad-ts.json"), '{"layout": 2, "more": "than we know"}\n');
    const before = inventory(graph);
    const said = refused({ graph, state: join(daemon.dir, "newer-state") });
    expect(said).toContain(graph);
    expect(said).toContain("newer");
    expect(inventory(graph)).toEqual(before);
  });

  test("with lost+found alone is an empty one", async () => {
    await using own = new Daemon({ network: false, image: false });
    own.writeConfig();
    mkdirSync(join(own.dir, "graph/lost+found"), { recursive: true });
    await own.start();
    expect(readdirSync(join(own.dir, "graph"))).toContain("isulad-ts.json");
  });

  test("that a first start left half made is an empty one", async () => {
    await using own = new Daemon({ network: false, image: false });
    own.writeConfig();
    const graph = join(own.dir, "graph");
    mkdirSync(graph);
    for (const name of ["daemon.lock", "isulad-ts.json.0a1b2c3d.tmp"]) {
      writeFileSync(join(graph, name), "");
    }
    await own.start();
    expect(readdirSync(graph)).toContain("isulad-ts.json");
    expect(readdirSync(graph).join()).not.toContain(".tmp");
  });

  test("that another first start has locked gets no mark", async () => {
    const graph = join(daemon.dir, "contended");
    mkdirSync(graph);
    const lock = join(graph, "daemon.lock");
    const holder = spawn("flock", [lock, "sleep", "60"], { stdio: "ignore", detached: true });
    try {
      await until(`${lock} is held`, () => spawnSync("flock", ["-n", lock, "true"]).status === 1);
      const said = refused({ graph, state: join(daemon.dir, "contended-state") });
      expect(said).toContain(lock);
      expect(readdirSync(graph)).toEqual(["daemon.lock"]);
    } finally {
      process.kill(-holder.pid!, "SIGKILL");
    }
  });

  test("whose file system is read-only is refused with its path and what to do", async () => {
    const graph = join(daemon.dir, "new-graph"); // one that has been used is served: read_only_graph.test.ts
    mkdirSync(graph);
    execFileSync("mount", ["--bind", graph, graph]);
    try {
      execFileSync("mount", ["-o", "remount,ro,bind", graph]);
      const said = refused({ graph, state: join(daemon.dir, "readonly-state") });
      expect(said).toContain(graph);
      expect(said).toContain("mount it read-write");
    } finally {
      execFileSync("umount", [graph]);
    }
  });

  test("whose mark is gone is refused, and mended by what the message says", async () => {
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const graph = join(daemon.dir, "graph");
    const mark = join(graph, "isulad-ts.json");
    const text = readFileSync(mark, "utf8");
    await daemon.stop();
    rmSync(mark);
    const said = refused({ graph, state: join(daemon.dir, "unmarked-state") });
    const command = /restore it by: (echo '.*' > \S+)/.exec(said)?.[1];
    expect(command).toContain(mark);
    execFileSync("sh", ["-c", command!]);
    expect(readFileSync(mark, "utf8")).toBe(text);
    await daemon.start();
    expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
    await daemon.removePod(podId);
  });

  test("whose mark was cut is taken, or refused with its path", async () => {
    const mark = join(daemon.dir, "graph/isulad-ts.json");
    const text = readFileSync(mark, "utf8");
    await daemon.stop();
    try {
      for (const at of [0, 1, 8, 20, text.length - 3, text.length - 1]) {
        writeFileSync(mark, text.slice(0, at));
        const logged = daemon.log.length;
        const started = daemon.start().catch(() => {
          expect(daemon.log.slice(logged)).toContain(mark);
        });
        await started;
        await daemon.stop();
      }
    } finally {
      await daemon.stop();
      writeFileSync(mark, text);
      await daemon.start();
    }
  });
});

describe("two daemons", () => {
  test("on one graph: the second is refused, and the first one's pods notice nothing", async () => {
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const id = await daemon.run(podId, pod, ["sleep", "600"]);
    const graph = join(daemon.dir, "graph");
    const second = join(daemon.dir, "second-state");
    const said = refused({ graph, state: second });
    expect(said).toContain(graph);
    expect((await daemon.exec(id, "echo alive")).stdout).toBe("alive\n");
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    expect(status?.state).toBe(runtime.v1.PodSandboxState.SANDBOX_READY);
    await daemon.removePod(podId);
  });

  test("on one state folder: the second is refused", () => {
    const state = join(daemon.dir, "state");
    const graph = join(daemon.dir, "second-graph");
    expect(refused({ graph, state })).toContain(state);
    rmSync(graph, { recursive: true, force: true });
  });
});
