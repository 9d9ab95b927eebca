// Tests the image store: names, joined and cancelled pulls, removal, restarts, mounts. Needs root.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import { failure, testMs, until } from "../expect.ts";
import { makeImage, makeLayer, ociArchive, type TestImage } from "../image_maker.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";
import { openImageStore, type ImageProgress, type ImageStore } from "../../src/image/store.ts";
import { openFixture, storeOptions, within, type Fixture } from "./fixture.ts";

let fake: FakeRegistry;
let fixture: Fixture;
let image: TestImage;
beforeEach(async () => {
  fake = await FakeRegistry.start();
  fixture = await openFixture();
  image = randomImage();
  fake.put("a/b", "1", image);
});
afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
  await fake[Symbol.asyncDispose]();
});

function randomImage(size = 1000): TestImage {
  return makeImage([makeLayer([{ name: "f", data: randomBytes(size) }])], { Cmd: ["sh"] });
}

const pull = async (name: string, signal = within()) =>
  await fixture.store.pull(`${fake.host}/${name}`, { signal });

function save(bytes: Uint8Array): string {
  const file = join(fixture.graph, "archive");
  fs.writeFileSync(file, bytes);
  return file;
}

describe("names", () => {
  test("find the image by tag, digest, id and a prefix of the id", async () => {
    const pulled = await pull("a/b:1");
    const { id } = pulled;
    for (const ref of [
      `${fake.host}/a/b:1`,
      `${fake.host}/a/b@${image.manifest.digest}`,
      `${fake.host}/a/b:other@${image.manifest.digest}`,
      image.manifest.digest,
      id,
      id.slice(7),
      id.slice(7, 19),
      id.slice(0, 20),
    ]) {
      expect(fixture.store.find(ref)).toBe(pulled);
    }
    for (const ref of [`${fake.host}/a/b`, "a/b:1", "", "No Name", "00", id.slice(7, 9)]) {
      expect(fixture.store.find(ref)).toBeUndefined();
    }
    expect(pulled).toMatchObject({
      id: image.config.digest,
      repoTags: [`${fake.host}/a/b:1`],
      repoDigests: [`${fake.host}/a/b@${image.manifest.digest}`],
      config: { Cmd: ["sh"], os: "linux" },
    });
    expect(pulled.sizeBytes).toBe(BigInt(1000 + image.config.size));
  });

  test("that are prefixes of several ids are INVALID_ARGUMENT", async () => {
    // With 3 hex digits of 4096, some two of 200 configs start alike.
    const byStart = new Map<string, TestImage>();
    let pair: TestImage[] = [];
    for (let i = 0; pair.length === 0; i++) {
      const next = makeImage(image.layers, { Env: [`I=${i}`] });
      const start = next.config.digest.slice(7, 10);
      const known = byStart.get(start);
      if (known !== undefined) pair = [known, next];
      byStart.set(start, next);
    }
    for (const [i, one] of pair.entries()) {
      fake.put("a/b", `p${i}`, one);
      await pull(`a/b:p${i}`);
    }
    expect(() => fixture.store.find(pair[0]!.config.digest.slice(7, 10))).toThrow("ambiguous");
    expect(fixture.store.find(pair[0]!.config.digest)!.id).toBe(pair[0]!.config.digest);
  });

  test("by digest alone give no tag; a moved tag leaves the old image its digest", async () => {
    const old = await pull(`a/b@${image.manifest.digest}`);
    expect(old.repoTags).toEqual([]);
    await pull("a/b:1");
    const next = randomImage();
    fake.put("a/b", "1", next);
    await pull("a/b:1");
    expect(fixture.store.find(`${fake.host}/a/b:1`)!.id).toBe(next.config.digest);
    expect(fixture.store.find(old.id)).toMatchObject({
      repoTags: [],
      repoDigests: [`${fake.host}/a/b@${image.manifest.digest}`],
    });
  });

  test("are all removed with the image; removing a missing one is no error", async () => {
    fake.put("a/b", "2", image);
    await pull("a/b:1");
    await pull("a/b:2");
    await Promise.all([1, 2, 3].map(() => fixture.store.remove(`${fake.host}/a/b:2`)));
    await fixture.store.remove("nothing");
    await fixture.store.remove("No Name");
    expect(fixture.store.list()).toEqual([]);
    expect(fixture.remains()).toEqual([]);
  });
});

