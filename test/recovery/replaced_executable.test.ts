// Tests a daemon whose executable's file was replaced: until its restart it starts helpers of its own build.
import { afterAll, beforeAll, expect, test } from "bun:test";
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openSpdy } from "../../src/cli/stream_client.ts";
import { busybox, type Daemon, executable, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";
import { collected } from "../stream/wires.ts";

let folder: string;
let program: string;
let daemon: Daemon;
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "isulad-replaced-"));
  mkdirSync(join(folder, "bin"));
  program = join(folder, "bin/isulad-ts");
  copyFileSync(executable, program);
  daemon = await startDaemon({ executable: program, image: false });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

/** Replaces the executable like a package manager: running processes keep the old file. */
function replaceByFailingProgram(): void {
  writeFileSync(`${program}.new`, "#!/bin/sh\necho another build >&2\nexit 3\n");
  chmodSync(`${program}.new`, 0o755);
  renameSync(`${program}.new`, program);
}

async function forwarded(podId: string, port: number): Promise<string> {
  const { url } = await daemon.client.PortForward({ pod_sandbox_id: podId });
  const session = await openSpdy(url, "portforward.k8s.io");
  const running = session.run().catch(() => {});
  const headers = { port: String(port), requestid: "0" };
  const error = await session.open({ ...headers, streamtype: "error" });
  await error.end();
  const data = await session.open({ ...headers, streamtype: "data" });
  const texts = await Promise.all([collected(data.chunks()), collected(error.chunks())]);
  session.wire.close();
  await running;
  return texts.join("");
}

test("an image is loaded, its container runs, and a port is forwarded", async () => {
  replaceByFailingProgram();
  await daemon.loadImage(busyboxImage(), busybox);
  const pod = daemon.podConfig();
  const podId = await daemon.runPod(pod);
  const isServing = "grep -q :1F90 /proc/net/tcp /proc/net/tcp6"; // 8080
  const serve = `echo forwarded | nc -l -p 8080 & until ${isServing}; do usleep 9000; done; echo ready; wait`;
  const id = await daemon.run(podId, pod, serve);
  await daemon.logged(id, "ready");
  expect(await forwarded(podId, 8080)).toBe("forwarded\n");
});
