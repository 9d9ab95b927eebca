// Tests that an index resolves to the manifest of this machine's platform.
import { describe, expect, test } from "bun:test";
import { CriError } from "../../../src/base/errors.ts";
import { hostPlatforms } from "../../../src/image/platform.ts";
import { platformManifest } from "../../../src/image/platform_manifest.ts";
import { failure } from "../../expect.ts";
import {
  blob,
  descriptor,
  makeImage,
  makeLayer,
  mediaTypes,
  type Blob,
} from "../../image_maker.ts";

const platform = { os: "linux", architecture: hostPlatforms()[0]!.architecture };
const narrow = { os: "linux", architecture: hostPlatforms()[1]!.architecture };
const foreignPlatform = { os: "linux", architecture: "s390x" };
const layer = makeLayer([{ name: "f", data: "x" }]);
const image = makeImage([layer], {}, platform);
const foreign = makeImage([layer], {}, foreignPlatform);
const windows = makeImage([layer], {}, { ...platform, os: "windows" });
const chart = blob(
  mediaTypes.manifest,
  JSON.stringify({
    config: { ...descriptor(image.config), mediaType: "application/vnd.x.v1+json" },
  }),
);
const indexOf = (entries: object[]) =>
  blob(mediaTypes.index, JSON.stringify({ manifests: entries }));
const stated = (of: typeof image) => ({ ...descriptor(of.manifest), platform: of.platform });
const absent = descriptor(blob(mediaTypes.manifest, "absent"));

/** Returns the config's digest of the manifest chosen from an index with these entries. */
async function resolve(entries: object[], more: Blob[] = []): Promise<string> {
  const blobs = new Map<string, Blob>();
  for (const one of [image, foreign, windows]) {
    for (const part of [one.manifest, one.config]) blobs.set(part.digest, part);
  }
  for (const one of [chart, ...more]) blobs.set(one.digest, one);
  const read = async (digest: string) => {
    const found = blobs.get(digest);
    if (found === undefined) throw new CriError("NOT_FOUND", `there is no ${digest}`);
    return found.bytes;
  };
  const reader = { manifest: read, config: ({ digest }: { digest: string }) => read(digest) };
  return (await platformManifest(indexOf(entries).bytes, "it", reader)).config.digest;
}

const blake3 = `blake3:${"0".repeat(64)}`;
const artifact = { ...descriptor(chart), platform };
const needs = (features: string[]) => ({
  ...stated(features.length === 0 ? image : foreign),
  platform: { ...platform, "os.features": features },
});
const needsOnly = { ...descriptor(foreign.manifest), platform: { "os.features": ["erofs"] } };

