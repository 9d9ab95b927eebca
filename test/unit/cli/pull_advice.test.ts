// Tests what a failed pull advises.
import { expect, test } from "bun:test";
import { pullAdvice } from "../../../src/cli/pull_advice.ts";

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
