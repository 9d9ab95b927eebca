// Tests the limits that protect a node against hostile layers: expansion, memory for metadata, disk space.
import { describe, expect, test } from "bun:test";
import { tmpdir } from "node:os";
import type { CriError } from "../../../src/base/errors.ts";
import { asResourceExhausted, assertDiskSpace } from "../../../src/layer/disk_space.ts";
import { ExpansionLimit } from "../../../src/layer/expansion_limit.ts";
import { LayerMemory } from "../../../src/layer/layer_memory.ts";
import type { TarHeader } from "../../../src/layer/tar_reader.ts";
import { failure } from "../../expect.ts";

const mib = 1 << 20;

describe("ExpansionLimit", () => {
  test("allows any ratio up to 256 MiB", () => {
    const limit = new ExpansionLimit({ ratioMax: 2 });
    limit.addPacked(10);
    expect(() => limit.addPlain(256 * mib)).not.toThrow();
    expect(() => limit.addPlain(1)).toThrow("over 2 times as much (layer-max-ratio)");
  });

  test("allows more while the ratio is kept", () => {
    const limit = new ExpansionLimit({ ratioMax: 3 });
    limit.addPacked(60 * mib);
    limit.addPacked(40 * mib);
    expect(() => limit.addPlain(300 * mib)).not.toThrow();
    expect(() => limit.addPlain(1)).toThrow("layer-max-ratio");
  });

  test("never allows more than bytesMax", () => {
    const limit = new ExpansionLimit({ bytesMax: 10, ratioMax: 3 });
    limit.addPacked(100);
    expect(() => limit.addPlain(10)).not.toThrow();
    expect(() => limit.addPlain(1)).toThrow("more than 10 bytes (layer-max-mib)");
  });
});

describe("LayerMemory", () => {
  const entry = (name: string, xattrs: TarHeader["xattrs"] = []) =>
    ({ name, link: "", xattrs }) as unknown as TarHeader;
  /** How many calls it takes until the limit is hit; 16 MiB is the least that a layer may use. */
  function callsUntilFull(run: (memory: LayerMemory) => void, callsMax: number): number {
    const memory = new LayerMemory(1);
    for (let calls = 0; calls < callsMax; calls++) {
      try {
        run(memory);
      } catch (error) {
        expect((error as CriError).code).toBe("RESOURCE_EXHAUSTED");
        return calls;
      }
    }
    return callsMax;
  }

  test.each<[string, (memory: LayerMemory) => void, number]>([
    ["names", (memory) => memory.addEntry(entry("x".repeat(mib))), 16],
    [
      "attributes that are kept",
      (memory) => memory.addEntry(entry("", [["user.a", Buffer.alloc(mib - 6 - 256)]])),
      16,
    ],
    [
      "attributes that are dropped, which need no object",
      (memory) => memory.addEntry(entry("", [["user.overlay.a", Buffer.alloc(mib - 14)]])),
      16,
    ],
    ["names of folders", (memory) => memory.addFolderName("x".repeat(mib - 256)), 16],
    ["paths of implicit folders", (memory) => memory.addImplicitFolder("x".repeat(mib)), 8],
    ["the number of implicit folders", (memory) => memory.addImplicitFolder("x"), 100_000],
  ])("limits %s", (_, run, calls) => expect(callsUntilFull(run, 200_000)).toBe(calls));

  test("allows 512 bytes for each entry that a layer may have", () => {
    const memory = new LayerMemory(1 << 16);
    expect(() => memory.addEntry(entry("x".repeat(32 * mib)))).not.toThrow();
    expect(() => memory.addEntry(entry("x"))).toThrow("layer-max-entries");
  });
});

describe("disk space", () => {
  test("assertDiskSpace() passes for little and fails for more than any disk has", async () => {
    await assertDiskSpace(tmpdir(), 1n, "it takes");
    const error = await failure(assertDiskSpace(tmpdir(), 1n << 80n, "it takes"));
    expect(error.code).toBe("RESOURCE_EXHAUSTED");
    expect(error.message).toStartWith(
      `no space left on the disk of graph: it takes 1210000000PB, and ${tmpdir()} has `,
    );
  });

  test("assertDiskSpace() passes on a file system that reports no sizes", async () => {
    await assertDiskSpace("/proc", 1n << 80n, "it takes");
  });

  test("asResourceExhausted() converts ENOSPC and EDQUOT, and nothing else", () => {
    for (const code of ["ENOSPC", "EDQUOT"]) {
      const error = asResourceExhausted(Object.assign(new Error("write"), { code })) as CriError;
      expect(error.code).toBe("RESOURCE_EXHAUSTED");
      expect(error.message).toBe(
        "no space left on the disk of graph: write; isulad-ts images prune removes unused images",
      );
    }
    const other = Object.assign(new Error("write"), { code: "EIO" });
    expect(asResourceExhausted(other)).toBe(other);
  });
});
