// Tests the probe of the features of OCI runtimes: when it runs, and what it supports.
import { afterAll, beforeEach, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  type Features,
  noSupport,
  ociProbe,
  RuntimeFeatures,
  supported,
} from "../../../src/node/runtime_features.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-features-"));
const program = join(folder, "runtime");
const calls = join(folder, "calls");
afterAll(() => rmSync(folder, { recursive: true }));
beforeEach(() => writeFileSync(calls, ""));

/** Installs a shell script as OCI runtime, as a new file. */
function install(script: string): void {
  rmSync(program, { force: true });
  writeFileSync(program, `#!/bin/sh\necho "$@" >> ${calls}\n${script}\n`);
  chmodSync(program, 0o755);
}

const printing = (json: object) => `echo '${JSON.stringify(json)}'`;
const invocations = () => readFileSync(calls, "utf8").split("\n").filter(Boolean);

function open() {
  const problems: string[] = [];
  const probe = ociProbe([program, "--own"]);
  return { features: new RuntimeFeatures(probe, (p) => problems.push(p)), problems };
}

test("concurrent refreshes run the runtime once, with its configured arguments", async () => {
  install(printing({ mountOptions: ["ro", "rro"], linux: { mountExtensions: {} } }));
  const { features, problems } = open();
  expect(features.support).toEqual({ recursiveReadOnlyMounts: false, idmapMounts: false });
  const seen = await Promise.all(
    [1, 2, 3].map(async () => {
      await features.refresh();
      return features.support.recursiveReadOnlyMounts;
    }),
  );
  expect(seen).toEqual([true, true, true]);
  await features.refresh();
  expect({ invocations: invocations(), problems }).toEqual({
    invocations: ["--own features"],
    problems: [],
  });
});

test("a replaced executable is probed again, and a removed one has no features", async () => {
  install(printing({ mountOptions: ["rro"] }));
  const { features, problems } = open();
  await features.refresh();
  install(printing({ linux: { mountExtensions: { idmap: { enabled: true } } } }));
  await features.refresh();
  expect(features.support).toEqual({ recursiveReadOnlyMounts: false, idmapMounts: true });
  rmSync(program);
  await features.refresh();
  const unknown = problems[0]!;
  expect(unknown).toContain(program);
  expect(features.support).toEqual({ ...noSupport, unknown });
  install(printing({ mountOptions: ["rro"] }));
  await features.refresh();
  expect(features.support.recursiveReadOnlyMounts).toBe(true);
});

test("a runtime without the verb has no features, and that is not a problem", async () => {
  install("echo 'No help topic for features' >&2; exit 3");
  const { features, problems } = open();
  await features.refresh();
  expect(features.support).toEqual({ recursiveReadOnlyMounts: false, idmapMounts: false });
  expect(problems).toEqual([]);
});

test("a failed probe is reported and not repeated at each call", async () => {
  install("echo nonsense");
  const { features, problems } = open();
  await Promise.all([features.refresh(), features.refresh()]);
  await features.refresh();
  expect(invocations()).toHaveLength(1);
  expect(problems).toEqual([expect.stringContaining("features failed, retrying in 5 s")]);
  expect(features.support.unknown).toBe(problems[0]);
});

const idmap = { linux: { mountExtensions: { idmap: { enabled: true } } } };

test.each<[string, Features, boolean, boolean, boolean]>([
  ["rro and idmap", { mountOptions: ["ro", "rro"], ...idmap }, true, true, true],
  ["both on an old kernel", { mountOptions: ["rro"], ...idmap }, false, false, false],
  ["rro only", { mountOptions: ["rro"] }, true, true, false],
  ["idmap only", { mountOptions: ["ro"], ...idmap }, true, false, true],
  ["nothing", {}, true, false, false],
])("supported() of a runtime with %s", (_, features, kernel, rro, idmapMounts) => {
  const expected = { recursiveReadOnlyMounts: rro, idmapMounts };
  expect(supported({ ...features, ociVersionMax: "1.2" }, kernel)).toEqual({
    ociVersion: "1.2",
    ...expected,
  });
});
