// Tests the lookup of devices by path, and the list of the node's devices.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { deviceNode, hostDevices, lookupDevice } from "../../../src/node/devices.ts";
import { failure } from "../../expect.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-devices-"));
afterAll(() => rmSync(folder, { recursive: true }));
symlinkSync("/dev/null", join(folder, "link"));

test("lookupDevice() follows links and uses the host's path as default", async () => {
  const [linked] = await lookupDevice({
    host_path: join(folder, "link"),
    container_path: "/dev/x",
  });
  expect(linked).toMatchObject({
    node: { path: "/dev/x", type: "c", major: 1, minor: 3 },
    hostPath: "/dev/null",
  });
  const [plain] = await lookupDevice({ host_path: "/dev/null" });
  expect(plain!.node.path).toBe("/dev/null");
});

test("lookupDevice() refuses paths without a device", async () => {
  const message = "neither a device nor a directory of devices";
  expect((await failure(lookupDevice({ host_path: folder }))).message).toContain(message);
  expect((await failure(lookupDevice({ host_path: "/proc/self/status" }))).message).toContain(
    message,
  );
  expect(await failure(lookupDevice({ host_path: "/none" }))).toMatchObject({
    code: "INVALID_ARGUMENT",
  });
  expect(await deviceNode("/proc/self/status", "/x")).toBeUndefined();
});

test("hostDevices() lists the node's devices without pseudo-terminals", async () => {
  const paths = (await hostDevices()).map(({ hostPath }) => hostPath);
  expect(paths).toContain("/dev/null");
  expect(paths.filter((path) => /^\/dev\/(pts\/|shm\/|console$)/.test(path))).toEqual([]);
});
