// Tests what Status tells of each handler.
import { expect, test } from "bun:test";
import type { Context, Handler } from "../../../src/cri/context.ts";
import { handlersInfo } from "../../../src/cri/handler_info.ts";

const support = { recursiveReadOnlyMounts: true, idmapMounts: true };
const runc = { runtimeKind: "oci", command: { path: "/usr/bin/runc" }, support };
const gvisor = {
  runtimeKind: "guest",
  command: { path: "/usr/bin/shim", shim: { type: "io.containerd.runsc.v1", configPath: "" } },
  problem: "there is none",
  support: { recursiveReadOnlyMounts: false, idmapMounts: false },
};

test("handlersInfo() has each handler's kind, executable and what it lacks", () => {
  const handlers = { runc, gvisor, "": runc };
  const context = {
    host: { idmappedLayers: true },
    images: { storage: { driver: "overlay" } },
    handlers: new Map(Object.entries(handlers as unknown as Record<string, Handler>)),
    config: { defaultRuntime: "runc" },
  };
  expect(JSON.parse(handlersInfo(context as unknown as Context))).toEqual({
    runc: { kind: "oci", path: "/usr/bin/runc", sandboxed: false, default: true, lacks: [] },
    gvisor: {
      kind: "shim",
      type: "io.containerd.runsc.v1",
      path: "/usr/bin/shim",
      sandboxed: true,
      default: false,
      problem: "there is none",
      lacks: [
        "the node's network (hostNetwork: true)",
        "user namespaces (hostUsers: false)",
        "recursive read-only mounts",
        "bidirectional mount propagation",
        "another container's pid namespace as target",
        "checkpoints",
      ],
    },
  });
});
