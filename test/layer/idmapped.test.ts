// Tests layers of a file system that has no id-mapped mounts. Needs root.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mountOverlay } from "../../src/layer/overlay.ts";
import { failure } from "../expect.ts";

let dir = "";
let other: ChildProcess;
beforeAll(async () => {
  dir = mkdtempSync(join(tmpdir(), "idmapped-"));
  const script = "echo mapped; exec sleep 600";
  other = spawn("unshare", ["--user", "--map-root-user", "sh", "-c", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await once(other.stdout!, "data");
});
afterAll(() => {
  other.kill("SIGKILL");
  rmSync(dir, { recursive: true });
});

test("the error names the folder, the cause and what to do, and nothing stays mounted", async () => {
  const userns = `/proc/${other.pid}/ns/user`;
  const parts = { trees: "/proc/sys", names: ["kernel"], dir, readonly: true, userns };
  const { code, message } = await failure(mountOverlay(parts));
  expect(code).toBe("FAILED_PRECONDITION");
  expect(message).toContain("EINVAL: mount_setattr /proc/sys: its file system may lack");
  expect(message).toContain("move graph to ext4, xfs or btrfs");
  expect(readdirSync(dir)).toEqual([]);
});
