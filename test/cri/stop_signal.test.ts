// Tests the stop signal of the image and of the container's config.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

const { Signal } = runtime.v1;

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
