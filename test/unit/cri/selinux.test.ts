// Tests SELinux labels of pods and containers as far as that needs no kernel with SELinux: each pod has a
// level of its own, and the right files get the labels.
import { expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Context } from "../../../src/cri/context.ts";
import { makePauseRoot } from "../../../src/cri/pause.ts";
import {
  handlerLabels,
  holdLevel,
  labelFiles,
  newContainerLabels,
  newPodLabels,
} from "../../../src/cri/selinux.ts";
import type { HostInfo } from "../../../src/spec/spec_inputs.ts";
import { levelOf } from "../../../src/spec/selinux.ts";
import type { Container } from "../../../src/state/container.ts";
import type { Sandbox } from "../../../src/state/sandbox.ts";
import { lgetxattr } from "../../../src/sys/path.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const policy = { process: "u:r:t:s0", file: "u:object_r:f:s0" };
const call = { signal: AbortSignal.timeout(60_000) };

type Records = { sandboxes?: Partial<Sandbox>[]; state?: string };

function contextWith(selinux: HostInfo["selinux"], { sandboxes = [], state }: Records = {}) {
  const listed = { list: () => sandboxes, get: () => sandboxes[0] };
  const none = { list: () => [] };
  const parts = { host: { selinux }, sandboxes: listed, containers: none };
  const config = { state, selinuxCategoryRange: 1_022 };
  return { ...parts, config, levels: new Set() } as unknown as Context;
}

test("a pod's level is nobody else's, of those that are made and of those that are being made", () => {
  const sandboxes: Partial<Sandbox>[] = [];
  const context = contextWith({ policy }, { sandboxes });
  const seen = new Set<string>();
  for (let i = 0; i < 200; i++) {
    const selinux = newPodLabels(context, {})!;
    if (i % 2 === 0) sandboxes.push({ selinux });
    else holdLevel(context, { selinux } as Sandbox);
    seen.add(levelOf(selinux.mount));
  }
  expect(seen.size).toBe(200);
  {
    using _ = holdLevel(context, { selinux: { process: "u:r:t:s0:c1", mount: "" } } as Sandbox);
    expect(context.levels.has("s0:c1")).toBe(true);
  }
  expect(context.levels.has("s0:c1")).toBe(false);
});

test("a pod's level has categories of selinux-category-range", () => {
  const context = contextWith({ policy });
  expect(newPodLabels(Object.assign(context, { config: { selinuxCategoryRange: 2 } }), {})).toEqual(
    {
      process: "u:r:t:s0:c0,c1",
      mount: "u:object_r:f:s0:c0,c1",
    },
  );
});

test("a container has its pod's labels; nothing has any where labels are off", () => {
  const selinux = { process: "u:r:t:s0:c5,c6", mount: "u:object_r:f:s0:c5,c6" };
  const labels = (host: HostInfo["selinux"], linux = {}) =>
    newContainerLabels(contextWith(host), { selinux, config: {} } as Sandbox, { linux });
  expect(labels({ policy })).toEqual(selinux);
  const asked = { security_context: { selinux_options: { type: "spc_t" } } };
  expect(labels(undefined)).toBeUndefined();
  expect(labels(undefined, asked)).toBeUndefined();
  expect(labels({})).toBeUndefined();
  expect(codeAndMessage(() => labels({}, asked))).toStartWith(
    "FAILED_PRECONDITION: selinux_options -:-:spc_t:-: labels are off on this node",
  );
});

test("a guest's labels: gVisor's has none, a virtual machine's monitor the type for those", () => {
  const selinux = { process: "u:r:container_t:s0:c5,c6", mount: "u:object_r:f:s0:c5,c6" };
  const handlerOf = (type: string) => {
    const command = { shim: { type, configPath: "", options: {} } };
    return { runtimeKind: "guest", command };
  };
  const context = {
    handlers: new Map<string, object>([
      ["runc", { runtimeKind: "oci", command: {} }],
      ["gvisor", handlerOf("io.containerd.runsc.v1")],
      ["kata", handlerOf("io.containerd.kata.v2")],
    ]),
  } as unknown as Context;
  const processLabel = (runtimeHandler: string, subject: "guest" | "container") =>
    handlerLabels(context, { runtimeHandler, selinux } as Container, subject)?.process;
  const own = selinux.process;
  for (const subject of ["guest", "container"] as const) {
    expect(processLabel("runc", subject)).toBe(own);
    expect(processLabel("gvisor", subject)).toBe("");
  }
  expect(processLabel("kata", "guest")).toBe("u:r:container_kvm_t:s0:c5,c6");
  expect(processLabel("kata", "container")).toBe(own);
});

test("the pod's files, the image's volumes and the mounts that want it get the label", async () => {
  const state = mkdtempSync(join(tmpdir(), "isulad-selinux-"));
  try {
    const folder = join(state, "sandboxes/pod1");
    const files = ["hosts", "hostname", "resolv.conf", "shm/x"].map((name) => join(folder, name));
    const others = ["volume/v", "wanted/w", "unwanted/u"].map((name) => join(state, name));
    for (const file of [...files, ...others]) {
      mkdirSync(join(file, ".."), { recursive: true });
      writeFileSync(file, "");
    }
    const selinux = { process: "u:r:t:s0:c5,c6", mount: "u:object_r:f:s0:c5,c6" };
    const config = { mounts: [{}, { selinux_relabel: true }] };
    const container = { sandboxId: "pod1", config, selinux } as Container;
    const context = contextWith({ policy }, { sandboxes: [{ id: "pod1", config: {} }], state });
    const [volume, wanted, unwanted] = ["volume", "wanted", "unwanted"].map((name) =>
      join(state, name),
    ) as [string, string, string];
    await labelFiles(context, container, {
      mounts: [unwanted, wanted].map((source) => ({ source, propagation: "private" })),
      volumes: [{ path: "/v", source: volume }],
      call,
    });
    const unlabelled = [...files, ...others].filter(
      (file) => String(lgetxattr(file, "security.selinux")) !== String(bytes(selinux.mount)),
    );
    expect(unlabelled).toEqual([join(unwanted, "u")]);
  } finally {
    rmSync(state, { recursive: true, force: true });
  }
});

test("the built-in pause program has its pod's label: not each policy runs what all containers may read", async () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-selinux-"));
  try {
    const selinux = { process: "u:r:t:s0:c5,c6", mount: "u:object_r:f:s0:c5,c6" };
    const context = contextWith({ policy });
    Object.assign(context.config, { podSandboxImage: "" });
    Object.assign(context.sandboxes, { folderOf: () => folder });
    const labelled = async (sandbox: Partial<Sandbox>) => {
      const made = makePauseRoot(context, { config: {}, ...sandbox } as Sandbox, call.signal);
      return String(lgetxattr(join((await made).rootfsPath, "pause"), "security.selinux"));
    };
    expect(await labelled({})).toBe("undefined");
    expect(await labelled({ selinux })).toBe(String(bytes(selinux.mount)));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

function bytes(label: string): Uint8Array {
  return new TextEncoder().encode(`${label}\0`);
}
