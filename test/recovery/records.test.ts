// Tests records that were cut off, hold JSON of another shape or come from another version: the daemon
// starts, logs each and loses none, and pods whose records are whole are not affected.
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { CriError } from "../../src/base/errors.ts";
import { runtime } from "../../src/proto/messages.js";
import { until } from "../expect.ts";
import { busybox, type Daemon, startDaemon } from "../harness.ts";
import { recordFile } from "../records.ts";

let daemon: Daemon;
let podId: string;
let containerId: string;
let exitedId: string;

beforeAll(async () => {
  daemon = await startDaemon();
  const pod = daemon.podConfig({ labels: { app: "whole" } });
  podId = await daemon.runPod(pod);
  containerId = await daemon.run(podId, pod, ["sleep", "600"]);
  exitedId = (await daemon.output(podId, pod, "exit 3")).id;
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** A test that failed leaves its damage: the next one begins without. */
beforeEach(async () => {
  const answers = daemon.client.Version({}).then(
    () => true,
    () => false,
  );
  if (await answers) return;
  await daemon.stop();
  clear();
  await daemon.start();
});

const kinds = ["sandbox", "container"] as const;
type Kind = (typeof kinds)[number];

function folderOf(kind: Kind): string {
  return join(daemon.dir, "graph", kind === "sandbox" ? "sandboxes" : "containers");
}

/** A 64-digit id that no other record has. */
function fakeId(kind: Kind, index: number): string {
  return (kind === "sandbox" ? "5a" : "c0") + String(index).padStart(62, "0");
}

function wholeRecord(kind: Kind): Record<string, unknown> {
  const id = kind === "sandbox" ? podId : exitedId;
  const text = readFileSync(recordFile(daemon.dir, kind, id), "utf8");
  return JSON.parse(text) as Record<string, unknown>;
}

/** The text of a record like a whole one, but with an id and a name of its own. */
function another(
  kind: Kind,
  index: number,
  change: (record: object) => unknown = (r) => r,
): string {
  const whole = wholeRecord(kind);
  // Its namespaces and files too (half an id names a netns): the end of one pod must not touch another.
  const [id, fake] = [String(whole["id"]), fakeId(kind, index)];
  const own = JSON.stringify(whole)
    .replaceAll(id, fake)
    .replaceAll(id.slice(0, 32), fake.slice(0, 32));
  const record = { ...(JSON.parse(own) as object), name: `fake-${index}` };
  return JSON.stringify(change(record));
}

function plant(kind: Kind, index: number, text: string): void {
  const folder = join(folderOf(kind), fakeId(kind, index));
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, `${kind}.json`), text);
  if (kind === "container")
    cpSync(join(folderOf(kind), exitedId, "config.json"), join(folder, "config.json"));
}

function setAside(): string[] {
  const folder = join(daemon.dir, "graph/set-aside");
  return existsSync(folder) ? readdirSync(folder) : [];
}

/** What was planted and taken for a record goes again; the daemon must not run. */
function clear(): void {
  for (const kind of kinds) {
    for (const id of readdirSync(folderOf(kind))) {
      if (/^(?:5a|c0)0{40}/.test(id)) rmSync(join(folderOf(kind), id), { recursive: true });
    }
  }
  rmSync(join(daemon.dir, "graph/set-aside"), { recursive: true, force: true });
  for (const kind of ["containers", "exits"]) {
    const folder = join(daemon.dir, "state/monitor", kind);
    for (const file of readdirSync(folder)) {
      if (/^(?:c00000|shape)/.test(file)) rmSync(join(folder, file));
    }
  }
}

async function expectWhole(): Promise<void> {
  const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
  expect(status?.state).toBe(runtime.v1.PodSandboxState.SANDBOX_READY);
  expect(status?.network?.ip).toStartWith(daemon.subnet);
  const { state } = await daemon.status(containerId);
  expect(state).toBe(runtime.v1.ContainerState.CONTAINER_RUNNING);
  expect((await daemon.exec(containerId, "echo alive")).stdout).toBe("alive\n");
  expect((await daemon.exited(exitedId)).exitCode).toBe(3);
}

