// Manifests, indexes and configs: which image a machine gets, and what is refused. Needs root.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { codeOf, messageOf } from "../../src/base/errors.ts";
import { parseConfig, parseManifest } from "../../src/image/manifest.ts";
import { bestFor, hostPlatform } from "../../src/image/platform.ts";
import { failure } from "../expect.ts";
import {
  blob,
  descriptor,
  makeImage,
  makeLayer,
  mediaTypes,
  sha256,
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
  const entry = (text: string) => {
    const [os, architecture, variant] = text.split("/");
    return { ...descriptor(blob("", text)), platform: { os, architecture, variant } };
  };
  const v2 = "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3";
  const v3 = `${v2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave`;
  const v4 = `${v3} avx512f avx512bw avx512cd avx512dq avx512vl`;
  test.each([
    ["x64", v3, "linux/amd64 linux/amd64/v2 linux/amd64/v3 linux/amd64/v4", "linux/amd64/v3"],
    ["x64", v4, "linux/amd64/v4 linux/amd64", "linux/amd64/v4"],
    ["x64", "", "linux/amd64/v2 linux/amd64", "linux/amd64"],
    ["x64", v2, "linux/386 windows/amd64 linux/amd64/v1", "linux/amd64/v1"],
    ["arm64", "", "linux/arm/v7 linux/arm64", "linux/arm64"],
    ["arm64", "", "linux/arm64 linux/arm64/v8", "linux/arm64/v8"],
    ["arm", "", "linux/arm/v5 linux/arm/v6 linux/arm64/v8", "linux/arm/v6"],
    ["riscv64", "", "linux/amd64 linux/riscv64", "linux/riscv64"],
    ["x64", "", "linux/aarch64 linux/x86_64", "linux/x86_64"],
    ["x64", v3, "linux/X86-64 linux/amd64/v3", "linux/amd64/v3"],
    ["arm64", "", "linux/x86_64 linux/arm64 Linux/aarch64/8", "Linux/aarch64/8"],
    ["arm", "", "linux/armel linux/armhf linux/arm/5", "linux/armhf"],
  ])("on %s with %p: of %s it gives %s", (arch, flags, has, wanted) => {
    const json = JSON.stringify({ manifests: has.split(" ").map(entry) });
    const parsed = parseManifest(Buffer.from(json), "x");
    if (parsed.kind !== "index") throw new Error("no index");
    const platform = hostPlatform(arch, new Set(flags.split(" ")));
    const chosen = bestFor(parsed.index.manifests, platform, (entry) => entry.platform);
    expect(chosen?.digest).toBe(sha256(wanted));
  });

  test("takes an entry without a system for this node's", async () => {
    fake.put("a/b", image.manifest.digest, image);
    const other = makeImage(image.layers, {}, { os: "linux", architecture: "s390x" });
    const manifests = [other, image].map(({ manifest, platform }) => ({
      ...descriptor(manifest),
      platform: { ...platform, os: "" },
    }));
    fake.putManifest("a/b", "index", blob(mediaTypes.index, JSON.stringify({ manifests })));
    expect((await pull("index")).id).toBe(image.config.digest);
  });

  test("of Docker's kind, with attestations beside the images, works too", async () => {
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

  /** The ids or codes of a pull and a load of what an index of these entries means. */
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
    ["in an index that tells its platform", [{ ...descriptor(inner), platform: image.platform }]],
    ["beside others in an index", [descriptor(strange), descriptor(inner)]],
    [
      "in no index, where none tells its platform",
      [windows.manifest, chart, foreign.manifest, image.manifest].map(descriptor),
    ],
    [
      "in no index, where another one tells it",
      [{ ...descriptor(foreign.manifest), platform: foreign.platform }, ours],
    ],
  ])("has the image that is %s", async (_, entries) => {
    expect(await taken(entries)).toEqual([image.config.digest, image.config.digest]);
  });

  test("of none that runs here says which there are", async () => {
    const other = { ...ours, platform: { os: "linux", architecture: "arm", variant: "v5" } };
    for (const answer of await taken([other, descriptor(foreign.manifest), descriptor(chart)])) {
      expect(answer).toStartWith("NOT_FOUND");
      expect(answer).toContain("linux/arm/v5, linux/s390x");
    }
  });

  test("that has no end is refused", async () => {
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
  test.each<[string, object, string, string]>([
    [
      "a foreign layer",
      withLayers(image, [typed("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")]),
      "FAILED_PRECONDITION",
      "https://elsewhere.test/layer",
    ],
    [
      "a layer that may not be distributed",
      withLayers(image, [typed("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd")]),
      "FAILED_PRECONDITION",
      image.layers[0]!.digest,
    ],
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

  test("whose layers no disk has room for is refused before they are fetched", async () => {
    const large = { ...layer, size: 2 ** 50 };
    fake.put("a/b", "1", image);
    const manifest = JSON.stringify(withLayers(image, [large]));
    fake.putManifest("a/b", "large", blob(mediaTypes.manifest, manifest));
    const error = await failure(pull("large"));
    expect(error.code).toBe("RESOURCE_EXHAUSTED");
    expect(error.message).toContain(String(2 ** 50));
    expect(fake.paths().some((path) => path.includes(image.layers[0]!.digest))).toBe(false);
    expect(fixture.remains()).toEqual([]);
  });
});

describe("a config", () => {
  const rootfs = { type: "layers", diff_ids: [image.layers[0]!.diffId] };
  const parse = (value: unknown) =>
    parseConfig(Buffer.from(typeof value === "string" ? value : JSON.stringify(value)), "it");

  test.each<[string, unknown]>([
    ["that is empty", ""],
    ["that is no JSON", "<html>"],
    ["that is a list", []],
    ["that nests without an end", "[".repeat(3_000_000)],
    ["that is no UTF-8", "\ud800"],
    ["without layers", { config: {} }],
    ["of too many layers", { rootfs: { diff_ids: Array(128).fill(rootfs.diff_ids[0]) } }],
    ["of a diff id that leads away", { rootfs: { diff_ids: ["sha256:../../../etc/passwd"] } }],
    ["for another system", { os: "windows", rootfs }],
    ["of a user of 1 MiB", { config: { User: "u".repeat(1 << 20) }, rootfs }],
    ["of a user with a NUL", { config: { User: "a\0b" }, rootfs }],
    ["of an entrypoint with a NUL", { config: { Entrypoint: ["a\0b"] }, rootfs }],
    ["of an environment with a NUL", { config: { Env: ["A=\0"] }, rootfs }],
    ["of an environment that is a map", { config: { Env: { A: "b" } }, rootfs }],
    ["of labels that are no text", { config: { Labels: { a: { b: 1 } } }, rootfs }],
    ["of a volume with a NUL", { config: { Volumes: { "/a\0b": {} } }, rootfs }],
    ["of a working folder of 1 MiB", { config: { WorkingDir: "/x".repeat(1 << 19) }, rootfs }],
    ["of a stop signal of 1 MiB", { config: { StopSignal: "S".repeat(1 << 20) }, rootfs }],
    ["of an architecture of 1 MiB", { architecture: "a".repeat(1 << 20), rootfs }],
  ])("%s is refused", (_, value) => {
    expect(() => parse(value)).toThrow(expect.objectContaining({ code: "INVALID_ARGUMENT" }));
  });

  test("of many labels, of keys that JavaScript knows and of what is unknown is taken", () => {
    const labels = Object.fromEntries(Array.from({ length: 5000 }, (_, i) => [`l${i}`, "v"]));
    const text = JSON.stringify({
      config: { Labels: { ...labels, constructor: "c" } },
      rootfs,
      x: 1,
    });
    const { config } = parse(text.replace('"l0"', '"__proto__"'));
    expect(config.Labels!["l1"]).toBe("v");
    expect(Object.keys(config.Labels!).length).toBeGreaterThanOrEqual(4999);
    expect(({} as { v?: string }).v).toBeUndefined();
  });
});
