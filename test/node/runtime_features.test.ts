// Tests that the probe of a runtime that hangs is killed and not repeated at each call.
import { afterAll, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ociProbe, RuntimeFeatures } from "../../src/node/runtime_features.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-features-"));
afterAll(() => rmSync(folder, { recursive: true }));

test("a runtime that hangs is killed after 5 s and not probed again at each call", async () => {
  const program = join(folder, "runtime");
  writeFileSync(program, `#!/bin/sh\necho >> ${folder}/calls\nexec sleep 600\n`);
  chmodSync(program, 0o755);
  const problems: string[] = [];
  const features = new RuntimeFeatures(ociProbe([program]), (p) => problems.push(p));
  await Promise.all([features.refresh(), features.refresh()]);
  await features.refresh();
  expect(readFileSync(join(folder, "calls"), "utf8")).toBe("\n");
  expect(problems).toEqual([expect.stringContaining("features failed, retrying in 5 s")]);
  expect(features.support.unknown).toBe(problems[0]);
}, 120_000);
