// Tests loading a folder of images into a store that only counts.
import { afterEach, beforeEach, expect, test } from "bun:test";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../../src/base/log.ts";
import { loadImagesDir } from "../../../src/image/images_dir.ts";
import type { ImageStore } from "../../../src/image/store.ts";
import { until } from "../../expect.ts";

let folder: string;
let memory: string;
let images: Set<string>;
beforeEach(() => {
  folder = fs.mkdtempSync(join(tmpdir(), "isulad-images-"));
  memory = `${folder}.json`;
  images = new Set();
});
afterEach(() => {
  fs.rmSync(folder, { recursive: true, force: true });
  fs.rmSync(memory, { force: true });
});

/** Loads the folder once and returns the names of the files loaded. */
async function load(): Promise<string[]> {
  const loaded: string[] = [];
  const store = {
    find: (id: string) => (images.has(id) ? {} : undefined),
    load: async (path: string) => {
      const name = path.slice(folder.length + 1);
      loaded.push(name);
      if (name.startsWith("bad")) throw new Error("no image");
      images.add(name);
      return [{ id: name }];
    },
  } as unknown as ImageStore;
  let isDone = false;
  const log = { ...silentLog(), info: () => (isDone = true) };
  await using _ = loadImagesDir(store, {
    folder,
    memory,
    log,
  });
  await until("images-dir is processed", () => isDone);
  return loaded;
}

test("loads in order of names, skips hidden files and goes on after a failure", async () => {
  for (const name of ["b", "bad", "a", ".part"]) fs.writeFileSync(join(folder, name), name);
  expect(await load()).toEqual(["a", "b", "bad"]);
});

test("loads a file again only if it or its images changed, or the list is unreadable", async () => {
  for (const name of ["a", "b"]) fs.writeFileSync(join(folder, name), name);
  expect(await load()).toEqual(["a", "b"]);
  expect(await load()).toEqual([]);
  fs.writeFileSync(join(folder, "a"), "changed");
  expect(await load()).toEqual(["a"]);
  images.delete("b");
  expect(await load()).toEqual(["b"]);
  fs.writeFileSync(memory, "{");
  expect(await load()).toEqual(["a", "b"]);
});

test("identifies a layout folder by its index", async () => {
  fs.mkdirSync(join(folder, "layout"));
  fs.writeFileSync(join(folder, "layout/index.json"), "{}");
  expect(await load()).toEqual(["layout"]);
  fs.writeFileSync(join(folder, "layout/other"), "x");
  expect(await load()).toEqual([]);
  fs.writeFileSync(join(folder, "layout/index.json"), "{ }");
  expect(await load()).toEqual(["layout"]);
});

test("loads nothing from a missing folder", async () => {
  fs.rmSync(folder, { recursive: true });
  expect(await load()).toEqual([]);
});
