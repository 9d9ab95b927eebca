// Tests image archives: save, load, images-dir at the start, and prune.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import { gunzipSync, gzipSync } from "node:zlib";
import { toBigInt } from "../../src/base/int64.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { busyboxImage, dockerArchive, makeImage, makeLayer, ociArchive } from "../image_maker.ts";
import { type TarEntry, type TestImage, writeOciLayout } from "../image_maker.ts";
import { type Registry, startRegistry } from "../registry.ts";

const odd: TarEntry[] = [
  { name: "usr/new/", type: "5", mode: 0o711, uid: 5, gid: 6, mtime: 1_600_000_000 },
  { name: "usr/new/setuid", mode: 0o4755, data: "s".repeat(70_000) },
  { name: `usr/new/${"long".repeat(60)}`, data: "long", pax: { "SCHILY.xattr.user.a": "b" } },
  { name: "usr/new/hard", type: "1", link: "usr/new/setuid" },
  { name: "usr/new/link", type: "2", link: "/nowhere" },
  { name: "usr/new/fifo", type: "6" },
  { name: "usr/new/empty", data: "" },
  { name: "usr/new/.wh..wh..opq" },
  { name: "etc/.wh.group", data: "whiteouts have no content, but may" },
  { name: "implicit/folder/ä", data: "ä" },
];
const image = busyboxImage({ Labels: { saved: "yes" } }, odd);
const skopeo = spawnSync("skopeo", ["--version"]).status === 0;
if (!skopeo) console.log("what skopeo says of a saved archive is skipped: there is no skopeo");

let registry: Registry;
let daemon: Daemon;
let out: string;
beforeAll(async () => {
  registry = await startRegistry();
  await registry.push("team/app", "1", image);
  await registry.push("team/app", "2", image);
  daemon = await startDaemon({ config: { "insecure-registries": [registry.host] }, image: false });
  out = join(daemon.dir, "out");
  fs.mkdirSync(out);
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
});

