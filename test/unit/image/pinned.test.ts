// Tests which images pinned-images matches.
import { expect, test } from "bun:test";
import { pinnedBy } from "../../../src/image/pinned.ts";
import type { ImageRecord } from "../../../src/image/store.ts";

const digest = `sha256:${"d".repeat(64)}`;
const image: ImageRecord = {
  id: `sha256:${"1".repeat(64)}`,
  repoTags: ["docker.io/library/busybox:1.37", "registry.example:5000/base/box:latest"],
  repoDigests: [`docker.io/library/busybox@${digest}`],
  sizeBytes: 1n,
  config: { architecture: "amd64", os: "linux" },
  layers: [],
  pulledAtNs: 1n,
};

test.each([
  "busybox:1.37",
  "library/busybox:1.37",
  "docker.io/busybox:1.37",
  "registry.example:5000/base/box",
  `busybox@${digest}`,
  `busybox:other@${digest}`,
  image.id,
  "*",
  "busybox:*",
  "busy*",
  "library/*",
  "docker.io/library/*",
  "registry.example:5000/*",
  "*/box:*",
  "*1.37",
  `${image.id.slice(0, 20)}*`,
  "busybox@sha256:ddd*",
])("%s matches", (pattern) => {
  expect(pinnedBy(["none", pattern])(image)).toBe(true);
});

test.each([
  "busybox",
  "busybox:1.3",
  "other/busybox:1.37",
  "registry.example/base/box",
  "BUSYBOX:1.37",
  "registry.example:5000/base",
  "box:*",
  "busybox:1.37?",
  "busybox.1.37*",
  "*:1.38",
  "1".repeat(12),
])("%s does not match", (pattern) => {
  expect(pinnedBy([pattern])(image)).toBe(false);
  expect(pinnedBy([])(image)).toBe(false);
});
