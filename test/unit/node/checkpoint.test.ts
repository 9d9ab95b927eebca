// Tests where checkpoints are written, with a criu that only says that it works.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { writeCheckpoint } from "../../../src/node/checkpoint.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-checkpoint-"));
const path = process.env["PATH"];

beforeAll(() => {
  mkdirSync(join(dir, "bin"));
  writeFileSync(join(dir, "bin/criu"), "#!/bin/sh\n", { mode: 0o755 });
  writeFileSync(join(dir, "config.json"), "{}");
  process.env["PATH"] = `${dir}/bin:${path}`;
});
afterAll(() => {
  process.env["PATH"] = path;
  rmSync(dir, { recursive: true });
});

test.each([
  ["removed with the images", undefined],
  ["kept in a folder of their own", join(dir, "work/c1")],
])("criu's work files are %s", async (_, work) => {
  const scratch = join(dir, "images/checkpoint-c1");
  const location = join(dir, `${work === undefined}.tar`);
  const seen: string[] = [];
  await writeCheckpoint({
    dump: async (folders) => {
      seen.push(folders.images, folders.work);
      writeFileSync(join(folders.work, "dump.log"), "log");
    },
    specFile: join(dir, "config.json"),
    scratch,
    work,
    location,
    signal: AbortSignal.timeout(10_000),
  });
  expect(seen).toEqual([join(scratch, "checkpoint"), work ?? join(scratch, "work")]);
  expect(existsSync(location)).toBe(true);
  expect(existsSync(scratch)).toBe(false);
  expect(work === undefined ? [] : readdirSync(work)).toEqual(
    work === undefined ? [] : ["dump.log"],
  );
});
