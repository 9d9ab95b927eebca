// Tests what the specs of containers in a guest are made from: the namespaces that they name, and refusals.
import { describe, expect, test } from "bun:test";
import type { Context } from "../../../src/cri/context.ts";
import { requireOwnPids, sandboxInfo, targetPid } from "../../../src/cri/spec_inputs.ts";
import { runtime } from "../../../src/proto/messages.js";
import type { NamespaceOption } from "../../../src/proto/types.ts";
import type { RuntimeKind } from "../../../src/state/sandbox.ts";
import { codeAndMessage } from "../../spec/inputs.ts";
import { containerRecord, phases, recordStore, sandboxRecord } from "../fakes.ts";

const { NamespaceMode } = runtime.v1;
const other = containerRecord({ id: "c2", phase: phases.running });
const handler = (type: string) => ({ command: { shim: { type, configPath: "", options: {} } } });
const context = {
  config: { state: "/run/isulad" },
  handlers: new Map([
    ["", handler("io.containerd.kata.v2")],
    ["wasm", handler("io.containerd.wasmtime.v1")],
  ]),
  containers: recordStore([other]),
} as unknown as Context;
const asked = (namespace_options: NamespaceOption) => ({
  linux: { security_context: { namespace_options } },
});
const net = { path: "/var/run/netns/n1", inode: "1" };

function guestPod(
  namespace_options: NamespaceOption,
  pause: { pid: number } | undefined,
  runtimeHandler = "",
) {
  const config = asked(namespace_options);
  const namespaces = { net };
  const record = sandboxRecord({ config, pause, namespaces, runtimeKind: "guest", runtimeHandler });
  return sandboxInfo(context, record);
}

describe("a pod in a guest", () => {
  test("has the paths that containerd gives: its network's, and its sandbox container's", () => {
    const { namespaces } = guestPod({ pid: NamespaceMode.CONTAINER }, { pid: 9 });
    expect(namespaces).toEqual({
      net: net.path,
      ipc: "/proc/9/ns/ipc",
      uts: "/proc/9/ns/uts",
      pid: undefined,
    });
    expect(guestPod({ pid: NamespaceMode.POD }, { pid: 9 }).namespaces.pid).toBe("/proc/9/ns/pid");
  });

  test("joins no namespace of the node, if its shim gives a process of the node's as its first one", () => {
    const own = `/proc/${process.pid}/ns`;
    const pid = NamespaceMode.POD;
    const wasm = guestPod({ pid }, process, "wasm");
    expect(wasm.namespaces).toEqual({ net: net.path, ipc: "", uts: "", pid: "" });
    const message = codeAndMessage(() => requireOwnPids(wasm));
    expect(message).toMatch(/^FAILED_PRECONDITION: sandbox p1: .*in the node's pid namespace/);
    const alone = guestPod({ pid: NamespaceMode.CONTAINER }, process, "wasm");
    expect(() => requireOwnPids(alone)).not.toThrow();
    // Kata's is the virtual machine's monitor; its containers join namespaces of the guest.
    const kata = guestPod({ pid }, process);
    expect(kata.namespaces.pid).toBe(`${own}/pid`);
    expect(() => requireOwnPids(kata)).not.toThrow();
  });

  test("has only its network's before the sandbox container runs", () => {
    expect(guestPod({}, { pid: 0 }).namespaces).toEqual({ net: net.path });
    expect(guestPod({}, undefined).namespaces).toEqual({ net: net.path });
  });

  test("has a /dev/shm of its own, though no ipc namespace is pinned, unless it wants the node's", () => {
    expect(guestPod({}, undefined).files.shm).toBe("/run/isulad/sandboxes/p1/shm");
    expect(guestPod({ ipc: NamespaceMode.NODE }, undefined).files.shm).toBe("/dev/shm");
  });

  test("has no pid namespace that another container could target", () => {
    const config = asked({ pid: NamespaceMode.TARGET, target_id: "c2" });
    const target = (runtimeKind: RuntimeKind) =>
      targetPid(context, containerRecord({ config, runtimeKind }));
    expect(target("oci")).toBe(phases.running.pid);
    expect(target("shim")).toBe(phases.running.pid);
    const message = codeAndMessage(() => target("guest"));
    expect(message).toMatch(/^FAILED_PRECONDITION: pid mode TARGET: .*shareProcessNamespace/);
  });
});
