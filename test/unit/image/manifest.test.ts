// Tests the parsing of manifests, indexes and configs, and the choice among platforms.
import { describe, expect, test } from "bun:test";
import { digestOf } from "../../../src/base/digest.ts";
import { codeOf } from "../../../src/base/errors.ts";
import { chainIds, NoImage, parseConfig, parseManifest } from "../../../src/image/manifest.ts";
import { bestFor, hostPlatforms } from "../../../src/image/platform.ts";
import { layersOf } from "../../../src/image/register.ts";
import { failure } from "../../expect.ts";
import { blob, descriptor, makeImage, makeLayer, sha256 } from "../../image_maker.ts";
import { withLayers } from "../../registry/fake_registry.ts";

const image = makeImage([makeLayer([{ name: "f", data: "x" }])]);

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
    ["x64", v2, "linux/arm64 linux/386 linux/arm/v7", "linux/386"],
    ["arm64", "", "linux/arm/v6 linux/386 linux/arm/v7 linux/amd64", "linux/arm/v7"],
    ["arm64", "", "linux/arm/v5 linux/arm/v8 linux/armhf", "linux/arm/v8"],
    ["riscv64", "", "linux/amd64 linux/riscv64", "linux/riscv64"],
    ["x64", "", "linux/aarch64 linux/x86_64", "linux/x86_64"],
    ["x64", v3, "linux/X86-64 linux/amd64/v3", "linux/amd64/v3"],
    ["arm64", "", "linux/x86_64 linux/arm64 Linux/aarch64/8", "Linux/aarch64/8"],
    ["arm", "", "linux/armel linux/armhf linux/arm/5", "linux/armhf"],
  ])("on %s with %p: of %s it gives %s", async (arch, flags, has, wanted) => {
    const json = JSON.stringify({ manifests: has.split(" ").map(entry) });
    const parsed = await parseManifest(Buffer.from(json), "x");
    if (parsed.kind !== "index") throw new Error("no index");
    const platforms = hostPlatforms(arch, new Set(flags.split(" ")));
    const chosen = bestFor(parsed.index.manifests, platforms, (entry) => entry.platform);
    expect(chosen?.digest).toBe(sha256(wanted));
  });
});

describe("parseManifest", () => {
  const parse = (value: unknown) => parseManifest(Buffer.from(JSON.stringify(value)), "it");
  const codeFor = async (value: unknown) => {
    try {
      return (await parse(value)).kind;
    } catch (error) {
      return error instanceof NoImage ? "no image" : codeOf(error);
    }
  };
  const layer = descriptor(image.layers[0]!);
  const config = descriptor(image.config);
  const manifest = withLayers(image, [layer]);
  const ofLayer = (mediaType: string, more = {}) =>
    withLayers(image, [{ ...layer, mediaType, ...more }]);

  test.each<[string, unknown, string]>([
    ["an image", manifest, "image"],
    ["an image whose list of layers is null", { config, layers: null }, "image"],
    [
      "a config without a type",
      withLayers({ ...image, config: { ...image.config, mediaType: "" } }, [layer]),
      "image",
    ],
    [
      "null instead of texts",
      withLayers(image, [{ ...layer, mediaType: null, annotations: { a: null } }]),
      "image",
    ],
    ["an index", { manifests: [] }, "index"],
    [
      "an index with null instead of texts",
      { manifests: [{ ...config, platform: { os: null, architecture: null, variant: null } }] },
      "index",
    ],
    [
      "an index with a digest of another algorithm",
      { manifests: [{ digest: "blake3:00" }] },
      "index",
    ],
    ["an image without sizes", withLayers(image, [{ ...layer, size: undefined }]), "image"],
    ["a layer of another algorithm", ofLayer("", { digest: "blake3:00" }), "INVALID_ARGUMENT"],
    [
      "an index with a digest that leads out of the folder",
      { manifests: [{ ...layer, digest: "sha256:../x" }] },
      "INVALID_ARGUMENT",
    ],
    ["both an index and an image", { ...manifest, manifests: [] }, "INVALID_ARGUMENT"],
    ["schema 1", { schemaVersion: 1, fsLayers: [] }, "INVALID_ARGUMENT"],
    ["null", null, "INVALID_ARGUMENT"],
    ["a list", [], "INVALID_ARGUMENT"],
    ["a text", "hello", "INVALID_ARGUMENT"],
    [
      "a digest that leads out of the folder",
      withLayers(image, [{ ...layer, digest: "sha256:../x" }]),
      "INVALID_ARGUMENT",
    ],
    ["a list of annotations", ofLayer("", { annotations: ["a"] }), "INVALID_ARGUMENT"],
    [
      "an index with a list for a platform",
      { manifests: [{ ...config, platform: ["linux"] }] },
      "INVALID_ARGUMENT",
    ],
    ["a negative size", withLayers(image, [{ ...layer, size: -1 }]), "INVALID_ARGUMENT"],
    ["451 layers", withLayers(image, Array(451).fill(layer)), "INVALID_ARGUMENT"],
    ["an index of 1001 manifests", { manifests: Array(1001).fill(layer) }, "INVALID_ARGUMENT"],
    [
      "a chart",
      {
        config: { ...config, mediaType: "application/vnd.cncf.helm.config.v1+json" },
        layers: [layer],
      },
      "no image",
    ],
    ["an artifact of ORAS", { artifactType: "application/vnd.x", blobs: [layer] }, "no image"],
    ["an artifact without anything", { schemaVersion: 2, subject: config }, "no image"],
    ["a bill of materials", ofLayer("application/vnd.cyclonedx+xml"), "no image"],
    ["an attestation", ofLayer("application/vnd.in-toto+json"), "no image"],
    [
      "a nondistributable layer, which the registry may have",
      ofLayer("application/vnd.oci.image.layer.nondistributable.v1.tar"),
      "image",
    ],
  ])("of %s gives the right kind or code", async (_, value, result) => {
    expect(await codeFor(value)).toBe(result);
  });

  test("of schema 1 says what to do", async () => {
    const bytes = Buffer.from(JSON.stringify({ schemaVersion: 1, fsLayers: [] }));
    expect((await failure(parseManifest(bytes, "it"))).message).toContain("push the image again");
  });
});