describe("platformManifest", () => {
  const nested = indexOf([descriptor(foreign.manifest), stated(image)]);

  test.each<[string, object[]]>([
    ["states its platform", [stated(foreign), stated(image)]],
    [
      "states its platform, before one that does not",
      [descriptor(foreign.manifest), stated(image)],
    ],
    ["is the only one, without a platform", [descriptor(image.manifest)]],
    ["is the only one for linux", [stated(windows), descriptor(image.manifest), stated(windows)]],
    [
      "has this platform in its config",
      [foreign, windows, image].map((one) => descriptor(one.manifest)),
    ],
    [
      "follows a chart and a missing manifest",
      [descriptor(chart), absent, descriptor(image.manifest)],
    ],
    ["is in a nested index", [descriptor(nested), descriptor(foreign.manifest)]],
    ["requires no OS feature", [needs(["erofs"]), needs(["nydus.remoteimage.v1"]), needs([])]],
    ["requires no OS feature, where none states more", [needsOnly, descriptor(image.manifest)]],
    ["can be verified", [{ ...stated(image), digest: blake3 }, stated(image)]],
    [
      "follows unknown digests of other platforms and of none",
      [{ ...stated(foreign), digest: blake3 }, { ...absent, digest: "md5:00" }, stated(image)],
    ],
    ["follows an artifact of this platform", [artifact, stated(image)]],
    [
      "is no artifact by its type, even if listed later",
      [{ ...absent, platform, artifactType: "application/vnd.x.v1" }, stated(image)],
    ],
    ["states no platform, behind an artifact", [artifact, descriptor(image.manifest)]],
    ["has no size", [{ ...stated(image), size: undefined }]],
  ])("chooses the entry that %s", async (_, entries) => {
    expect(await resolve(entries, [nested])).toBe(image.config.digest);
  });

  test("chooses 32 bits only where no entry is for this machine's own architecture", async () => {
    const small = makeImage([layer], {}, narrow);
    const parts = [small.manifest, small.config];
    const at = { ...descriptor(small.manifest), platform: narrow };
    const others = [stated(foreign), stated(windows)];
    expect(await resolve([...others, at], parts)).toBe(small.config.digest);
    expect(await resolve([descriptor(foreign.manifest), at], parts)).toBe(small.config.digest);
    for (const own of [stated(image), descriptor(image.manifest)]) {
      expect(await resolve([at, own, descriptor(foreign.manifest)], parts)).toBe(
        image.config.digest,
      );
    }
    const unstated = [descriptor(foreign.manifest), descriptor(small.manifest)];
    expect(await resolve(unstated, parts)).toBe(small.config.digest);
  });

  test("accepts a manifest in place of an index", async () => {
    const reader = {
      manifest: () => Promise.reject(new Error("not needed")),
      config: () => Promise.reject(new Error("not needed")),
    };
    const { config } = await platformManifest(foreign.manifest.bytes, "it", reader);
    expect(config.digest).toBe(foreign.config.digest);
  });

  test("takes the only linux entry even if its config is for another platform", async () => {
    expect(await resolve([descriptor(foreign.manifest)])).toBe(foreign.config.digest);
  });

  test("lists the platforms found if none matches", async () => {
    const power = {
      ...descriptor(image.manifest),
      platform: { os: "linux", architecture: "ppc64le", variant: "v9" },
    };
    const unknown = { ...absent, platform: { os: "unknown", architecture: "unknown" } };
    const error = await failure(
      resolve([power, unknown, descriptor(foreign.manifest), descriptor(chart)]),
    );
    expect(error.code).toBe("NOT_FOUND");
    expect(error.message).toEndWith("it has linux/ppc64le/v9, linux/s390x");
    const empty = await failure(resolve([]));
    expect(empty.message).toEndWith("it has none");
  });

  test("says why the only entries of this platform are none for this node", async () => {
    const features = await failure(resolve([needs(["erofs"]), needs(["x", "y"])]));
    expect(features.code).toBe("NOT_FOUND");
    expect(features.message).toContain("(needs the OS feature erofs)");
    expect(features.message).toContain("(needs the OS feature x, y)");
    const unverified = await failure(resolve([{ ...stated(image), digest: blake3 }]));
    expect(unverified.code).toBe("INVALID_ARGUMENT");
    expect(unverified.message).toContain(`${blake3} cannot be verified`);
    expect((await failure(resolve([artifact]))).message).toContain("is no container image");
  });

  test("reports the first problem if no entry has a known platform", async () => {
    expect((await failure(resolve([absent, descriptor(chart)]))).message).toContain(`there is no`);
  });

  test("passes on errors that say nothing about the entry", async () => {
    const reader = {
      manifest: () => Promise.reject(new CriError("UNAVAILABLE", "down")),
      config: () => Promise.reject(new CriError("UNAVAILABLE", "down")),
    };
    const top = indexOf([descriptor(foreign.manifest), descriptor(image.manifest)]);
    expect((await failure(platformManifest(top.bytes, "it", reader))).code).toBe("UNAVAILABLE");
  });

  test("reads at most 32 manifests", async () => {
    const entries = Array.from({ length: 33 }, () => descriptor(foreign.manifest));
    expect((await failure(resolve(entries))).code).toBe("RESOURCE_EXHAUSTED");
    entries[32] = descriptor(image.manifest);
    expect(await resolve(entries.slice(1))).toBe(image.config.digest);
  });
});
