// Tests the saving of images with a helper that writes the names of the entries instead of the archive.
import { afterEach, beforeEach, expect, test } from "bun:test";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writeArchive, type SavedImage } from "../../../src/image/save.ts";
import type { UnpackPool } from "../../../src/layer/unpack_pool.ts";
import type { ImageProgress } from "../../../src/layer/layer_progress.ts";
import type { PackJob } from "../../../src/layer/job_pack.ts";
import { failure } from "../../expect.ts";
import { sha256 } from "../../image_maker.ts";

let dir: string;
beforeEach(() => {
  dir = fs.mkdtempSync(join(tmpdir(), "isulad-save-"));
});
afterEach(() => fs.rmSync(dir, { recursive: true }));

const layer = (text: string, streamBytes: number) => {
  return { ...({} as SavedImage["layers"][0]), diffId: sha256(text), streamBytes };
};
const shared = layer("shared", 100);
const image = (text: string, names: string[]): SavedImage => ({
  record: {
    id: sha256(text),
    config: { architecture: "amd64", os: "linux" },
  } as SavedImage["record"],
  names,
  config: "{}",
  layers: [shared, layer(text, 50)],
});

async function save(
  name: string,
  images: SavedImage[],
  o: { force?: boolean; bytes?: number[] } = {},
) {
  const jobs: PackJob[] = [];
  const progress: ImageProgress[] = [];
  const helpers = {
    run: async (job: PackJob, { onBytes }: { onBytes: (bytes: number) => void }) => {
      jobs.push(job);
      fs.writeFileSync(job.path, "archive");
      for (const bytes of o.bytes ?? []) onBytes(bytes);
    },
  } as unknown as UnpackPool;
  await writeArchive(images, {
    path: join(dir, name),
    force: o.force ?? false,
    helpers,
    signal: new AbortController().signal,
    onProgress: (now) => progress.push(structuredClone(now)),
  });
  return { job: jobs[0]!, last: progress.at(-1)! };
}

test.each([
  ["a.tar", "none"],
  ["a.tar.gz", "gzip"],
  ["a.tgz", "gzip"],
  ["a.tar.zst", "zstd"],
  ["a.tzst", "zstd"],
  ["a.gz.bak", "none"],
])("%s is compressed by %s", async (name, compression) => {
  expect((await save(name, [image("a", [])])).job.compression).toBe(compression as "gzip");
  expect(fs.readdirSync(dir)).toEqual([name]);
});

test("an existing file is replaced only by force, and no temporary file stays", async () => {
  fs.writeFileSync(join(dir, "a.tar"), "old");
  expect((await failure(save("a.tar", [image("a", [])]))).code).toBe("ALREADY_EXISTS");
  expect(fs.readFileSync(join(dir, "a.tar"), "utf8")).toBe("old");
  await save("a.tar", [image("a", [])], { force: true });
  expect(fs.readFileSync(join(dir, "a.tar"), "utf8")).toBe("archive");
  expect((await failure(save("none/a.tar", [image("a", [])]))).code).toBe("FAILED_PRECONDITION");
  expect(fs.readdirSync(dir)).toEqual(["a.tar"]);
});

test("an archive has each layer once, and an index entry for each name", async () => {
  const images = [image("a", ["r.test/a:1", "r.test/a:2"]), image("b", [])];
  const { job } = await save("a.tar", images);
  const layers = job.entries.filter(({ content }) => "layer" in content);
  expect(layers).toHaveLength(3);
  const text = (name: string) => {
    const { content } = job.entries.find((entry) => entry.name === name)!;
    return JSON.parse("text" in content ? content.text : "") as unknown;
  };
  expect(text("index.json")).toMatchObject({
    manifests: [
      {
        annotations: {
          "io.containerd.image.name": "r.test/a:1",
          "org.opencontainers.image.ref.name": "1",
        },
      },
      { annotations: { "org.opencontainers.image.ref.name": "2" } },
      { platform: { architecture: "amd64", os: "linux" } },
    ],
  });
  expect(text("manifest.json")).toMatchObject([
    { RepoTags: ["r.test/a:1", "r.test/a:2"] },
    { RepoTags: [] },
  ]);
});

test("written bytes fill the layers one after another", async () => {
  const states = async (...bytes: number[]) =>
    (await save("a.tar", [image("a", [])], { bytes, force: true })).last.layers.map(
      ({ doneBytes, state }) => `${state} ${doneBytes}`,
    );
  expect(await states(30)).toEqual(["moving 30", "waiting 0"]);
  expect(await states(100)).toEqual(["done 100", "waiting 0"]);
  expect(await states(130)).toEqual(["done 100", "moving 30"]);
  expect(await states(150)).toEqual(["done 100", "done 50"]);
});
