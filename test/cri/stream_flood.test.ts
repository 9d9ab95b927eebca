// Tests exec, attach, port-forward and the metrics while other clients hold the streaming port, with and without
// TLS, or the metrics' port with 1,500 unauthenticated connections, as any pod in the host's network can.
import { afterAll, afterEach, beforeAll, expect, test } from "bun:test";
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { freePort } from "../registry.ts";
import { ChannelsClient } from "../stream/channels_client.ts";
import { converse, exitCodeIn } from "../stream_client.ts";

/**
 * Limit for four rounds of all steps, beyond what ten rounds without other clients take on this machine. If each step
 * waited until silent clients are disconnected, the rounds would take a minute.
 */
const fourRoundsMs = 12_000;
/** More than the five seconds that the daemon gives a client for its request. */
const expelMs = 5_500;

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
let id: string;
let metricsPort: number;
beforeAll(async () => {
  metricsPort = await freePort();
  daemon = await startDaemon({ network: false, config: { "metrics-port": metricsPort } });
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  id = await daemon.run(podId, pod, "while sleep 0.1; do echo tick; done");
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

let floods: ChildProcess[] = [];
afterEach(() => {
  for (const flood of floods.splice(0)) flood.kill("SIGKILL");
});

/** Resolves when all have been opened once. */
async function flood(port: number, count: number, kind: string): Promise<void> {
  const script = join(import.meta.dirname, "../stream/silent_clients.ts");
  const argv = [script, String(port), String(count), kind];
  const child = spawn(process.execPath, argv, { stdio: ["pipe", "pipe", "inherit"] });
  floods.push(child);
  let opened = 0;
  child.stdout.on("data", (text: Buffer) => {
    opened = Number(text.toString().trim().split("\n").at(-1));
  });
  await until("the flood is there", () => opened >= count);
}

async function urlOf(name: "Exec" | "Attach", asked: object): Promise<string> {
  return (await daemon.client[name]({ container_id: id, stdout: true, ...asked })).url;
}

async function execOnce(): Promise<void> {
  const cmd = ["sh", "-c", "cat; exit 5"];
  const asked = { stdin: true, stdout: true };
  const talk = await converse(await urlOf("Exec", { cmd, ...asked }), asked, "WebSocket");
  await talk.type("hello");
  await talk.endInput();
  const { stdout, status } = await talk.end;
  expect([stdout, exitCodeIn(status)]).toEqual(["hello", 5]);
}

async function attachOnce(): Promise<void> {
  const talk = await converse(await urlOf("Attach", {}), { stdout: true }, "SPDY");
  await talk.hears("tick");
  talk.vanish();
}

async function forwardOnce(port: number): Promise<void> {
  const { url } = await daemon.client.PortForward({ pod_sandbox_id: podId, port: [port] });
  const client = await ChannelsClient.open(url, "v4.channel.k8s.io");
  await client.send(0, Buffer.from("there and back"));
  await until("it is back", () => client.bytesOf(0).length === 16);
  client.vanish();
}

/** Returns how long all steps take, once. */
async function roundMs(steps: (() => Promise<void>)[]): Promise<number> {
  const begin = performance.now();
  for (const step of steps) await step();
  return performance.now() - begin;
}

/**
 * Does all steps four times, twice of it after the daemon has disconnected all who are silent. aloneMs: what a round
 * takes without other clients.
 */
async function fourRounds(
  kind: string,
  steps: (() => Promise<void>)[],
  aloneMs: number,
): Promise<void> {
  let spentMs = 0;
  for (let round = 0; round < 4; round++) {
    if (round === 2 && kind === "silent") await sleep(expelMs);
    spentMs += await roundMs(steps);
  }
  expect(spentMs).toBeLessThan(fourRoundsMs + 10 * aloneMs);
}

test.each(["silent", "half", "churn"])(
  "1,500 %s connections, renewed all the time, keep nobody out",
  async (kind) => {
    const server = createServer((socket) => socket.pipe(socket));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    const streamPort = Number(new URL(await urlOf("Exec", { cmd: ["true"] })).port);
    const long = await converse(await urlOf("Attach", {}), { stdout: true }, "WebSocket");
    const steps = [execOnce, attachOnce, () => forwardOnce(port)];
    const aloneMs = await roundMs(steps);
    await flood(streamPort, 1500, kind);
    await fourRounds(kind, steps, aloneMs);
    const heard = long.heard.stdout.length;
    await until("the stream from before goes on", () => long.heard.stdout.length > heard);
    long.vanish();
    server.close();
  },
  120_000,
);

async function scrapeOnce(): Promise<void> {
  const signal = AbortSignal.timeout(60_000);
  const response = await fetch(`http://127.0.0.1:${metricsPort}/metrics`, {
    signal,
    keepalive: false,
  });
  expect(await response.text()).toContain("isulad_");
}

// Not "churn": node's listener takes its whole queue at once, so clients that close by themselves may
// push a reader out, who comes again; exec, attach and port-forward have a listener of our own.
test.each(["silent", "half"])(
  "1,500 %s connections to the metrics keep no reader out",
  async (kind) => {
    const aloneMs = await roundMs([scrapeOnce]);
    await flood(metricsPort, 1500, kind);
    await fourRounds(kind, [scrapeOnce, () => sleep(100)], aloneMs);
  },
  120_000,
);

// A handshake costs the daemon more than a client that is silent does.
test.skipIf(Bun.which("openssl") === null).each([
  ["silent", 1500],
  ["half", 1500],
  ["tls", 300],
] as const)(
  "with TLS, %s connections (%d) keep nobody out",
  async (kind, count) => {
    const [cert, key] = [join(daemon.dir, "cert.pem"), join(daemon.dir, "key.pem")];
    const words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x"];
    spawnSync("openssl", [...words, "-keyout", key, "-out", cert]);
    daemon.writeConfig({ "stream-tls-cert": cert, "stream-tls-key": key });
    await daemon.restart();
    const steps = [execOnce, attachOnce];
    const aloneMs = await roundMs(steps);
    await flood(Number(new URL(await urlOf("Exec", { cmd: ["true"] })).port), count, kind);
    await fourRounds(kind, steps, aloneMs);
  },
  120_000,
);
