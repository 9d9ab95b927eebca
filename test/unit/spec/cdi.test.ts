// Tests the names of requested CDI devices, and the effects of their edits on a spec.
import { describe, expect, test } from "bun:test";
import type { ContainerConfig } from "../../../src/proto/types.ts";
import { applyCdi, cdiNames } from "../../../src/spec/cdi.ts";
import type { CdiEdits } from "../../../src/spec/spec_inputs.ts";
import { containerSpec } from "../../../src/spec/oci.ts";
import { codeAndMessage, specInput } from "../../spec/inputs.ts";

const none: CdiEdits = { env: [], devices: [], mounts: [], hooks: [], gids: [] };

describe("cdiNames()", () => {
  test("returns each device in CDI_devices or annotations once", () => {
    const config: ContainerConfig = {
      CDI_devices: [{ name: "v.com/c=0" }, { name: "v.com/c=1:2" }],
      annotations: { "cdi.k8s.io/plugin_1": "v.com/c=0,other.org/gpu=all", "cdi.k8s": "x" },
    };
    expect(cdiNames(config)).toEqual(["v.com/c=0", "v.com/c=1:2", "other.org/gpu=all"]);
  });

  test("rejects a malformed name with its field or annotation", () => {
    for (const name of ["", "x", "v/c", "v/c=", "=x", "v/c/d=x", "v/c=a=b", "1v/c=x", "v/c=-x"]) {
      const error = codeAndMessage(() => cdiNames({ CDI_devices: [{ name }] }));
      expect(error).toStartWith("INVALID_ARGUMENT: CDI_devices[0].name: ");
    }
    const annotations = { "cdi.k8s.io/a": "v/c=0,,v/c=1" };
    expect(codeAndMessage(() => cdiNames({ annotations }))).toContain("cdi.k8s.io/a");
  });
});

describe("applyCdi()", () => {
  const spec = containerSpec(specInput({}));
  const node = { path: "/dev/gpu", type: "c" as const, major: 195, minor: 3, fileMode: 0o660 };

  test("changes nothing without edits", () => {
    expect(applyCdi(spec, none)).toEqual(spec);
  });

  test("adds devices owned by the process's user, with their permissions", () => {
    const devices = [
      { node, hostPath: "/dev/gpu", access: "rw" },
      { node: { ...node, path: "/dev/seen" }, hostPath: "/dev/gpu", access: "", uid: 0, gid: 44 },
    ];
    const user = { ...spec.process.user, uid: 1000, gid: 1001 };
    const process = { ...spec.process, user };
    const { linux } = applyCdi({ ...spec, process }, { ...none, devices });
    expect(linux.devices.slice(-2)).toEqual([
      { ...node, uid: 1000, gid: 1001 },
      { ...node, path: "/dev/seen", uid: 0, gid: 44 },
    ]);
    const rule = { allow: true, type: "c", major: 195, minor: 3, access: "rw" };
    expect(linux.resources.devices).toEqual([...spec.linux.resources.devices, rule as never]);

    // In a user namespace, a device from another host path is bind-mounted.
    const ids = [{ containerID: 0, hostID: 100_000, size: 10 }];
    const mapped = applyCdi(spec, { ...none, devices }, { uidMappings: ids, gidMappings: ids });
    expect(mapped.linux.devices.map(({ path }) => path)).toContain("/dev/gpu");
    expect(mapped.linux.devices.map(({ path }) => path)).not.toContain("/dev/seen");
    expect(mapped.mounts.find(({ destination }) => destination === "/dev/seen")).toMatchObject({
      type: "bind",
      source: "/dev/gpu",
    });
  });

  test("replaces variables and mounts of the same name, and sorts parents first", () => {
    const mounts = [
      { destination: "/usr/lib/x/y", type: "bind", source: "/y", options: ["ro", "rbind"] },
      { destination: "/usr/lib", type: "bind", source: "/l", options: ["bind"] },
      { destination: "/etc/hosts", type: "tmpfs", source: "/h", options: [] },
    ];
    const env = ["FROM_IMAGE=2", "NEW=a=b"];
    const ids = [{ containerID: 0, hostID: 100_000, size: 10 }];
    const userns = { uidMappings: ids, gidMappings: ids };
    const edited = applyCdi(spec, { ...none, env, mounts }, userns);
    expect(edited.process.env).toEqual([
      ...spec.process.env.map((entry) => entry.replace("FROM_IMAGE=1", "FROM_IMAGE=2")),
      "NEW=a=b",
    ]);
    const at = edited.mounts.map(({ destination }) => destination);
    expect(new Set(at).size).toBe(at.length);
    expect(at.indexOf("/usr/lib")).toBeLessThan(at.indexOf("/usr/lib/x/y"));
    expect(at.indexOf("/dev")).toBeLessThan(at.indexOf("/dev/shm"));
    expect(edited.mounts.find((mount) => mount.source === "/y")).toEqual({
      ...mounts[0]!,
      ...userns,
    });
    expect(edited.mounts.find((mount) => mount.source === "/h")).toEqual(mounts[2]);
  });

  test("adds all groups except root's, and hooks in file order", () => {
    const hook = (path: string) => ({ path, args: [path, "x"] });
    const hooks = [
      { name: "createContainer" as const, hook: hook("/a") },
      { name: "createContainer" as const, hook: hook("/b") },
      { name: "poststop" as const, hook: hook("/c") },
    ];
    const edited = applyCdi(spec, { ...none, hooks, gids: [0, 44, 44] });
    expect(edited.process.user.additionalGids).toEqual([...spec.process.user.additionalGids!, 44]);
    expect(edited.hooks).toEqual({
      createContainer: [hook("/a"), hook("/b")],
      poststop: [hook("/c")],
    });
  });
});
