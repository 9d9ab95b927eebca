// Tests the resolution of users and groups in an image's files.
import { describe, expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import { runtime } from "../../../src/proto/messages.js";
import type { LinuxContainerSecurityContext } from "../../../src/proto/types.ts";
import { imageUserOf, resolveUser } from "../../../src/spec/users.ts";
import { codeAndMessage, nothingResolved } from "../../spec/inputs.ts";

const { Strict } = runtime.v1.SupplementalGroupsPolicy;

function resolve(security: LinuxContainerSecurityContext, imageUser = "", files = {}) {
  const { passwd, group } = { ...nothingResolved, ...files };
  return resolveUser({ security, imageUser, passwd, group });
}

const value = (id: number) => ({ value: toLong(id) });

describe("resolveUser()", () => {
  test("reads every form of the image's USER", () => {
    const ids = (user: string) => {
      const { uid, gid } = resolve({}, user);
      return [uid, gid];
    };
    expect(ids("")).toEqual([0, 0]);
    expect(ids("web")).toEqual([101, 102]);
    expect(ids("101")).toEqual([101, 102]);
    expect(ids("7777")).toEqual([7777, 0]);
    expect(ids("web:logs")).toEqual([101, 50_000]);
    expect(ids("5:6")).toEqual([5, 6]);
  });

  test("prefers CRI's user over the image's", () => {
    expect(resolve({ run_as_user: value(7) }, "web:logs")).toEqual({
      uid: 7,
      gid: 0,
      additionalGids: [0],
    });
    expect(resolve({ run_as_username: "web" }, "root").uid).toBe(101);
    expect(resolve({ run_as_user: value(7), run_as_group: value(8) }).gid).toBe(8);
  });

  test("merges the image's groups unless the policy is Strict", () => {
    const group = "logs:x:50000:app\n";
    const passwd = "app:x:1000:1000::/:\n";
    const security = { run_as_user: value(1000), supplemental_groups: [toLong(1234)] };
    const files = { passwd, group };
    expect(resolve(security, "", files).additionalGids).toEqual([1000, 50_000, 1234]);
    const strict = { ...security, supplemental_groups_policy: Strict };
    expect(resolve(strict, "", files).additionalGids).toEqual([1000, 1234]);
  });

  test("rejects unknown users and groups and invalid ids", () => {
    expect(codeAndMessage(() => resolve({ run_as_group: value(1) }))).toContain("run_as_group");
    expect(codeAndMessage(() => resolve({ run_as_username: "nobody" }))).toContain('"nobody"');
    expect(codeAndMessage(() => resolve({}, "web:nogroup"))).toContain('"nogroup"');
    expect(codeAndMessage(() => resolve({ run_as_user: value(-1) }))).toContain("-1");
    expect(codeAndMessage(() => resolve({}, "4294967295"))).toStartWith("INVALID_ARGUMENT");
    // The decoder passes enum values that it does not know.
    const policy = JSON.parse('{"supplemental_groups_policy":9}') as LinuxContainerSecurityContext;
    expect(codeAndMessage(() => resolve(policy))).toContain("supplemental_groups_policy");
  });

  test("takes digits for an id, never for a name that the image gives to root (CVE-2026-46680)", () => {
    const long = "18446744073709551616";
    const named = { security: {}, passwd: `${long}:x:0:0\n1000:x:0:0\n`, group: `${long}:x:0:\n` };
    for (const imageUser of [long, `1000:${long}`]) {
      const error = codeAndMessage(() => resolveUser({ ...named, imageUser }));
      expect(error).toStartWith("INVALID_ARGUMENT");
    }
    expect(resolveUser({ ...named, imageUser: "1000" }).uid).toBe(1000);
  });

  test("tolerates malformed passwd and group files", () => {
    const passwd = "::::\n# web:x:1:1\nweb\nweb:x:99999999999:1\nweb:x:12:x\n\0\nweb:x:5:6\n";
    expect(resolve({}, "web", { passwd, group: "a:b\n:::\nweb:x:-1:web\n" })).toEqual({
      uid: 5,
      gid: 6,
      additionalGids: [6],
    });
  });

  test("limits groups and lines", () => {
    const lines = (from: number, count: number) =>
      Array.from({ length: count }, (_, index) => `g${index}:x:${from + index}:web`).join("\n");
    const flood = { group: lines(1000, 70_000) };
    expect(codeAndMessage(() => resolve({}, "web", flood))).toContain("supplemental groups");
    const late = { passwd: `${"#\n".repeat(100_001)}late:x:5:5::/:\n` };
    expect(codeAndMessage(() => resolve({}, "late", late))).toContain("/etc/passwd");
  });
});

test("imageUserOf() distinguishes numbers from names", () => {
  expect(imageUserOf("")).toEqual({});
  expect(imageUserOf("1000:5")).toEqual({ uid: 1000n });
  expect(imageUserOf("9".repeat(30))).toEqual({ username: "9".repeat(30) });
  expect(imageUserOf("web:web")).toEqual({ username: "web" });
});