describe("concurrent pulls", () => {
  /** Holds the layers back until it is called. */
  function holdLayers(): () => void {
    const held: (() => void)[] = [];
    fake.intercept = (request, response, url) => {
      if (!url.pathname.includes(image.layers[0]!.digest)) return false;
      held.push(() => response.end(image.layers[0]!.bytes));
      return true;
    };
    return () => {
      for (const send of held) send();
    };
  }
  const layerRequests = () =>
    fake.paths().filter((path) => path.includes(image.layers[0]!.digest)).length;
  const until = async (condition: () => boolean) => {
    for (let i = 0; i < 3000 && !condition(); i++) await Bun.sleep(20);
    expect(condition()).toBe(true);
  };

  test("of one name share one run, with progress for each", async () => {
    const release = holdLayers();
    const progress: number[] = [];
    const onProgress = ({ layers }: ImageProgress) => progress.push(layers[0]!.doneBytes);
    const ref = `${fake.host}/a/b:1`;
    const pulls = [1, 2, 3].map(() => fixture.store.pull(ref, { signal: within(), onProgress }));
    await until(() => layerRequests() === 1);
    release();
    const [one, two, three] = await Promise.all(pulls);
    expect(one).toBe(two);
    expect(one).toBe(three);
    expect(layerRequests()).toBe(1);
    expect(progress.at(-1)).toBe(image.layers[0]!.size);
  });

  test("continue for the others when one caller cancels", async () => {
    const release = holdLayers();
    const leaver = new AbortController();
    const left = failure(pull("a/b:1", leaver.signal));
    const stays = pull("a/b:1");
    await until(() => layerRequests() === 1);
    leaver.abort();
    expect((await left).code).toBe("CANCELLED");
    release();
    expect((await stays).id).toBe(image.config.digest);
  });

  test("that all callers cancelled leave nothing", async () => {
    holdLayers();
    const errors = [300, 320].map((ms) => failure(pull("a/b:1", AbortSignal.timeout(ms))));
    for (const error of await Promise.all(errors)) expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(fixture.remains()).toEqual([]);
    fake.intercept = () => false;
    expect((await pull("a/b:1")).id).toBe(image.config.digest);
  });

  test("of two images share a common layer; one continues it if the other is cancelled", async () => {
    const second = makeImage([...image.layers, makeLayer([{ name: "g", data: "g" }])]);
    fake.put("c/d", "1", second);
    const release = holdLayers();
    const first = new AbortController();
    const ended = failure(pull("a/b:1", first.signal));
    await until(() => layerRequests() === 1);
    const other = pull("c/d:1");
    await until(() => fake.paths().some((path) => path.includes(second.layers[1]!.digest)));
    expect(layerRequests()).toBe(1);
    first.abort();
    await ended;
    await until(() => layerRequests() === 2);
    release();
    expect((await other).layers).toHaveLength(2);
    await fixture.store.remove(second.config.digest);
    expect(fixture.remains()).toEqual([]);
  });

  test.each([1, 3])("fetch at most max-concurrent-downloads layers at once: %d", async (most) => {
    await fixture[Symbol.asyncDispose]();
    fixture = await openFixture({}, { downloadsMax: most });
    const names = ["a", "b", "c", "d", "e"];
    const many = makeImage(names.map((name) => makeLayer([{ name, data: name }])));
    fake.put("many", "1", many);
    const held: (() => void)[] = [];
    fake.intercept = (_, response, { pathname }) => {
      const layer = many.layers.find(({ digest }) => pathname.endsWith(digest));
      if (layer !== undefined) held.push(() => response.end(layer.bytes));
      return layer !== undefined;
    };
    const pulled = pull("many:1");
    await until(() => held.length === most);
    await Bun.sleep(200);
    expect(held).toHaveLength(most);
    fake.intercept = () => false;
    for (const send of held) send();
    expect((await pulled).layers).toHaveLength(5);
  });

  test("with different credentials or runtime handlers are separate", async () => {
    const release = holdLayers();
    const auth = { username: "u", password: "p" };
    const pulls = [{}, { auth }, { runtimeHandler: "fast" }].map((options) =>
      fixture.store.pull(`${fake.host}/a/b:1`, { ...options, signal: within() }),
    );
    await until(() => fake.paths().filter((path) => path.includes("/manifests/")).length === 3);
    await until(() => layerRequests() === 1);
    release();
    await Promise.all(pulls);
  });

  test("keep the layers that they have while another image is removed", async () => {
    fake.put("x/y", "1", randomImage());
    const other = await pull("x/y:1");
    const lower = makeLayer([{ name: "g", data: "g" }]);
    fake.put("c/d", "1", makeImage([lower, ...image.layers]));
    const release = holdLayers();
    let last: ImageProgress | undefined;
    const onProgress = (progress: ImageProgress) => (last = progress);
    const pulled = fixture.store.pull(`${fake.host}/c/d:1`, { signal: within(), onProgress });
    await until(() => last?.layers[0]!.state === "done" && layerRequests() === 1);
    await fixture.store.remove(other.id);
    release();
    expect((await fixture.store.detailsOf(await pulled)).layers).toHaveLength(2);
  });
});

