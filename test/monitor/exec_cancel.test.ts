// Tests that an exec whose client has gone is cancelled at any time, also before it has begun.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { createConnection } from "node:net";
import { join } from "node:path";
import { readFrames, writeFrame } from "../../src/monitor/protocol.ts";
import { execProcess, ociJson, parseOciSpec } from "../../src/spec/oci.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

let daemon: Daemon;
beforeAll(async () => (daemon = await startDaemon({ network: false })));
afterAll(() => daemon?.[Symbol.asyncDispose]());

test("cancelled in one breath with its beginning, it leaves no process", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const bundle = readFileSync(join(daemon.dir, "graph/containers", id, "config.json"), "utf8");
  const process = execProcess(parseOciSpec(bundle).process, ["sleep", "51519"], false);
  const answers = new Set<number>();
  const socket = createConnection(join(daemon.dir, "state/monitor/socket"));
  readFrames(socket, (header) => answers.add((header as { seq: number }).seq));
  const keys = [1, 3, 5, 7, 9];
  socket.cork();
  for (const seq of keys) {
    const key = `test-${seq}`;
    const exec = { id, key, process: ociJson(process), timeoutMs: 0, maxOutputBytes: 1000 };
    writeFrame(socket, { call: "exec", seq, params: exec });
    writeFrame(socket, { call: "cancelExec", seq: seq + 1, params: { key } });
  }
  socket.uncork();
  await until("all are answered", () => keys.every((seq) => answers.has(seq)));
  expect((await daemon.exec(id, "ps -o args")).stdout).not.toContain("51519");
  socket.destroy();
  await daemon.removePod(podId);
});
