// Tests Exec, Attach and PortForward over WebSocket with each protocol of the kubelet's streaming library:
// received data equals sent data, and Kubernetes's own client understands it.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { join } from "node:path";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { buildGo, hasGo } from "../go.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { askForWebSocket, ChannelsClient } from "../stream/channels_client.ts";
import { seeded } from "../stream/wires.ts";
import { exitCodeIn } from "../stream_client.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
let id: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  id = await daemon.run(podId, pod, "while sleep 0.1; do :; done");
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const [stdin, stdout, stderr, error, resize, close] = [0, 1, 2, 3, 4, 255];
const old = ["", "channel.k8s.io", "base64.channel.k8s.io"];
const newer = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", "v5.channel.k8s.io"];
const random = seeded(20_261_122);
const payload = Buffer.from(Array.from({ length: 5_000_003 }, () => random(256)));

async function exec(command: string, asked: object): Promise<string> {
  const request = { container_id: id, cmd: ["sh", "-c", command], ...asked };
  return (await daemon.client.Exec(request)).url;
}
const outputs = { stdout: true, stderr: true };

async function sendAll(client: ChannelsClient, channel: number): Promise<void> {
  for (let at = 0; at < payload.length;) {
    const size = 1 + random(100_000);
    await client.send(channel, payload.subarray(at, at + size));
    at += size;
  }
}

describe.each([...old, ...newer])("exec by %j", (protocol) => {
  test("begins with an empty message, keeps the streams apart, and tells a failure", async () => {
    const url = await exec("printf out; printf err >&2; exit 7", outputs);
    const client = await ChannelsClient.open(url, protocol);
    await client.ended;
    expect(client.messages[0]).toEqual({ channel: stdout, bytes: Buffer.alloc(0) });
    expect(client.bytesOf(stdout).toString()).toBe("out");
    expect(client.bytesOf(stderr).toString()).toBe("err");
    const status = client.bytesOf(error).toString();
    if (newer.includes(protocol)) expect(exitCodeIn(status)).toBe(7);
    else expect(status).toBe("command terminated with non-zero exit code: 7");
  });

  test("tells a success as that version does", async () => {
    const client = await ChannelsClient.open(await exec("true", outputs), protocol);
    await client.ended;
    const statuses = client.messages.filter(({ channel }) => channel === error);
    if (newer.includes(protocol)) expect(exitCodeIn(statuses[0]!.bytes.toString())).toBe(0);
    else expect(statuses).toEqual([]);
  });

  test("5 MB of any bytes go in and come out unchanged", async () => {
    const url = await exec(`head -c ${payload.length}`, { stdin: true, stdout: true });
    const client = await ChannelsClient.open(url, protocol);
    await sendAll(client, stdin);
    await client.ended;
    expect(client.bytesOf(stdout).equals(payload)).toBe(true);
  });

  test("a terminal has the size that the client tells", async () => {
    const untilTold =
      'until [ "$(stty size 2>/dev/null)" = "37 101" ]; do sleep 0.1; done; echo told';
    const url = await exec(untilTold, { stdin: true, stdout: true, tty: true });
    const client = await ChannelsClient.open(url, protocol);
    await client.send(resize, Buffer.from('{"Width":101,"Height":37}'));
    await client.ended;
    expect(client.bytesOf(stdout).toString()).toContain("told");
  });
});

test("the lowest channel that is written has the first message", async () => {
  for (const [asked, channel] of [
    [{ stderr: true }, stderr],
    [{ stdin: true }, error],
  ] as const) {
    const url = await exec("exit 1", asked);
    const client = await ChannelsClient.open(url, "base64.channel.k8s.io");
    await client.ended;
    expect(client.messages[0]).toEqual({ channel, bytes: Buffer.alloc(0) });
  }
});