function isuladTs(...words: string[]) {
  const env = { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
  const { status, stdout, stderr } = spawnSync(executable, words, { env, encoding: "utf8" });
  return { code: status, stdout, stderr };
}

const app = (tag: string) => `${registry.host}/team/app:${tag}`;
const pull = (tag: string) => daemon.client.PullImage({ image: { image: app(tag) } });
const remove = (ref: string) => daemon.client.RemoveImage({ image: { image: ref } });
const list = async () => (await daemon.client.ListImages({})).images;
const tags = async () => (await list()).flatMap(({ repo_tags }) => repo_tags ?? []).toSorted();

/** The files of an archive, unpacked by tar(1). */
function contents(file: string): { folder: string; blobs: string[] } {
  const folder = fs.mkdtempSync(join(out, "x-"));
  execFileSync("tar", ["-xf", file, "-C", folder]);
  return { folder, blobs: fs.readdirSync(join(folder, "blobs/sha256")).sort() };
}

describe("save", () => {
  test("gives each layer its diff id back and keeps the id; the same images give the same bytes", async () => {
    await pull("1");
    const plain = join(out, "one.tar");
    const saved = isuladTs("save", app("1"), plain);
    expect(saved).toMatchObject({ code: 0, stdout: `Saved ${app("1")} into ${plain}\n` });
    expect(saved.stderr).toStartWith(`Saving into ${plain}\n`);
    expect(saved.stderr.match(/^[0-9a-f]{12}: .*, done$/gm)).toHaveLength(2);
    const { folder, blobs } = contents(plain);
    for (const name of blobs) {
      const bytes = fs.readFileSync(join(folder, "blobs/sha256", name));
      expect(createHash("sha256").update(bytes).digest("hex")).toBe(name);
    }
    const hex = (digest: string) => digest.slice("sha256:".length);
    const expected = [image.config.digest, ...image.layers.map(({ diffId }) => diffId)].map(hex);
    expect(blobs).toEqual(expect.arrayContaining(expected));
    expect(blobs).toHaveLength(expected.length + 1); // and the manifest
    for (const [ending, unpack] of [
      ["gz", gunzipSync],
      ["tzst", Bun.zstdDecompressSync],
    ] as const) {
      const packed = join(out, `packed.${ending}`);
      expect(isuladTs("save", "-q", image.config.digest, packed).code).toBe(0);
      const bytes = fs.readFileSync(packed);
      expect(bytes.length).toBeLessThan(fs.statSync(plain).size);
      expect(unpack(bytes)).toEqual(fs.readFileSync(plain));
    }
    expect(fs.statSync(plain).mode & 0o777).toBe(0o600);
  });

  test("and load restore the image with its names and content", async () => {
    const file = join(out, "back.tar");
    await pull("1");
    const before = await list();
    expect(isuladTs("save", app("1"), file).code).toBe(0);
    await remove(app("1"));
    expect(fs.readdirSync(join(daemon.dir, "graph/layers")).toSorted()).toEqual(["l", "scratch"]);
    expect(isuladTs("load", "--quiet", file)).toEqual({
      code: 0,
      stdout: `${app("1")}\n`,
      stderr: "",
    });
    const [loaded] = await list();
    expect(loaded).toMatchObject({ id: before[0]!.id!, repo_tags: [app("1")] });
    expect(loaded!.size).toEqual(before[0]!.size);
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const look = `cd /usr/new; stat -c '%a %u %g %F' . setuid fifo hard; wc -c < setuid; readlink link
      ls | wc -l; ls -a /etc; cat /implicit/folder/*`;
    const { text } = await daemon.output(podId, pod, look, { image: { image: app("1") } });
    expect(text.split("\n").slice(0, 7)).toEqual([
      "711 5 6 directory",
      "4755 0 0 regular file",
      "644 0 0 fifo",
      "4755 0 0 regular file",
      "70000",
      "/nowhere",
      "6",
    ]);
    expect(text).not.toContain("group");
    expect(text).toEndWith("ä");
    await daemon.removePod(podId);
    // A loaded image is saved again with equal bytes.
    expect(isuladTs("save", "-q", app("1"), join(out, "again.tar")).code).toBe(0);
    expect(fs.readFileSync(join(out, "again.tar"))).toEqual(fs.readFileSync(file));
  });

  test("of several images has their common layers once, and each name that was asked for", async () => {
    await remove(image.config.digest);
    await pull("1");
    await pull("2");
    const other = makeImage([image.layers[0]!, makeLayer([{ name: "o", data: "o" }])]);
    await daemon.loadImage(other, "example.test/other:1");
    const file = join(out, "several.tar");
    const { id } = (await list()).find((one) => one.id === image.config.digest)!;
    expect(isuladTs("save", app("2"), "example.test/other:1", file).code).toBe(0);
    const { folder, blobs } = contents(file);
    expect(blobs).toHaveLength(2 + 2 + 3); // manifests, configs, layers
    const index = JSON.parse(fs.readFileSync(join(folder, "index.json"), "utf8"));
    const names = index.manifests.map((entry: { annotations: Record<string, string> }) => [
      entry.annotations["io.containerd.image.name"],
      entry.annotations["org.opencontainers.image.ref.name"],
    ]);
    expect(names).toEqual([
      [app("2"), "2"],
      ["example.test/other:1", "1"],
    ]);
    // By id it is saved under all its names.
    expect(isuladTs("save", "--force", "-q", id!.slice(7, 19), file).code).toBe(0);
    await remove(id!);
    await remove("example.test/other:1");
    expect(isuladTs("import", file).stdout).toBe(
      `Loaded image: ${app("1")}\nLoaded image: ${app("2")}\n`,
    );
    expect(await tags()).toEqual([app("1"), app("2")]);
  });

  test("refuses existing files, missing images and unwritable paths, and leaves no file", async () => {
    const file = join(out, "there.tar");
    fs.writeFileSync(file, "mine");
    const before = fs.readdirSync(out);
    const save = (images: string[], path: string) =>
      failure(Array.fromAsync(daemon.client.Save({ images, path })));
    expect((await save([app("1")], file)).code).toBe("ALREADY_EXISTS");
    expect(isuladTs("save", app("1"), file).stderr).toContain("--force");
    expect(fs.readFileSync(file, "utf8")).toBe("mine");
    expect((await save(["no/such:1"], join(out, "new.tar"))).code).toBe("NOT_FOUND");
    const nowhere = await save([app("1")], join(out, "no/such/folder.tar"));
    expect(nowhere.code).toBe("FAILED_PRECONDITION");
    expect(nowhere.message).toContain("no/such/folder.tar");
    expect(isuladTs("save", app("1"))).toMatchObject({ code: 2, stdout: "" });
    expect(fs.readdirSync(out)).toEqual(before);
  });

  test("of a layer that is not what was unpacked is DATA_LOSS; of one that replaced entries refused", async () => {
    const data = "d".repeat(10_000);
    await daemon.loadImage(makeImage([makeLayer([{ name: "file", data }])]), "x/damaged:1");
    const trees = join(daemon.dir, "graph/layers/l");
    const tree = fs.readdirSync(trees).find((name) => fs.existsSync(join(trees, name, "file")))!;
    fs.writeFileSync(join(trees, tree, "file"), data.replace("d", "D"));
    const path = join(out, "never.tar");
    const error = await failure(
      Array.fromAsync(daemon.client.Save({ images: ["x/damaged:1"], path })),
    );
    expect(error.code).toBe("DATA_LOSS");
    const twice = makeLayer([
      { name: "file", data: "first" },
      { name: "file", data: "last" },
    ]);
    await daemon.loadImage(makeImage([twice]), "x/twice:1");
    const refused = await failure(
      Array.fromAsync(daemon.client.Save({ images: ["x/twice:1"], path })),
    );
    expect(refused.code).toBe("FAILED_PRECONDITION");
    expect(refused.message).toContain("byte for byte");
    expect(fs.readdirSync(out).filter((name) => name.startsWith("never"))).toEqual([]);
    await remove("x/damaged:1");
    await remove("x/twice:1");
  });

  test.skipIf(!skopeo)("writes archives that skopeo reads; its layouts are loaded", async () => {
    const file = join(out, "skopeo.tar");
    expect(isuladTs("save", app("1"), file).code).toBe(0);
    for (const kind of ["oci-archive", "docker-archive"]) {
      const target = fs.mkdtempSync(join(out, "skopeo-"));
      execFileSync("skopeo", ["copy", "--insecure-policy", `${kind}:${file}`, `oci:${target}:x`]);
      const index = JSON.parse(fs.readFileSync(join(target, "index.json"), "utf8"));
      const blob = (digest: string) =>
        JSON.parse(fs.readFileSync(join(target, "blobs", digest.replace(":", "/")), "utf8"));
      const { config } = blob(index.manifests[0].digest);
      expect(blob(config.digest).rootfs.diff_ids).toEqual(image.layers.map(({ diffId }) => diffId));
      await remove(config.digest);
      const nameless = isuladTs("load", target);
      expect(nameless.stdout).toBe(`Loaded image: ${config.digest}\n`);
      expect(nameless.stderr).toContain("only a tag: use --name to give it one");
      const named = isuladTs("load", "--name", "example.test/me", target);
      expect(named.stdout).toBe("Loaded image: example.test/me:x\n");
    }
    await remove("example.test/me:x");
  });
});

test("import takes docker archives packed by zstd", async () => {
  const file = join(out, "docker.tar.zst");
  const one = busyboxImage({ User: "3" });
  const archive = dockerArchive([{ image: one, name: "docker.io/library/packed:1" }]);
  fs.writeFileSync(file, Bun.zstdCompressSync(archive));
  expect(isuladTs("import", file).stdout).toBe("Loaded image: docker.io/library/packed:1\n");
  const renamed = isuladTs("load", "--name", "example.test/pause:3", file);
  expect(renamed.stdout).toContain("Loaded image: example.test/pause:3\n");
  await remove("packed:1");
});

test("load refuses pipes, devices and bombs, and leaves nothing", async () => {
  const load = (path: string) => failure(Array.fromAsync(daemon.client.Load({ path })));
  const fifo = join(out, "fifo");
  execFileSync("mkfifo", [fifo]);
  expect(await load(fifo)).toMatchObject({ code: "INVALID_ARGUMENT" });
  expect(await load("/dev/zero")).toMatchObject({ code: "INVALID_ARGUMENT" });
  expect(await load(join(out, "none.tar"))).toMatchObject({ code: "NOT_FOUND" });
  const bomb = join(out, "bomb.tar.zst");
  fs.writeFileSync(bomb, Bun.zstdCompressSync(Buffer.alloc(300 << 20)));
  const refused = await load(bomb);
  expect(refused.code).toBe("RESOURCE_EXHAUSTED");
  expect(refused.message).toContain("layer-max-ratio");
  const cut = join(out, "cut.tar.gz");
  const packed = gzipSync(ociArchive([{ image, name: "x/cut:1" }]));
  fs.writeFileSync(cut, packed.subarray(0, packed.length / 2));
  const damaged = await load(cut);
  expect(damaged.code).toBe("DATA_LOSS");
  expect(damaged.message).toContain(cut);
  expect(fs.readdirSync(join(daemon.dir, "graph/layers/scratch"))).toEqual([]);
});

describe("images prune", () => {
  const load = (User: string, name: string, data: string): Promise<string> =>
    daemon.loadImage(busyboxImage({ User }, [{ name: "own", data }]), name);
  const size = async () => {
    const { image_filesystems } = await daemon.client.ImageFsInfo({});
    return toBigInt(image_filesystems[0]!.used_bytes!.value);
  };

  test("removes images that no container uses, and lists them beforehand with --dry-run", async () => {
    for (const { id } of await list()) await remove(id!);
    daemon.writeConfig({ "pinned-images": ["x/pinned:*"] });
    await daemon.restart();
    await load("1", "x/used:1", "u");
    await load("2", "x/volume:1", "v");
    await load("3", "x/pinned:1", "p");
    await load("4", "x/free:1", "f".repeat(100_000));
    await load("5", "x/free:2", "g".repeat(200_000));
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const mounts = [{ container_path: "/v", image: { image: "x/volume:1" }, readonly: true }];
    await daemon.create(podId, pod, ["true"], { image: { image: "x/used:1" }, mounts });
    const before = await size();
    const dry = isuladTs("images", "prune", "--dry-run");
    expect(dry).toMatchObject({ code: 0, stderr: "Would remove 2 images, 300kB\n" });
    expect(dry.stdout).toMatch(/^[0-9a-f]{13} \S*x\/free:2\n[0-9a-f]{13} \S*x\/free:1\n$/);
    expect(await tags()).toHaveLength(5);
    const done = isuladTs("images", "prune");
    expect(done).toMatchObject({ code: 0, stdout: dry.stdout });
    expect(done.stderr).toBe("Removed 2 images, 300kB\n");
    expect(before - (await size())).toBe(300_000n);
    expect(await tags()).toEqual(["x/pinned:1", "x/used:1", "x/volume:1"].map(full).toSorted());
    await daemon.removePod(podId);
    expect(isuladTs("images", "prune", "-q").stdout.split("\n")).toHaveLength(3);
    expect(await tags()).toEqual([full("x/pinned:1")]);
    expect(isuladTs("images").stdout).toContain("x/pinned");
    expect(isuladTs("images", "x/none:1").stdout.split("\n")).toHaveLength(2);
  });
});

function full(name: string): string {
  return `docker.io/${name}`;
}

test("images-dir: its archives are loaded once at the start; broken ones are reported", async () => {
  for (const { id } of await list()) await remove(id!);
  const folder = join(daemon.dir, "images-dir");
  fs.mkdirSync(folder);
  const write = (name: string, bytes: Uint8Array) => fs.writeFileSync(join(folder, name), bytes);
  const of = (User: string, name: string): { image: TestImage; name: string }[] => [
    { image: busyboxImage({ User }), name: `docker.io/x/${name}:1` },
  ];
  const good = ociArchive(of("1", "oci"));
  write("a.tar", good.subarray(0, good.length / 2));
  write("b.txt", Buffer.from("no archive"));
  write("c.tar", good);
  write("d.tar", dockerArchive(of("2", "docker")));
  await writeOciLayout(join(folder, "e"), of("3", "layout"));
  write(".part.tar", ociArchive(of("4", "hidden")));
  daemon.writeConfig({ "images-dir": folder });
  /** What the log says of a start, from the beginning to when the folder was processed. */
  const restarted = async () => {
    const from = daemon.log.length;
    await daemon.restart();
    const log = () => daemon.log.slice(from);
    await until("the folder was processed", () => /images-dir processed.*/.test(log()));
    expect(await tags()).toEqual(["docker", "layout", "oci"].map((one) => `docker.io/x/${one}:1`));
    return log();
  };
  const first = await restarted();
  expect(first).toContain("loaded=3 unchanged=0 failed=2");
  expect(first).toContain(join(folder, "a.tar"));
  expect(first).toContain(join(folder, "b.txt"));
  expect(await restarted()).toContain("loaded=0 unchanged=3 failed=2");
  await remove("x/docker:1");
  write("c.tar", ociArchive(of("9", "oci")));
  expect(await restarted()).toContain("loaded=2 unchanged=1 failed=2");
  expect((await list()).some(({ uid }) => uid && toBigInt(uid.value) === 9n)).toBe(true);
  daemon.writeConfig({ "images-dir": join(daemon.dir, "no-such-folder") });
  await daemon.restart();
  await until("the folder is reported", () => daemon.log.includes("cannot read images-dir"));
});
