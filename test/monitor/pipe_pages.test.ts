// Tests that containers and execs have FIFOs of the usual size: root's containers share a budget of pipe pages with us.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { constants, readdirSync } from "node:fs";
import { join } from "node:path";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { Descriptor, pipeSize } from "../../src/sys/descriptor.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { type Asked, converse } from "../stream_client.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon({ network: false });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const usual = 64 << 10;
const asked: Asked = { stdin: true, stdout: true, stderr: true };

/** Capacities of the pipes and FIFOs that a process has open, by descriptor. */
function pipesOf(pid: number): Map<number, number> {
  const sizes = new Map<number, number>();
  for (const name of readdirSync(`/proc/${pid}/fd`)) {
    try {
      const { O_RDWR, O_NONBLOCK } = constants;
      using opened = Descriptor.open(join(`/proc/${pid}/fd`, name), O_RDWR | O_NONBLOCK);
      sizes.set(Number(name), pipeSize(opened));
    } catch {
      // No pipe, or closed meanwhile.
    }
  }
  return sizes;
}

test("a container, an attach and an exec have pipes of 64 KiB", async () => {
  const id = await daemon.run(podId, pod, ["cat"], { stdin: true });
  const container = pipesOf(await daemon.pidOf(id));
  expect([0, 1, 2].map((fd) => container.get(fd))).toEqual([usual, usual, usual]);
  const { url } = await daemon.client.Exec({
    container_id: id,
    cmd: ["sh", "-c", "echo $$; cat"],
    ...asked,
  });
  const talk = await converse(url, asked, "WebSocket");
  await talk.hears("\n");
  const attached = await daemon.client.Attach({ container_id: id, ...asked });
  const other = await converse(attached.url, asked, "WebSocket");
  await other.type("hello\n");
  await other.hears("hello");
  const [monitor] = daemon.monitors();
  const sizes = [...pipesOf(monitor!).values(), ...pipesOf(daemon.pid).values()];
  expect(sizes.length).toBeGreaterThan(8);
  // The log thread's own pipe, one for each file system with logs, has what the largest FIFO has.
  expect(sizes.filter((size) => size > usual).length).toBeLessThanOrEqual(2);
  await talk.endInput();
  await talk.end;
  await daemon.client.StopContainer({ container_id: id });
});

test("a container that fills its pipe gets a larger one, until it is quiet", async () => {
  const command =
    "while [ ! -e /quiet ]; do head -c 100000 /dev/zero | tr '\\0' '\\n'; done; sleep 600";
  const id = await daemon.run(podId, pod, command);
  const pid = await daemon.pidOf(id);
  const stdout = () => pipesOf(pid).get(1);
  await until("its pipe is larger", () => stdout() === 1 << 20);
  await daemon.exec(id, "touch /quiet");
  await until("its pipe is small again", () => stdout() === usual);
  await daemon.client.StopContainer({ container_id: id });
});
