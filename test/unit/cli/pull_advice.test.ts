// Tests what a failed pull advises.
import { expect, test } from "bun:test";
import { isOfRegistry, pullAdvice } from "../../../src/cli/pull_advice.ts";

const present = [
  "registry.example:5000/shop/app:1",
  "registry.example:5000/shop/app:2",
  "docker.io/library/busybox:1.37",
];
const registry = (image: string) =>
  `isulad-ts registry check ${image} finds out why, isulad-ts load FILE works without a registry`;

test.each([
  [
    "registry.example:5000/shop/app",
    "this node has registry.example:5000/shop/app:1, registry.example:5000/shop/app:2",
  ],
  ["busybox", "this node has docker.io/library/busybox:1.37"],
  ["busybox@sha256:1234", "this node has docker.io/library/busybox:1.37"],
  ["docker.io/library/busybox:1.36", "this node has docker.io/library/busybox:1.37"],
  // Present under this very name: the registry is asked for a newer one.
  ["busybox:1.37", registry("busybox:1.37")],
  ["box", registry("box")],
  ["registry.example:5000/shop/other:1", registry("registry.example:5000/shop/other:1")],
])("a failed pull of %s advises: %s", (image, advice) => {
  expect(pullAdvice(image, present)).toBe(advice);
});

test.each([
  ["cannot get r.example/a:1: r.example answered 404: manifest unknown", true],
  ["layer sha256:1: cannot get blob r.example/a@sha256:1: connection refused", true],
  ["no space left on the disk of graph: the image's missing layers take at least 81.8MB", false],
  ['layer sha256:1: entry "a": it is a hard link to the root', false],
  ["it has no image for linux/arm64; it has linux/amd64", false],
  ["SignatureValidationFailed: cosign refuses it", false],
  ["Cannot reach the daemon", false],
])("the failure %j is one of the registry: %p", (message, isOne) => {
  expect(isOfRegistry(message)).toBe(isOne);
});
