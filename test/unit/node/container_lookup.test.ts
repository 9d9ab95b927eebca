// Tests the lookup of the accounts, mount sources and profiles of a container.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { lookupContainer } from "../../../src/node/container_lookup.ts";
import { failure } from "../../expect.ts";

const scratch = realpathSync(mkdtempSync(join(tmpdir(), "isulad-lookup-")));
afterAll(() => rmSync(scratch, { recursive: true }));
mkdirSync(join(scratch, "etc"));
writeFileSync(join(scratch, "etc/passwd"), "root:x:0:0\n");
const options = { rootfsPath: scratch, signal: AbortSignal.timeout(10_000) };

test("lookupContainer() reads accounts and mount sources, an image's mount from its mount point", async () => {
  const mounts = [
    { host_path: join(scratch, "new"), container_path: "/a", propagation: 1 },
    { container_path: "/b" },
  ];
  const imageMounts = new Map([[1, "/image"]]);
  const facts = await lookupContainer({ mounts }, { ...options, imageMounts });
  expect(facts).toMatchObject({ passwd: "root:x:0:0\n", group: "", devices: [], hostDevices: [] });
  expect(facts.mounts.map(({ source }) => source)).toEqual([join(scratch, "new"), "/image"]);
  expect(await lookupContainer({}, options)).toMatchObject({ mounts: [] });
});

test("lookupContainer() refuses a missing seccomp profile and a missing source", async () => {
  const linux = { security_context: { seccomp: { profile_type: 2, localhost_ref: "/none.json" } } };
  expect(await failure(lookupContainer({ linux }, options))).toMatchObject({
    code: "INVALID_ARGUMENT",
    message: expect.stringContaining("/none.json"),
  });
  const mounts = [{ host_path: join(scratch, "none"), container_path: "/a" }];
  const rejecting = lookupContainer({ mounts }, { ...options, rejectMissing: true });
  expect((await failure(rejecting)).message).toContain("reject-missing-mount-sources");
});
