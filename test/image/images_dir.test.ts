// Tests which image has a tag after archives of images-dir were loaded again. Needs root.
import { afterEach, beforeEach, expect, test } from "bun:test";
import * as fs from "node:fs";
import { join } from "node:path";
import { silentLog } from "../../src/base/log.ts";
import { loadImagesDir } from "../../src/image/images_dir.ts";
import { until } from "../expect.ts";
import { makeImage, makeLayer, ociArchive, type TestImage } from "../image_maker.ts";
import { openFixture, within, type Fixture } from "./fixture.ts";

const name = "registry.example/app:stable";
const images = ["1", "2", "3"].map((data) => makeImage([makeLayer([{ name: "f", data }])]));
const [one, two, three] = images.map(({ config }) => config.digest) as [string, string, string];

let fixture: Fixture;
let folder: string;
beforeEach(async () => {
  fixture = await openFixture();
  folder = join(fixture.graph, "archives");
  fs.mkdirSync(folder);
  write("app-1.tar", images[0]!);
  write("app-2.tar", images[1]!);
  await start();
  expect(tagged()).toBe(two);
});
afterEach(() => fixture[Symbol.asyncDispose]());

function write(file: string, image: TestImage): void {
  fs.writeFileSync(join(folder, file), ociArchive([{ image, name }]));
}

/** Loads the folder as at a start of the daemon. */
async function start(): Promise<void> {
  let isDone = false;
  const log = { ...silentLog(), info: () => (isDone = true) };
  const memory = join(fixture.graph, "images-dir.json");
  await using _ = loadImagesDir(fixture.store, { folder, memory, log });
  await until("images-dir is processed", () => isDone);
}

const tagged = () => fixture.store.find(name)?.id;

test("an archive whose image was removed leaves the tag to the newer one", async () => {
  await fixture.store.remove(one);
  await start();
  expect(fixture.store.find(one)?.repoTags).toEqual([]);
  expect(tagged()).toBe(two);
});

test("an archive whose image was removed leaves the tag to an image loaded otherwise", async () => {
  const file = join(fixture.graph, "other.tar");
  fs.writeFileSync(file, ociArchive([{ image: images[2]!, name }]));
  await fixture.store.load(file, { signal: within() });
  await fixture.store.remove(two);
  await start();
  expect(fixture.store.find(two)?.repoTags).toEqual([]);
  expect(tagged()).toBe(three);
});

test("the last archive has the tag again after all images were removed", async () => {
  await fixture.store.remove(one);
  await fixture.store.remove(two);
  await start();
  expect(tagged()).toBe(two);
});

test("a new version of an archive takes the tag", async () => {
  write("app-2.tar", images[2]!);
  await start();
  expect(tagged()).toBe(three);
});
