// Tests the codes of errors: a node without descriptors or memory is told as that, whatever was tried.
import { expect, test } from "bun:test";
import { codeOf, CriError } from "../../../src/base/errors.ts";

const failed = (errno: string) => Object.assign(new Error(`${errno}: open '/a'`), { code: errno });

test.each([
  ["EMFILE", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"],
  ["ENFILE", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"],
  ["ENOMEM", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"],
  ["ENOSPC", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"], // of a cgroup it is no full disk
  ["ENOENT", "INTERNAL", "FAILED_PRECONDITION"],
])("%s is %s, and as the cause of FAILED_PRECONDITION %s", (errno, own, wrapped) => {
  const cause = failed(errno);
  const code = codeOf(new CriError("FAILED_PRECONDITION", "cannot open it", { cause }));
  expect([codeOf(cause), code]).toEqual([own, wrapped] as (typeof code)[]);
});
