// Tests pulls and loads through manifests and indexes of every kind. Needs root.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { codeOf, messageOf } from "../../src/base/errors.ts";
import { failure } from "../expect.ts";
import {
  blob,
  descriptor,
  makeImage,
  makeLayer,
  mediaTypes,
  writeOciLayout,
} from "../image_maker.ts";
import { FakeRegistry, withLayers } from "../registry/fake_registry.ts";
import { openFixture, within, type Fixture } from "./fixture.ts";

let fake: FakeRegistry;
let fixture: Fixture;
beforeEach(async () => {
  fake = await FakeRegistry.start();
  fixture = await openFixture();
});
afterEach(async () => {
  await fixture[Symbol.asyncDispose]();
  await fake[Symbol.asyncDispose]();
});

const image = makeImage([makeLayer([{ name: "f", data: "x" }])]);
const pull = async (tag: string) =>
  await fixture.store.pull(`${fake.host}/a/b:${tag}`, { signal: within() });

describe("an index", () => {
  test("may have an entry without an operating system", async () => {
    fake.put("a/b", image.manifest.digest, image);
    const other = makeImage(image.layers, {}, { os: "linux", architecture: "s390x" });
    const manifests = [other, image].map(({ manifest, platform }) => ({
      ...descriptor(manifest),
      platform: { ...platform, os: "" },
    }));
    fake.putManifest("a/b", "index", blob(mediaTypes.index, JSON.stringify({ manifests })));
    expect((await pull("index")).id).toBe(image.config.digest);
  });

  test("in Docker's format may list attestations next to the images", async () => {
    fake.put("a/b", image.manifest.digest, image);
    const type = "application/vnd.docker.distribution.manifest.list.v2+json";
    const manifests = [
      { ...descriptor(blob("", "att")), platform: { os: "unknown", architecture: "unknown" } },
      { ...descriptor(image.manifest), platform: image.platform },
    ];
    const list = { schemaVersion: 2, mediaType: type, manifests };
    fake.putManifest("a/b", "list", blob(type, JSON.stringify(list)));
    expect((await pull("list")).id).toBe(image.config.digest);
  });

  const indexOf = (entries: object[]) =>
    blob(mediaTypes.index, JSON.stringify({ schemaVersion: 2, manifests: entries }));
  const ours = descriptor(image.manifest);
  const named = { ...ours, platform: image.platform };
  const foreign = makeImage(image.layers, {}, { os: "linux", architecture: "s390x" });
  const windows = makeImage(image.layers, {}, { ...image.platform, os: "windows" });
  const chart = blob(
    mediaTypes.manifest,
    JSON.stringify({ config: { ...ours, mediaType: "application/vnd.x.v1+json" } }),
  );
  const inner = indexOf([descriptor(foreign.manifest), named]);
  const deeper = indexOf([descriptor(inner)]);
  const strange = indexOf([{ ...ours, platform: { os: "linux", architecture: "arm" } }]);

  /** Returns the ids or codes of a pull and a load of an index with these entries. */
  async function taken(entries: object[]): Promise<string[]> {
    const top = indexOf(entries);
    for (const one of [image, foreign, windows]) fake.put("a/b", one.manifest.digest, one);
    const others = [chart, inner, deeper, strange, top];
    for (const one of others) fake.putManifest("a/b", one.digest, one);
    fake.putManifest("a/b", "index", top);
    const folder = mkdtempSync(join(fixture.graph, "layout-"));
    await writeOciLayout(folder, [{ image }, { image: foreign }, { image: windows }]);
    for (const { digest, bytes } of others) {
      writeFileSync(join(folder, "blobs", digest.replace(":", "/")), bytes);
    }
    writeFileSync(join(folder, "index.json"), indexOf([descriptor(top)]).bytes);
    const results: string[] = [];
    for (const take of [
      () => pull("index"),
      async () => (await fixture.store.load(folder, { signal: within() }))[0]!,
    ]) {
      try {
        const { id } = await take();
        results.push(id);
        await fixture.store.remove(id);
      } catch (error) {
        results.push(`${codeOf(error)} ${messageOf(error)}`);
      }
    }
    return results;
  }

  test.each<[string, object[]]>([
    ["in an index", [descriptor(inner)]],
    ["in an index in an index", [descriptor(deeper)]],
    ["in an index that states its platform", [{ ...descriptor(inner), platform: image.platform }]],
    ["in a nested index next to others", [descriptor(strange), descriptor(inner)]],
    [
      "next to others, none with a platform",
      [windows.manifest, chart, foreign.manifest, image.manifest].map(descriptor),
    ],
    [
      "next to another that states its platform",
      [{ ...descriptor(foreign.manifest), platform: foreign.platform }, ours],
    ],
  ])("leads to the image that is %s", async (_, entries) => {
    expect(await taken(entries)).toEqual([image.config.digest, image.config.digest]);
  });

  test("for other platforms only lists those", async () => {
    const other = { ...ours, platform: { os: "linux", architecture: "arm", variant: "v5" } };
    for (const answer of await taken([other, descriptor(foreign.manifest), descriptor(chart)])) {
      expect(answer).toStartWith("NOT_FOUND");
      expect(answer).toContain("linux/arm/v5, linux/s390x");
    }
  });

  test("that is endless is refused", async () => {
    const many = Array.from({ length: 40 }, () => descriptor(foreign.manifest));
    for (const answer of await taken(many)) expect(answer).toStartWith("RESOURCE_EXHAUSTED");
  });
});