test.each([
  ["layers/scratch", "1m"],
  ["images", "4k"],
])(
  "a pull that fills the disk of %s says what frees some, and leaves nothing",
  async (name, size) => {
    const folder = join(fixture.graph, name);
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${size}`, "tmpfs", folder]);
    try {
      const data = randomBytes(1000).toString("hex").repeat(1500); // its blob is small enough to be begun
      fake.put("c/d", "1", makeImage([makeLayer([{ name: "f", data }])]));
      const error = await failure(pull("c/d:1"));
      expect(error.code).toBe("RESOURCE_EXHAUSTED");
      expect(error.message).toContain("isulad-ts images prune");
      expect(fixture.remains()).toEqual([]);
    } finally {
      execFileSync("umount", [folder]);
    }
  },
);

describe("a restart", () => {
  test("finds the images, and removes partial ones", async () => {
    const before = await pull("a/b:1");
    const layers = join(fixture.graph, "layers");
    fs.mkdirSync(join(layers, "l/0123456789ab/x"), { recursive: true });
    fs.mkdirSync(join(layers, "scratch/half/tree"), { recursive: true });
    fs.writeFileSync(join(fixture.graph, "images/broken.json"), "{");
    const store = await fixture.reopen();
    expect(store.list()).toEqual([before]);
    await until("the orphan is removed", () => fs.readdirSync(join(layers, "l")).length === 2);
    await until("scratch is empty", () => fs.readdirSync(join(layers, "scratch")).length === 0);
    expect(fs.existsSync(join(fixture.graph, "images/broken.json.unreadable"))).toBe(true);
  });

  test("gives a tag whose move was interrupted to the image pulled later", async () => {
    const { id } = await pull("a/b:1");
    const path = join(fixture.graph, "images", `${id.slice(7)}.json`);
    const record = fs.readFileSync(path);
    const next = randomImage();
    fake.put("a/b", "1", next);
    await pull("a/b:1");
    fs.writeFileSync(path, record);
    for (let starts = 0; starts < 2; starts++) {
      const store = await fixture.reopen();
      expect(store.find(`${fake.host}/a/b:1`)!.id).toBe(next.config.digest);
      expect(store.find(id)!.repoTags).toEqual([]);
      expect(fs.readFileSync(path, "utf8")).toContain('"repoTags":[]');
    }
  });

  test("after a power loss drops layers that were not synced", async () => {
    await pull("a/b:1");
    const store = await fixture.reopen();
    const [record] = fs.globSync(join(fixture.graph, "layers/*.json"));
    const file = JSON.parse(fs.readFileSync(record!, "utf8")) as object;
    await fixture.store[Symbol.asyncDispose]();
    fs.writeFileSync(record!, JSON.stringify({ ...file, unsyncedBoot: "another boot" }));
    expect(store.list()).toHaveLength(1);
    expect((await fixture.reopen()).list()).toEqual([]);
    await until("nothing remains", () => fixture.remains().length === 0);
  });

  test("does not wait for syncing: a new layer is marked as synced in the background", async () => {
    await pull("a/b:1");
    const [record] = fs.globSync(join(fixture.graph, "layers/*.json"));
    const isMarked = () => fs.readFileSync(record!, "utf8").includes("unsyncedBoot");
    await until("the mark is gone", () => !isMarked());
  });
});

describe("a mounted root", () => {
  test("keeps its layers after the image's removal and a restart, until it is unmounted", async () => {
    const pulled = await pull("a/b:1");
    const dir = join(fixture.graph, "containers/c1");
    const root = await fixture.store.mountRootfs(pulled, { dir });
    fs.writeFileSync(join(root, "own"), "x");
    const store = await fixture.reopen();
    await store.remove(pulled.id);
    expect(fs.readFileSync(join(root, "f"))).toHaveLength(1000);
    await store.unmountRootfs(dir);
    await store.unmountRootfs(dir);
    expect(fs.readdirSync(dir)).toEqual([]);
    await until("nothing remains", () => fixture.remains().length === 0);
  });

  test("under a symlinked graph folder is found after a restart", async () => {
    const link = `${fixture.graph}.link`;
    fs.symlinkSync(fixture.graph, link);
    try {
      const options = storeOptions(link);
      const pulled = await pull("a/b:1");
      await fixture.store[Symbol.asyncDispose]();
      await using first = await openImageStore(options);
      const dir = join(link, "containers/c4");
      await first.mountRootfs(pulled, { dir });
      await using second = await openImageStore(options);
      await second.remove(pulled.id);
      expect(fixture.remains()).toHaveLength(1);
      await second.unmountRootfs(dir);
      await until("nothing remains", () => fixture.remains().length === 0);
    } finally {
      fs.rmSync(link);
    }
  });

  test("is unmounted while it is in use, and after an unclean end", async () => {
    const pulled = await pull("a/b:1");
    const dir = join(fixture.graph, "containers/c2");
    const root = await fixture.store.mountRootfs(pulled, { dir });
    const fd = fs.openSync(join(root, "f"), "r");
    await fixture.store.unmountRootfs(dir);
    expect(fs.readdirSync(dir)).toEqual([]);
    expect(fs.readSync(fd, Buffer.alloc(10))).toBe(10);
    fs.closeSync(fd);
  });

  test(
    "of 450 layers mounts in any graph folder, in a short line of the mount table; 451 are refused",
    async () => {
      const layers = Array.from({ length: 450 }, (_, i) => makeLayer([{ name: `f${i}` }]));
      const file = save(ociArchive([{ image: makeImage(layers), name: "many" }]));
      const [many] = await fixture.store.load(file, { signal: within(120_000) });
      const mount = async (store: ImageStore, dir: string) => {
        const root = await store.mountRootfs(many!, { dir });
        expect(fs.readdirSync(root)).toHaveLength(450);
        const lines = fs.readFileSync("/proc/self/mountinfo", "utf8").split("\n");
        const line = lines.find((one) => one.split(" ")[4] === root);
        expect(line!.length).toBeLessThan(32 << 10); // runc starts nothing while one is over 64 KiB
        return line!;
      };
      const dir = join(fixture.graph, "containers/many");
      expect(await mount(fixture.store, dir)).toContain(`lowerdir+=${fixture.graph}/layers/l/`);
      await fixture.store.unmountRootfs(dir);
      const long = join(fixture.graph, "x".repeat(200 - fixture.graph.length - 1));
      fs.mkdirSync(long);
      for (const name of ["images", "layers"]) {
        fs.renameSync(join(fixture.graph, name), join(long, name));
      }
      const store = await openImageStore(storeOptions(long));
      const far = join(long, "containers/many");
      expect(await mount(store, far)).toContain("lowerdir+=/proc/self/fd/");
      await store[Symbol.asyncDispose]();
      await using again = await openImageStore(storeOptions(long)); // it finds the mount's layers
      await again.remove(many!.id);
      expect(fs.readdirSync(join(long, "layers/l"))).toHaveLength(451);
      await again.unmountRootfs(far);
      const tooMany = makeImage([...layers, makeLayer([{ name: "g" }])]);
      const refused = again.load(save(ociArchive([{ image: tooMany }])), { signal: within() });
      expect((await failure(refused)).code).toBe("INVALID_ARGUMENT");
    },
    testMs(180_000),
  );

  test("of a removed image is FAILED_PRECONDITION and leaves nothing", async () => {
    const pulled = await pull("a/b:1");
    await fixture.store.remove(pulled.id);
    const dir = join(fixture.graph, "containers/c3");
    const error = await failure(fixture.store.mountRootfs(pulled, { dir }));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(fs.existsSync(dir)).toBe(false);
  });
});
