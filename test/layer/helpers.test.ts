// The unpacking helpers: whom the kernel takes where memory runs out, and how much list a layer may make.
import { expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Descriptor } from "../../src/sys/descriptor.ts";
import { UnpackHelpers } from "../../src/layer/helpers.ts";
import { implicitFolder, writeListing } from "../../src/layer/layer_manifest.ts";
import { failure } from "../expect.ts";
import { within } from "../image/fixture.ts";

test("a helper is what the kernel takes first where memory runs out", async () => {
  const children = () =>
    readFileSync("/proc/thread-self/children", "utf8").split(" ").filter(Boolean);
  const before = children();
  await using helpers = new UnpackHelpers("overlay");
  await helpers.run({ kind: "sync", folder: tmpdir() }, { signal: within() });
  const begun = children().filter((pid) => !before.includes(pid));
  expect(begun.length).toBe(1);
  expect(readFileSync(`/proc/${begun[0]}/oom_score_adj`, "utf8")).toBe("1000\n");
});

test("writeListing() ends at its limit, though JSON has six characters for one", async () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-listing-"));
  const path = join(folder, "listing");
  const file = Descriptor.create(path);
  try {
    const name = (i: number) => `${i}${"\u0001".repeat(1000)}`;
    const names = Array.from({ length: 4_000 }, (_, i) => name(i));
    const entries = new Map(names.map((path) => [path, implicitFolder()]));
    const error = await failure(Promise.try(() => writeListing(file, entries, 4 << 20)));
    expect(error.code).toBe("RESOURCE_EXHAUSTED");
    expect(error.message).toContain("layer-max-entries");
    expect(statSync(path).size).toBeLessThanOrEqual(4 << 20);
  } finally {
    file.close();
    rmSync(folder, { recursive: true });
  }
});