describe("a manifest", () => {
  const layer = descriptor(image.layers[0]!);
  const config = descriptor(image.config);
  const helm = { ...config, mediaType: "application/vnd.cncf.helm.config.v1+json" };
  const typed = (mediaType: string) => ({
    ...layer,
    mediaType,
    urls: ["https://elsewhere.test/layer"],
  });
  const notInRegistries = [
    "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
  ];

  test.each(notInRegistries)("with a layer %s works if the registry has it", async (mediaType) => {
    fake.put("a/b", "1", image);
    const manifest = JSON.stringify(withLayers(image, [typed(mediaType)]));
    fake.putManifest("a/b", "x", blob(mediaTypes.manifest, manifest));
    expect((await pull("x")).id).toBe(image.config.digest);
  });

  test.each(notInRegistries)("with a layer %s says why it is missing", async (mediaType) => {
    const digest = `sha256:${"0".repeat(64)}`;
    fake.put("a/b", "1", image);
    const manifest = JSON.stringify(withLayers(image, [{ ...typed(mediaType), digest }]));
    fake.putManifest("a/b", "x", blob(mediaTypes.manifest, manifest));
    const error = await failure(pull("x"));
    expect(error.code).toBe("NOT_FOUND");
    for (const why of [digest, "https://elsewhere.test/layer", "non-distributable layers"]) {
      expect(error.message).toContain(why);
    }
    expect(fixture.remains()).toEqual([]);
  });

  test.each<[string, object, string, string]>([
    ["a chart", { config: helm, layers: [layer] }, "INVALID_ARGUMENT", "helm"],
    [
      "an attestation",
      withLayers(image, [typed("application/vnd.in-toto+json")]),
      "INVALID_ARGUMENT",
      "in-toto",
    ],
  ])("of %s is refused", async (_, manifest, code, why) => {
    fake.put("a/b", "1", image);
    fake.putManifest("a/b", "x", blob(mediaTypes.manifest, JSON.stringify(manifest)));
    const error = await failure(pull("x"));
    expect(error.code).toBe(code as typeof error.code);
    expect(error.message).toContain(why);
    expect(fixture.remains()).toEqual([]);
  });

  test.each(["gzip", "none"] as const)("of Docker's schema 2, layer %s, works", async (packed) => {
    const one = makeLayer([{ name: "f", data: packed }], packed);
    const of = makeImage([one]);
    fake.put("a/b", "1", of);
    const schema2 = {
      schemaVersion: 2,
      mediaType: "application/vnd.docker.distribution.manifest.v2+json",
      config: {
        ...descriptor(of.config),
        mediaType: "application/vnd.docker.container.image.v1+json",
      },
      layers: [
        { ...descriptor(one), mediaType: "application/vnd.docker.image.rootfs.diff.tar.gzip" },
      ],
    };
    fake.putManifest("a/b", "d", blob(schema2.mediaType, JSON.stringify(schema2)));
    expect((await pull("d")).id).toBe(of.config.digest);
  });

  test.each([
    ["null lists and no system", { os: "", rootfs: { type: "layers", diff_ids: null } }, null],
    ["no lists", { rootfs: { type: "layers" } }, undefined],
  ])("without layers, with %s, gives an empty root", async (_, settings, layers) => {
    const config = blob(mediaTypes.config, JSON.stringify({ ...settings, architecture: "amd64" }));
    const manifest = { schemaVersion: 2, config: descriptor(config), layers };
    fake.putBlob("a/b", config.digest, config);
    fake.putManifest("a/b", "none", blob(mediaTypes.manifest, JSON.stringify(manifest)));
    const none = await pull("none");
    expect(none).toMatchObject({ id: config.digest, layers: [], config: { os: "linux" } });
    const dir = join(fixture.graph, "containers/none");
    expect(readdirSync(await fixture.store.mountRootfs(none, { dir }))).toEqual([]);
    await fixture.store.unmountRootfs(dir);
  });

  test("whose layers exceed the disk is refused before they are fetched", async () => {
    const large = { ...layer, size: 2 ** 50 };
    fake.put("a/b", "1", image);
    const manifest = JSON.stringify(withLayers(image, [large]));
    fake.putManifest("a/b", "large", blob(mediaTypes.manifest, manifest));
    const error = await failure(pull("large"));
    expect(error.code).toBe("RESOURCE_EXHAUSTED");
    expect(error.message).toContain("1.13PB");
    expect(fake.paths().some((path) => path.includes(image.layers[0]!.digest))).toBe(false);
    expect(fixture.remains()).toEqual([]);
  });
});
