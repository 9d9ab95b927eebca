// Tests the limit that a container's volumes share with its writable layer.
import { expect, test } from "bun:test";
import type { ContainerQuota } from "../../../src/layer/container_quota.ts";
import { fillLimited } from "../../../src/layer/rootfs.ts";

test("what a container's volumes are filled with does not count towards its limit", async () => {
  const calls: string[] = [];
  const quota = {
    clearLimit: (folder: string) => calls.push(`clear ${folder}`),
    share: (folder: string, another: string) => calls.push(`share ${folder} with ${another}`),
    setLimit: (folder: string) => calls.push(`limit ${folder}`),
  } as unknown as ContainerQuota;
  const fill = async () => void calls.push("fill");
  await fillLimited("/c", "/c/volumes", { fill, quota });
  const order = ["clear /c/upper", "share /c/upper with /c/volumes", "fill", "limit /c/upper"];
  expect(calls).toEqual(order);
  calls.length = 0;
  await fillLimited("/c", "/c/volumes", { fill, quota: undefined });
  expect(calls).toEqual(["fill"]);
});
