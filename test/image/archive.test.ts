// Image archives as tools write them: what they say, leave out and pack differently. Needs root.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import {
  blob,
  descriptor,
  makeImage,
  makeLayer,
  mediaTypes,
  ociArchive,
  tar,
} from "../image_maker.ts";
import { openFixture, within, type Fixture } from "./fixture.ts";

let fixture: Fixture;
beforeEach(async () => {
  fixture = await openFixture();
});
afterEach(async () => await fixture[Symbol.asyncDispose]());

async function load(bytes: Uint8Array, name?: string) {
  const file = join(fixture.graph, "archive");
  fs.writeFileSync(file, bytes);
  return await fixture.store.load(file, { ...(name && { name }), signal: within() });
}

const image = makeImage([makeLayer([{ name: "f", data: randomBytes(1000) }])]);

describe("an archive", () => {
  test("may be filled up with zeros behind its compressed part", async () => {
    const archive = ociArchive([{ image, name: "docker.io/x/y:1" }]);
    for (const packed of [gzipSync(archive), Bun.zstdCompressSync(archive)]) {
      const [loaded] = await load(Buffer.concat([packed, Buffer.alloc(512)]));
      expect(loaded!.repoTags).toEqual(["docker.io/x/y:1"]);
    }
  });

  test("without layers gives its image, whether it says so by an empty list or by none", async () => {
    const text = JSON.stringify({ architecture: "amd64", os: "linux", rootfs: { diff_ids: null } });
    const config = blob("", text);
    const manifest = blob(
      mediaTypes.manifest,
      JSON.stringify({ schemaVersion: 2, config: descriptor(config), layers: null }),
    );
    const none = { ...image, config, manifest, layers: [] };
    const docker = [{ Config: "config.json", RepoTags: ["x/y:2"], Layers: null }];
    const files = [
      { name: "config.json", data: text },
      { name: "manifest.json", data: JSON.stringify(docker) },
    ];
    for (const bytes of [ociArchive([{ image: none, name: "x/y:1" }]), tar(files)]) {
      const [loaded] = await load(bytes);
      expect(loaded).toMatchObject({ id: config.digest, layers: [] });
    }
    expect(fixture.store.find("x/y:2")!.repoTags).toHaveLength(2);
  });
});