describe("the records of sandboxes and containers", () => {
  test("cut at every byte: each is set aside whole, and told of", async () => {
    await daemon.stop();
    const texts = new Map<string, string>();
    for (const kind of kinds) {
      const { length } = another(kind, 0);
      for (let at = 0; at < length; at++) {
        const text = another(kind, at).slice(0, at);
        plant(kind, at, text);
        texts.set(`${kind}-${fakeId(kind, at)}`, text);
      }
    }
    expect(texts.size).toBeGreaterThan(1000);
    const logged = daemon.log.length;
    await daemon.start();
    await expectWhole();
    const { items } = await daemon.client.ListPodSandbox({});
    expect(items.map(({ id }) => id)).toEqual([podId]);
    const kept = setAside();
    expect(kept).toHaveLength(texts.size);
    for (const name of kept) {
      const [kind, id] = name.split("-") as [Kind, string];
      const text = readFileSync(join(daemon.dir, "graph/set-aside", name, `${kind}.json`), "utf8");
      expect(text).toBe(texts.get(`${kind}-${id}`)!);
    }
    const log = daemon.log.slice(logged);
    expect([...texts.keys()].filter((key) => !log.includes(key.split("-")[1]!))).toEqual([]);
    await daemon.stop();
    clear();
    await daemon.start();
  });

  test("of another shape: set aside, or shown; no call on the others suffers", async () => {
    await daemon.stop();
    const planted: { kind: Kind; index: number; what: string }[] = [];
    for (const kind of kinds) {
      let index = 0;
      for (const [what, text] of shapes(kind)) {
        plant(kind, index, text(index));
        planted.push({ kind, index: index++, what });
      }
    }
    await daemon.start();
    await expectWhole();
    const broken: string[] = [];
    for (const { kind, index, what } of planted) {
      const id = fakeId(kind, index);
      if (setAside().some((name) => name.includes(id))) continue;
      const problem = await look(kind, id);
      if (problem !== undefined) broken.push(`${kind} with ${what}: ${problem}`);
    }
    expect(broken).toEqual([]);
    await daemon.stop();
    clear();
    await daemon.start();
    await expectWhole();
  });

  test("left by a creation whose rollback failed, with the name of what runs: undone alone", async () => {
    await daemon.stop();
    const names = { sandbox: podId, container: containerId };
    const planted: string[] = [];
    for (const kind of kinds) {
      const file = recordFile(daemon.dir, kind, names[kind]);
      const { name } = JSON.parse(readFileSync(file, "utf8")) as { name: string };
      // Folders are read in no order that can be chosen: of eight, some come before the one that runs.
      for (let index = 0; index < 8; index++) {
        const creating = { name, phase: { phase: "creating" } };
        plant(
          kind,
          index,
          another(kind, index, (record) => ({ ...record, ...creating })),
        );
        planted.push(join(folderOf(kind), fakeId(kind, index)));
      }
    }
    await daemon.start();
    await expectWhole();
    await until("they are undone", () => planted.every((folder) => !existsSync(folder)));
    expect(setAside()).toEqual([]);
    await expectWhole();
  });

  test.each(kinds)("a %s of a newer version: told of, and not touched", async (kind) => {
    await daemon.stop();
    const text = another(kind, 1, (record) => ({ ...record, version: 99, phase: { new: true } }));
    plant(kind, 1, text);
    const logged = daemon.log.length;
    const started = await daemon.start().then(
      () => true,
      () => false,
    );
    const file = join(folderOf(kind), fakeId(kind, 1), `${kind}.json`);
    expect(readFileSync(file, "utf8")).toBe(text);
    const told = daemon.log.slice(logged);
    expect(told).toContain(fakeId(kind, 1));
    expect(told).toMatch(/version 99|newer/);
    if (started) await expectWhole();
    await daemon.stop();
    clear();
    await daemon.start();
    await expectWhole();
  });

  test.each(["images", "layers"])(
    "of %s, by a newer version: told of, and not touched",
    async (kind) => {
      await daemon.stop();
      const folder = join(daemon.dir, "graph", kind === "images" ? "images" : "layers");
      const name = readdirSync(folder).find((one) => one.endsWith(".json"))!;
      const file = join(folder, name);
      const before = readFileSync(file, "utf8");
      const text = before.replace('{"version":1,', '{"version":2,"new":true,');
      expect(text).not.toBe(before);
      writeFileSync(file, text);
      const logged = daemon.log.length;
      const refused = await daemon.start().then(
        () => false,
        () => true,
      );
      const [after, log] = [readFileSync(file, "utf8"), daemon.log.slice(logged)];
      writeFileSync(file, before);
      if (refused) await daemon.start();
      expect([refused, after]).toEqual([true, text]);
      expect(log).toContain(`record ${file} has version 2, which a newer isulad-ts wrote`);
      await expectWhole();
    },
  );
});

/** What is wrong with how a record that was taken is shown; undefined: nothing. */
async function look(kind: Kind, id: string): Promise<string | undefined> {
  try {
    if (kind === "sandbox") {
      await daemon.client.ListPodSandbox({ filter: { id } });
      await daemon.client.PodSandboxStatus({ pod_sandbox_id: id, verbose: true });
    } else {
      await daemon.client.ListContainers({ filter: { id } });
      await daemon.client.ContainerStatus({ container_id: id, verbose: true });
    }
  } catch (error) {
    if (!(error instanceof CriError)) throw error;
    return `${error.code} ${error.message}`;
  }
  return undefined;
}

const values: unknown[] = [null, -1, 1.5, "x", "", [], {}, true];

