// Tests the parser of the registry mirror's requests.
import { describe, expect, test } from "bun:test";
import { parseMirrorRequest, parseRange } from "../../../src/image/mirror_request.ts";

describe("a request of the mirror", () => {
  test.each([
    ["POST /v2/team/app/blobs/uploads/ HTTP/1.1", "405 Method Not Allowed"],
    ["GET /v2/_catalog HTTP/1.1", "404 Not Found"],
    ["GET /v2/team/app/tags/list HTTP/1.1", "404 Not Found"],
    ["GET /v2/Team/manifests/1 HTTP/1.1", "400 Bad Request"],
    ["GET /v2/a/../b/manifests/1 HTTP/1.1", "400 Bad Request"],
    ["GET /v2/a@b/manifests/1 HTTP/1.1", "400 Bad Request"],
    ["GET /v2/a/manifests/1?ns=nodot HTTP/1.1", "400 Bad Request"],
    ["GET /v2/a/manifests/1?ns=a.test/b HTTP/1.1", "400 Bad Request"],
    [`GET /v2/${"a".repeat(2000)}/manifests/1 HTTP/1.1`, "400 Bad Request"],
    ["GET /v2/ HTTP/2", "400 Bad Request"],
    ["nonsense", "400 Bad Request"],
  ])("%j is refused with %s", (line, status) => {
    expect(() => parseMirrorRequest({ line })).toThrow(expect.objectContaining({ status }));
  });

  test.each([
    ["team/app/manifests/1", "docker.io/team/app"],
    ["library/app/manifests/1?ns=docker.io", "docker.io/library/app"],
    ["app/manifests/1?ns=host:5000", "host:5000/app"],
    ["a/manifests/b/blobs/1?ns=x.test", "x.test/a/manifests/b"],
  ])("%s is for %s", (path, expected) => {
    const { repository: found, name } = parseMirrorRequest({ line: `GET /v2/${path} HTTP/1.1` });
    expect([found, name]).toEqual([expected, "1"]);
  });

  test.each([
    [undefined, undefined],
    ["bytes=0-", { from: 0, to: 100 }],
    ["bytes=5-9", { from: 5, to: 10 }],
    ["bytes=5-500", { from: 5, to: 100 }],
    ["bytes=-10", { from: 90, to: 100 }],
    ["bytes=-500", { from: 0, to: 100 }],
    ["bytes=0-1,5-6", undefined],
    ["bytes=-", undefined],
    ["lines=1-2", undefined],
  ])("range %j of 100 bytes is %j", (header, range) => {
    expect(parseRange(header, 100)).toEqual(range);
  });

  test.each(["bytes=100-", "bytes=9-5", "bytes=-0"])("range %s is not satisfiable", (header) => {
    expect(() => parseRange(header, 100)).toThrow("it has 100 bytes");
  });
});
