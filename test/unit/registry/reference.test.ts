// Tests the parsing of image references.
import { describe, expect, test } from "bun:test";
import { parseReference } from "../../../src/registry/reference.ts";

const digest = `sha256:${"a".repeat(64)}`;

describe("parseReference", () => {
  test.each([
    ["busybox", "docker.io/library/busybox:latest"],
    ["busybox:1.36", "docker.io/library/busybox:1.36"],
    ["team/app", "docker.io/team/app:latest"],
    ["docker.io/busybox", "docker.io/library/busybox:latest"],
    ["index.docker.io/busybox", "docker.io/library/busybox:latest"],
    ["localhost/app", "localhost/app:latest"],
    ["localhost:5000/app", "localhost:5000/app:latest"],
    ["registry.example/a/b/c:v1", "registry.example/a/b/c:v1"],
    ["registry.example:5000/a", "registry.example:5000/a:latest"],
    ["[::1]:5000/a", "[::1]:5000/a:latest"],
    ["Upper/app", "Upper/app:latest"],
    [`busybox@${digest}`, `docker.io/library/busybox@${digest}`],
    [`busybox:1@${digest}`, `docker.io/library/busybox@${digest}`],
    ["a--b/c__d.e:T_1.x-y", "docker.io/a--b/c__d.e:T_1.x-y"],
  ])("makes %s the full %s", (text, name) => {
    expect(parseReference(text).name).toBe(name);
    expect(parseReference(parseReference(text).name).name).toBe(name);
  });

  test("returns the parts", () => {
    expect(parseReference(`r.example:5/a/b:t@${digest}`)).toMatchObject({
      domain: "r.example:5",
      path: "a/b",
      tag: "t",
      digest,
    });
    expect(parseReference("a")).toMatchObject({ domain: "docker.io", tag: "latest" });
  });

  test.each([
    ["", "empty"],
    ["Busybox", "lower case"],
    ["a//b", "not a valid part"],
    ["a/../b", "not a valid part"],
    ["a:", "tag"],
    ["a:b c", "tag"],
    ["a@sha256:12", "digest"],
    ["a@", "digest"],
    ["-x.example/a", "host name"],
    ["r.example:70000/a", "host name"],
    ["0x7f.1/a", "host name"],
    ["2130706433:5000/a", "host name"],
    ["1.2.3.4.5/a", "host name"],
    ["[::1::]/a", "host name"],
    [`a/${"b".repeat(300)}`, "255"],
    ["f".repeat(64), "image id"],
    ["a\n", "not a valid part"],
    ["http://a.example/b", "not a"],
  ])("refuses %j: %s", (text, why) => {
    expect(() => parseReference(text)).toThrow(why);
    expect(() => parseReference(text)).toThrow(
      expect.objectContaining({ code: "INVALID_ARGUMENT" }),
    );
  });
});
