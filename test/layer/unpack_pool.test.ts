// Tests UnpackPool with a real helper process.
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { UnpackPool } from "../../src/layer/unpack_pool.ts";
import { within } from "../image/fixture.ts";

test("a helper is the OOM killer's first victim, and its log names isulad-ts", async () => {
  const children = () =>
    readFileSync("/proc/thread-self/children", "utf8").split(" ").filter(Boolean);
  const before = children();
  await using helpers = new UnpackPool("overlay");
  await helpers.run({ kind: "sync", folder: tmpdir() }, { signal: within() });
  const begun = children().filter((pid) => !before.includes(pid));
  expect(begun.length).toBe(1);
  expect(readFileSync(`/proc/${begun[0]}/oom_score_adj`, "utf8")).toBe("1000\n");
  expect(readFileSync(`/proc/${begun[0]}/comm`, "utf8")).toBe("isulad-ts\n");
  // It asks registries, and finds one that has moved within two seconds.
  const environment = readFileSync(`/proc/${begun[0]}/environ`, "utf8").split("\0");
  expect(environment).toContain("BUN_CONFIG_DNS_TIME_TO_LIVE_SECONDS=1");
});