/** Every value of a record replaced by each of other kinds, and texts that are no record at all. */
function shapes(kind: Kind): Map<string, (index: number) => string> {
  const found = new Map<string, (index: number) => string>();
  for (const text of ["null", "[]", "0", '""', "{}", '{"version":1}', "\u0000", "[".repeat(5000)]) {
    found.set(`only ${text.slice(0, 20)}`, () => text);
  }
  for (const path of pathsOf(wholeRecord(kind))) {
    if (["id", "name"].includes(path[0]!) || path[0] === "config") continue;
    for (const value of values) {
      const replaced = (record: object) => replace(record, path, value);
      const what = `${path.join(".")} = ${JSON.stringify(value)}`;
      found.set(what, (index) => another(kind, index, replaced));
    }
    const without = (record: object) => replace(record, path, undefined);
    found.set(`no ${path.join(".")}`, (index) => another(kind, index, without));
  }
  return found;
}

function pathsOf(value: unknown, at: string[] = []): string[][] {
  if (typeof value !== "object" || value === null) return at.length > 0 ? [at] : [];
  const inner = Object.entries(value).flatMap(([key, one]) => pathsOf(one, [...at, key]));
  return at.length > 0 ? [at, ...inner] : inner;
}

function replace(record: unknown, [key, ...rest]: string[], value: unknown): unknown {
  if (key === undefined) return value;
  const copy = (Array.isArray(record) ? [...record] : { ...(record as object) }) as Record<
    string,
    unknown
  >;
  copy[key] = replace(copy[key], rest, value);
  return copy;
}

describe("the monitor's records", () => {
  test("cut at every byte: another monitor takes the whole ones over", async () => {
    await daemon.stop();
    const folder = join(daemon.dir, "state/monitor");
    for (const [kind, id] of [
      ["containers", containerId],
      ["exits", exitedId],
    ] as const) {
      const text = readFileSync(join(folder, kind, `${id}.json`), "utf8");
      for (let at = 0; at < text.length; at++) {
        const other = fakeId("container", at);
        const file = join(folder, kind, `${other}.json`);
        writeFileSync(file, text.replaceAll(id, other).slice(0, at));
      }
      for (const shape of ["null", "[]", "{}", '"x"', '{"id": 7}']) {
        writeFileSync(join(folder, kind, `shape-${shape.length}.json`), shape);
      }
    }
    for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
    await daemon.start();
    await expectWhole();
    await until("there is one monitor", () => daemon.monitors().length === 1);
  });

  test("lost altogether: the containers go on, and their ends are told", async () => {
    const pod = daemon.hostPodConfig();
    const own = await daemon.runPod(pod);
    const id = await daemon.run(
      own,
      pod,
      "trap 'exit 9' USR1; while :; do sleep 0.1 & wait $!; done",
    );
    await daemon.stop();
    for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
    rmSync(join(daemon.dir, "state/monitor/containers", `${id}.json`));
    await daemon.start();
    await until("the monitor has its record again", () =>
      existsSync(join(daemon.dir, "state/monitor/containers", `${id}.json`)),
    );
    await daemon.exec(id, "kill -USR1 1");
    const { exitCode, reason } = await daemon.exited(id);
    expect({ exitCode, reason }).toEqual({ exitCode: 9, reason: "Error" });
    await daemon.removePod(own);
    await expectWhole();
  });
});

describe("the records of images", () => {
  test("cut at every byte: set aside, the others stay", async () => {
    await daemon.stop();
    const folder = join(daemon.dir, "graph/images");
    const [file] = readdirSync(folder).filter((name) => name.endsWith(".json"));
    const text = readFileSync(join(folder, file!), "utf8");
    for (let at = 0; at < text.length; at++) {
      const other = String(at).padStart(64, "0");
      const cut = text.replaceAll(file!.replace(".json", ""), other).slice(0, at);
      writeFileSync(join(folder, `${other}.json`), cut);
    }
    await daemon.start();
    const { images } = await daemon.client.ListImages({});
    expect(images.map((image) => image.repo_tags)).toEqual([[busybox]]);
    const kept = readdirSync(folder).filter((name) => name.startsWith("0000"));
    expect(kept).toHaveLength(text.length);
    await expectWhole();
    for (const name of kept) rmSync(join(folder, name));
  });
});

describe("a container's bundle", () => {
  test("config.json cut: Start says what is wrong, exec too, and Remove works", async () => {
    const pod = daemon.hostPodConfig();
    const own = await daemon.runPod(pod);
    const before = daemon.snapshot();
    const id = await daemon.create(own, pod, ["sleep", "600"]);
    const file = join(daemon.dir, "graph/containers", id, "config.json");
    writeFileSync(file, readFileSync(file, "utf8").slice(0, 700));
    const error = await daemon.client.StartContainer({ container_id: id }).catch(String);
    expect(error).toMatch(/config\.json|unexpected EOF/); // the second in runc's own words
    const live = await daemon.run(own, pod, ["sleep", "600"]);
    cpSync(file, join(daemon.dir, "graph/containers", live, "config.json"));
    expect(await daemon.exec(live, "true").catch(String)).toContain("config.json");
    await daemon.client.RemoveContainer({ container_id: id });
    await daemon.client.RemoveContainer({ container_id: live });
    expect(await daemon.leaksSince(before)).toEqual([]);
    await daemon.removePod(own);
  });
});
