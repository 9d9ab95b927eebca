// Tests the stop signal of the image and of the container's config.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

const { NamespaceMode, Signal } = runtime.v1;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ network: false });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const script = (number: number) =>
  `trap 'exit 5' ${number}; echo up; while true; do sleep 0.05; done`;

test.each([
  ["15", Signal.SIGNAL_RUNTIME_DEFAULT, 15, Signal.SIGNAL_SIGTERM],
  ["SIGRTMIN+3", Signal.SIGNAL_RUNTIME_DEFAULT, 37, Signal.SIGNAL_SIGRTMINPLUS3],
  ["SIGUSR1", Signal.SIGNAL_SIGRTMAXMINUS2, 62, Signal.SIGNAL_SIGRTMAXMINUS2],
  ["SIGUSR1", Signal.SIGNAL_SIGCLD, 17, Signal.SIGNAL_SIGCLD],
])(
  "image %s, config %d: %d is sent, and the status tells",
  async (StopSignal, stop_signal, number, told) => {
    const image = await daemon.loadImage(busyboxImage({ StopSignal }), "example.test/signal:1");
    const more = { image: { image }, stop_signal };
    const command = number === 17 ? "sleep 600" : script(number);
    const id = await daemon.run(podId, pod, command, more);
    expect((await daemon.status(id)).stop_signal).toBe(told);
    if (number !== 17) await daemon.logged(id, "up");
    const timeout = toLong(number === 17 ? 1 : 60);
    await daemon.client.StopContainer({ container_id: id, timeout });
    expect((await daemon.status(id)).exit_code).toBe(number === 17 ? 137 : 5);
    await daemon.client.RemoveContainer({ container_id: id });
  },
);

describe("just after the start, a container whose program has no handler ends by the stop signal", () => {
  const inNamespace = (pid: runtime.v1.NamespaceMode, target_id = "") => ({
    linux: {
      security_context: { namespace_options: { network: NamespaceMode.NODE, pid, target_id } },
    },
  });
  const sharing = { ...inNamespace(NamespaceMode.POD), metadata: { name: "sharing" } };
  let sharingPod: PodSandboxConfig;
  let sharingId: string;
  beforeAll(async () => {
    sharingPod = { ...daemon.hostPodConfig(sharing), linux: sharing.linux };
    sharingId = await daemon.runPod(sharingPod);
  });

  /** In these namespaces it is not the first process, for which the kernel would drop the signal. */
  test.each([
    ["POD", async () => ({ id: sharingId, pod: sharingPod, more: inNamespace(NamespaceMode.POD) })],
    ["NODE", async () => ({ id: podId, pod, more: inNamespace(NamespaceMode.NODE) })],
    [
      "TARGET",
      async () => {
        const target = await daemon.run(podId, pod, ["sleep", "600"]);
        return { id: podId, pod, more: inNamespace(NamespaceMode.TARGET, target) };
      },
    ],
  ])("in a pid namespace of mode %s", async (_, make) => {
    const { id, pod, more } = await make();
    const container_id = await daemon.run(id, pod, ["sleep", "600"], more);
    await daemon.client.StopContainer({ container_id, timeout: toLong(1) });
    expect((await daemon.status(container_id)).exit_code).toBe(143);
  });
});
