// Tests the storage of image records in a scratch folder.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { digestOf } from "../../../src/base/digest.ts";
import { silentLog } from "../../../src/base/log.ts";
import type { ImageOrigin } from "../../../src/image/image_origin.ts";
import { ImageRecords, type ImageRecord } from "../../../src/image/records.ts";

let folder: string;
let records: ImageRecords;
const open = async () => (records = await ImageRecords.open(folder, silentLog()));
beforeEach(async () => {
  folder = fs.mkdtempSync(join(tmpdir(), "isulad-records-"));
  await open();
});
afterEach(() => fs.rmSync(folder, { recursive: true }));

const configOf = (text: string) => Buffer.from(JSON.stringify({ text }));
const fileOf = (id: string, extension = "json") => join(folder, `${id.slice(7)}.${extension}`);

async function add(
  text: string,
  o: Partial<ImageRecord> = {},
  origin?: ImageOrigin,
): Promise<ImageRecord> {
  const record: ImageRecord = {
    id: digestOf(configOf(text)),
    repoTags: [],
    repoDigests: [],
    sizeBytes: 2n ** 60n,
    config: { architecture: "amd64", os: "linux" },
    layers: ["sha256:chain"],
    pulledAtNs: 1n,
    ...o,
  };
  return await records.add(record, configOf(text), { origin });
}

const tag = "docker.io/library/app:1";
const digestName = (text: string) => `docker.io/library/app@${digestOf(Buffer.from(text))}`;

describe("find", () => {
  test("finds an image by every form of its name and id", async () => {
    const { id } = await add("a", { repoTags: [tag], repoDigests: [digestName("m")] });
    const forms = [id, id.slice(7), id.slice(7, 10), id.slice(0, 20)];
    const names = ["app:1", "library/app:1", tag, digestName("m"), digestOf(Buffer.from("m"))];
    for (const ref of [...forms, ...names]) expect(records.find(ref)?.id).toBe(id);
    for (const ref of ["app", "app:2", id.slice(7, 9), "No Name", digestName("other")]) {
      expect(records.find(ref)).toBeUndefined();
    }
  });

  test("refuses an ambiguous prefix, but not a longer one", async () => {
    const byPrefix = new Map<string, ImageRecord>();
    for (let i = 0; ; i++) {
      const added = await add(String(i));
      const prefix = added.id.slice(7, 10);
      const twin = byPrefix.get(prefix);
      byPrefix.set(prefix, added);
      if (twin === undefined) continue;
      expect(() => records.find(prefix)).toThrow("ambiguous");
      expect(records.find(added.id.slice(7, 30))?.id).toBe(added.id);
      return;
    }
  });
});

describe("add", () => {
  test("merges the names of one image and moves a tag from another", async () => {
    const old = await add("old", { repoTags: [tag], repoDigests: [digestName("1")] });
    await add("old", { repoTags: ["docker.io/library/app:2"], repoDigests: [digestName("2")] });
    expect(records.get(old.id)).toMatchObject({
      repoTags: [tag, "docker.io/library/app:2"],
      repoDigests: [digestName("1"), digestName("2")],
    });
    const next = await add("next", { repoTags: [tag], pulledAtNs: 2n });
    expect(records.find(tag)?.id).toBe(next.id);
    expect(records.get(old.id)!.repoTags).toEqual(["docker.io/library/app:2"]);
  });

  test("survives a restart with all fields, last pulled first", async () => {
    const source = { kind: "registry", name: tag, host: "h" } as const;
    const first = await add("a", { source, runtimeHandler: "kata", repoTags: [tag] });
    const last = await add("b", { pulledAtNs: 3n, source: { kind: "file", path: "/f" } });
    const [low, high] = (
      await Promise.all(["c", "d"].map((text) => add(text, { pulledAtNs: 2n })))
    ).toSorted((a, b) => (a.id < b.id ? -1 : 1));
    await open();
    expect(records.list()).toEqual([last, low!, high!, first]);
  });
});

describe("open", () => {
  test("gives a tag of two images to the one pulled last", async () => {
    const old = await add("old", { repoTags: [tag] });
    const before = fs.readFileSync(fileOf(old.id));
    const next = await add("next", { repoTags: [tag], pulledAtNs: 2n });
    fs.writeFileSync(fileOf(old.id), before);
    for (let starts = 0; starts < 2; starts++) {
      await open();
      expect(records.find(tag)?.id).toBe(next.id);
      expect(records.get(old.id)!.repoTags).toEqual([]);
    }
  });

  test("removes partial writes and configs without an image, and sets unreadable records aside", async () => {
    const kept = await add("kept");
    const moved = await add("moved");
    fs.writeFileSync(join(folder, "x.json.tmp"), "");
    fs.writeFileSync(join(folder, "0.config"), "");
    fs.writeFileSync(join(folder, "0.origins"), "");
    fs.writeFileSync(join(folder, "1.json"), "{");
    fs.renameSync(fileOf(moved.id), join(folder, "2.json"));
    await open();
    expect(records.list()).toEqual([kept]);
    expect(fs.readdirSync(folder).sort()).toEqual(
      [
        "1.json.unreadable",
        "2.json.unreadable",
        `${kept.id.slice(7)}.config`,
        `${kept.id.slice(7)}.json`,
      ].sort(),
    );
  });
});

test("configOf returns the original bytes, not damaged ones", async () => {
  const { id } = await add("a");
  expect(await records.configOf(id)).toEqual(configOf("a"));
  fs.writeFileSync(fileOf(id, "config"), "other");
  expect(await records.configOf(id)).toBeUndefined();
  await records.remove(id);
  expect(await records.configOf(id)).toBeUndefined();
  expect(fs.readdirSync(folder)).toEqual([]);
});

test("originsOf returns those of the latest pull first, until the image is removed", async () => {
  const plain = { repository: "a.test/b", tags: ["1"], isPrivate: false, manifests: {} };
  const first = { ...plain, digest: "sha256:1" };
  const latest = { ...plain, digest: "sha256:2" };
  const { id } = await add("a", {}, first);
  await add("a", {}, latest);
  await add("a"); // loaded from a file
  await open();
  expect(await records.originsOf(id)).toEqual([latest, { ...first, tags: [] }]);
  expect(await records.originsOf(id)).toBe(await records.originsOf(id)); // parsed once
  fs.writeFileSync(fileOf(id, "origins"), "{");
  expect(await records.originsOf(id)).toEqual([]);
  await records.remove(id);
  expect(fs.readdirSync(folder)).toEqual([]);
});
