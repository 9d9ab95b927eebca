// Tests which shims' guests can use the node's network, and their SELinux labels.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { guestTraits } from "../../../src/shim/guests.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-guests-"));
afterAll(() => rmSync(folder, { recursive: true }));

function traits(type: string, config?: string) {
  const configPath = config === undefined ? "" : join(folder, "config.toml");
  if (config !== undefined) writeFileSync(configPath, config);
  return guestTraits({ type, configPath, options: {} });
}

test("gVisor has no labels, and the node's network only if its configuration says so", () => {
  const type = "io.containerd.runsc.v1";
  expect(traits(type, "[runsc_config]\n")).toEqual({
    hostNetwork: false,
    hasKernel: true,
    selinux: "none",
  });
  const host = '[runsc_config]\n  network = "host"\n';
  expect(traits(type, host).hostNetwork).toBe(true);
  expect(traits(type, '# network = "host"\n').hostNetwork).toBe(false);
});

test("virtual machines have labels of their own, and no node's network", () => {
  for (const type of ["io.containerd.kata.v2", "aws.firecracker"]) {
    expect(traits(type)).toEqual({ hostNetwork: false, hasKernel: true, selinux: "kvm" });
  }
});

test("of other shims nothing is refused", () => {
  expect(traits("io.containerd.wasmtime.v1")).toEqual({
    hostNetwork: true,
    hasKernel: false,
    selinux: "container",
  });
});