describe("chainIds", () => {
  test("starts with the diff id and hashes each layer with the chain below it", () => {
    const [a, b, c] = ["a", "b", "c"].map((text) => sha256(text)) as [string, string, string];
    const second = digestOf(Buffer.from(`${a} ${b}`));
    expect(chainIds([a, b, c])).toEqual([a, second, digestOf(Buffer.from(`${second} ${c}`))]);
    expect(chainIds([])).toEqual([]);
  });

  test("are paired with the layers, whose number must match", async () => {
    const { diffId, digest, mediaType, size } = image.layers[0]!;
    const source = { kind: "file", path: "/l", offset: 0 } as const;
    const layers = [{ digest, mediaType, size, source }];
    const of = { config: Buffer.from(image.config.bytes), what: "it", layers };
    expect((await layersOf(of)).wants).toEqual([{ ...layers[0]!, diffId, chainId: diffId }]);
    const error = await failure(layersOf({ ...of, layers: [] }));
    expect(error.message).toContain("0 layers and 1 diff ids");
  });
});

function numbered(count: number): object {
  return Object.fromEntries(Array.from({ length: count }, (_, index) => [`/${index}`, {}]));
}

describe("a config", () => {
  const rootfs = { type: "layers", diff_ids: [image.layers[0]!.diffId] };
  const parse = (value: unknown) =>
    parseConfig(Buffer.from(typeof value === "string" ? value : JSON.stringify(value)), "it");

  test.each<[string, unknown]>([
    ["that is empty", ""],
    ["that is not JSON", "<html>"],
    ["that is a list", []],
    ["that nests endlessly", "[".repeat(200_000)],
    ["that is not UTF-8", "\ud800"],
    ["without layers", { config: {} }],
    ["of too many layers", { rootfs: { diff_ids: Array(451).fill(rootfs.diff_ids[0]) } }],
    ["with a diff id that is a path", { rootfs: { diff_ids: ["sha256:../../../etc/passwd"] } }],
    ["for another system", { os: "windows", rootfs }],
    ["of a user of 1 MiB", { config: { User: "u".repeat(1 << 20) }, rootfs }],
    ["of a user with a NUL", { config: { User: "a\0b" }, rootfs }],
    ["of an entrypoint with a NUL", { config: { Entrypoint: ["a\0b"] }, rootfs }],
    ["of an environment with a NUL", { config: { Env: ["A=\0"] }, rootfs }],
    ["of an environment that is a map", { config: { Env: { A: "b" } }, rootfs }],
    ["with labels that are not text", { config: { Labels: { a: { b: 1 } } }, rootfs }],
    ["that is a list where settings belong", { config: [], rootfs }],
    ["of a list of volumes", { config: { Volumes: ["/data"] }, rootfs }],
    ["of a list of labels", { config: { Labels: ["a=b"] }, rootfs }],
    ["of a volume with a NUL", { config: { Volumes: { "/a\0b": {} } }, rootfs }],
    ["of a working folder of 1 MiB", { config: { WorkingDir: "/x".repeat(1 << 19) }, rootfs }],
    ["of a stop signal of 1 MiB", { config: { StopSignal: "S".repeat(1 << 20) }, rootfs }],
    ["of an architecture of 1 MiB", { architecture: "a".repeat(1 << 20), rootfs }],
    ["of 4 MiB of labels", { config: { Labels: { a: "v".repeat(4 << 20) } }, rootfs }],
    ["of 20,000 volumes", { config: { Volumes: numbered(20_000) }, rootfs }],
    ["of 20,000 unknown fields", { x: numbered(20_000), rootfs }],
    ["of 300 KiB of variables", { config: { Env: ["A=".padEnd(300 << 10, "b")] }, rootfs }],
    ["of 300 KiB of arguments", { config: { Cmd: Array(300).fill("c".repeat(1024)) }, rootfs }],
  ])("%s is refused", async (_, value) => {
    expect((await failure(parse(value))).code).toBe("INVALID_ARGUMENT");
  });

  test("has the defaults of what is null, as in Go", async () => {
    const config = { Labels: { a: null }, Volumes: { "/v": null }, User: null, Env: null };
    const text = { os: null, architecture: null, variant: null, rootfs, config };
    expect((await parse(text)).config).toEqual({
      os: "linux",
      architecture: "",
      Volumes: { "/v": null },
      User: null,
      Env: null,
    });
  });

  test.each(["Linux", "LINUX", ""])("for the system %p is for linux", async (os) => {
    expect((await parse({ os, rootfs })).config.os).toBe("linux");
  });

  test("with many labels, special keys and unknown fields is accepted", async () => {
    const labels = Object.fromEntries(Array.from({ length: 5000 }, (_, i) => [`l${i}`, "v"]));
    const text = JSON.stringify({
      config: { Labels: { ...labels, constructor: "c" } },
      rootfs,
      x: 1,
    });
    const { config } = await parse(text.replace('"l0"', '"__proto__"'));
    expect(config).toEqual({ os: "linux", architecture: "" });
    expect(({} as { v?: string }).v).toBeUndefined();
  });
});