test("invalid base64 closes the connection and ends the command", async () => {
  const before = daemon.snapshot();
  const url = await exec("cat; sleep 61630", { stdin: true, stdout: true });
  const client = await ChannelsClient.open(url, "base64.channel.k8s.io");
  await client.send(stdin, Buffer.from("yes\n"));
  await until("it is read", () => client.bytesOf(stdout).length > 0);
  await client.sendRaw("0Zm9*");
  await client.ended;
  expect(client.bytesOf(stdout).toString()).toBe("yes\n");
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("v5 ends standard input alone; other channels mean nothing to the command", async () => {
  const url = await exec("cat; echo end; exit 2", { stdin: true, stdout: true });
  const client = await ChannelsClient.open(url, "v5.channel.k8s.io");
  for (const channel of [stdout, 9, 200]) await client.send(channel, Buffer.from("no"));
  await client.send(stdin, Buffer.from("yes\n"));
  await client.send(close, Uint8Array.of(stdin));
  await client.ended;
  expect(client.bytesOf(stdout).toString()).toBe("yes\nend\n");
  expect(exitCodeIn(client.bytesOf(error).toString())).toBe(2);
});

test.each([...old, ...newer])("attach by %j: all bytes go in and come out", async (protocol) => {
  const created = await daemon.create(podId, pod, `head -c ${payload.length}; sleep 600`, {
    stdin: true,
  });
  await daemon.client.StartContainer({ container_id: created });
  const request = { container_id: created, stdin: true, stdout: true };
  const { url } = await daemon.client.Attach(request);
  const client = await ChannelsClient.open(url, protocol);
  await until("it is attached", () => client.messages.length > 0);
  await Bun.sleep(300); // attached to what comes from now on
  await sendAll(client, stdin);
  await until("all bytes came", () => client.bytesOf(stdout).length === payload.length);
  expect(client.bytesOf(stdout).equals(payload)).toBe(true);
  client.vanish();
  await daemon.client.RemoveContainer({ container_id: created });
});

describe("a request", () => {
  const url = () => exec("true", outputs);
  test.each([
    ["POST", {}, "405"],
    ["PUT", {}, "405"],
    ["GET", { protocol: "v9.channel.k8s.io" }, "403"],
    ["GET", { protocol: "v9.channel.k8s.io, v4.channel.k8s.io" }, "101"],
  ] as const)("by %s with %j is answered %s", async (method, asked, status) => {
    const { head, rest } = await askForWebSocket(await url(), { protocol: "", method, ...asked });
    expect(head.line).toContain(` ${status} `);
    rest.close();
  });

  test("that names none of PortForward's protocols, or no ports, is refused", async () => {
    const { url } = await daemon.client.PortForward({ pod_sandbox_id: podId });
    const { head } = await askForWebSocket(url, { protocol: "v4.channel.k8s.io" });
    expect(head.line).toContain(" 403 ");
  });
});

describe.skipIf(!hasGo)("Kubernetes's client (golang.org/x/net/websocket)", () => {
  let program: string;
  beforeAll(() => {
    program = buildGo(join(import.meta.dirname, "../stream/websocket_client"));
  }, 300_000);

  async function talk(url: string, { protocols, input, count }: Talk) {
    const argv = [url.replace(/^http/, "ws"), protocols, String(count ?? 0)];
    const child = spawn(program, argv, { stdio: ["pipe", "pipe", "inherit"] });
    child.stdin.on("error", () => {}).write(input ?? "");
    const lines = (await Array.fromAsync(child.stdout as AsyncIterable<Buffer>)).join("");
    return new Map(lines.split("\n").map((line) => line.split(" ") as [string, string]));
  }
  type Talk = { protocols: string; input?: Buffer; count?: number };
  const bytes = (text: string | undefined) => Buffer.from(text ?? "", "base64");

  test.each([...old, ...newer])("runs a command by %j", async (protocols) => {
    const url = await exec("echo remote execution test; exit 3", outputs);
    const came = await talk(url, { protocols });
    expect(bytes(came.get("1")).toString()).toBe("remote execution test\n");
    expect(bytes(came.get("3")).toString()).toContain("non-zero exit code: 3");
    expect(came.get("protocol")).toBe(protocols);
  });

  test.each([...old, ...newer])("types 5 MB by %j", async (protocols) => {
    const url = await exec(`head -c ${payload.length}`, { stdin: true, stdout: true });
    const came = await talk(url, { protocols, input: payload });
    expect(bytes(came.get("1")).equals(payload)).toBe(true);
  });

  test("gets its first choice of several", async () => {
    const protocols = "v9.channel.k8s.io,base64.channel.k8s.io,v4.channel.k8s.io";
    const came = await talk(await exec("echo one", outputs), { protocols });
    expect(came.get("protocol")).toBe("base64.channel.k8s.io");
    expect(bytes(came.get("1")).toString()).toBe("one\n");
  });

  test.each(["", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"])(
    "forwards a port by %j",
    async (protocols) => {
      const echo = Bun.listen({
        hostname: "127.0.0.1",
        port: 0,
        socket: { data: (socket, data) => void socket.end(Buffer.concat([data, data])) },
      });
      const request = { pod_sandbox_id: podId, port: [echo.port] };
      const { url } = await daemon.client.PortForward(request);
      const came = await talk(url, { protocols, input: Buffer.from("abc") });
      const port = [echo.port & 255, echo.port >> 8];
      expect([...bytes(came.get("0"))]).toEqual([...port, ...Buffer.from("abcabc")]);
      expect([...bytes(came.get("1"))]).toEqual(port);
      echo.stop();
    },
  );
});
