// Image archives as tools write them: what they say, leave out and pack differently. Needs root.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { makeImage, makeLayer, ociArchive } from "../image_maker.ts";
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
});
