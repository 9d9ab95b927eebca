// Tests that mountSource() gives the same results on remote file systems (in a child) as on local ones.
import { afterAll, describe, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mountSource } from "../../../src/node/mount_source.ts";
import { failure } from "../../expect.ts";

const dir = realpathSync(mkdtempSync(join(tmpdir(), "isulad-source-")));
afterAll(() => rmSync(dir, { recursive: true }));
const entry = { device: "0:99", point: dir, tags: [], source: "server:/export", options: "" };

describe.each(["ext4", "nfs4"])("on a file system of type %s", (type) => {
  const top = join(dir, type);
  mkdirSync(join(top, "a folder\n"), { recursive: true });
  writeFileSync(join(top, "file"), "");
  symlinkSync("a folder\n", join(top, "link"));
  const sourceOf = (name: string, rejectMissing = false) => {
    const signal = AbortSignal.timeout(10_000);
    const mount = { host_path: join(top, name), container_path: "/data" };
    return mountSource(mount, { table: [{ ...entry, type }], rejectMissing, signal });
  };

  test.each([
    ["a folder\n", "a folder\n"],
    ["link", "a folder\n"],
    ["file", "file"],
  ])("%j is %j", async (name, real) => {
    expect(await sourceOf(name, true)).toBe(join(top, real));
    expect(await sourceOf(name)).toBe(join(top, real));
  });

  test("a missing source becomes a directory that all may read", async () => {
    expect(await sourceOf("new/one")).toBe(join(top, "new/one"));
    expect(statSync(join(top, "new")).mode & 0o777).toBe(0o755);
  });

  test("a missing source is refused with the key that forbids it", async () => {
    const { code, message } = await failure(sourceOf("none", true));
    expect(code).toBe("FAILED_PRECONDITION");
    expect(message).toContain(join(top, "none"));
    expect(message).toContain("reject-missing-mount-sources");
    expect(existsSync(join(top, "none"))).toBe(false);
  });

  test("a path below a file is FAILED_PRECONDITION with the path", async () => {
    const { code, message } = await failure(sourceOf("file/x"));
    expect(code).toBe("FAILED_PRECONDITION");
    expect(message).toContain('"/data"');
    expect(message).toContain(join(top, "file"));
  });
});
