// Tests Attach: clients share a running container's standard streams, and disconnect at any time.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { createConnection, type Socket } from "node:net";
import { runtime } from "../../src/proto/messages.js";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, keepsExits, testMs, until } from "../expect.ts";
import { openGate } from "../gate.ts";
import { ByteStream } from "../../src/sys/byte_stream.ts";
import { Poller } from "../../src/sys/poller.ts";
import { connectTcp, tcpSocket } from "../../src/sys/tcp.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { lastBytes, logText } from "../log_text.ts";
import { replaceMonitor } from "../monitor_kill.ts";
import { type Asked, converse, exitCodeIn, type Transport } from "../stream_client.ts";

const { ContainerState } = runtime.v1;
let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const all: Asked = { stdin: true, stdout: true, stderr: true };

function run(command: string, more: ContainerConfig = {}): Promise<string> {
  return daemon.run(podId, pod, command, { stdin: true, ...more });
}

async function attach(container_id: string, asked = all, transport: Transport = "WebSocket") {
  const { url } = await daemon.client.Attach({ container_id, ...asked });
  return converse(url, asked, transport);
}

async function logOf(id: string): Promise<string> {
  return logText(readFileSync((await daemon.status(id)).log_path, "utf8"));
}

/**
 * A client that takes some 60 KB a second, once the container has answered it by "attached"; its own socket, as the
 * engine's read ahead.
 */
async function slowClient(address: string, answer: () => Promise<void>): Promise<Disposable> {
  const url = new URL(address);
  const poller = new Poller();
  const socket = new ByteStream(tcpSocket("IPv4"), poller);
  const port = Number(url.port);
  const to = { address: url.hostname, port, poller, signal: AbortSignal.timeout(60_000) };
  await connectTcp(socket.descriptor, to);
  await socket.send(upgradeRequest(url));
  let heard = "";
  const take = async () => {
    const buffer = Buffer.alloc(60_000);
    for (let size = 1; size > 0;) {
      size = await socket.read(buffer);
      const isAttached = heard.includes("attached");
      if (!isAttached) heard += buffer.toString("latin1", 0, size);
      else await Bun.sleep(1_000);
    }
  };
  take().catch(() => {});
  await until("the slow client is attached", async () => {
    await answer();
    await Bun.sleep(100);
    return heard.includes("attached");
  });
  return {
    [Symbol.dispose]: () => {
      socket.close();
      poller[Symbol.dispose]();
    },
  };
}

/** The files that a process has open. */
function filesOf(pid: number): string[] {
  return readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
    try {
      return [readlinkSync(`/proc/${pid}/fd/${fd}`)];
    } catch {
      return []; // closed meanwhile
    }
  });
}

/** A client that never reads, unless it is resumed. */
function rawClient(address: string): Socket {
  const url = new URL(address);
  const to = { host: url.hostname, port: Number(url.port), allowHalfOpen: true };
  const socket = createConnection(to);
  socket.pause();
  socket.write(upgradeRequest(url));
  return socket;
}

function upgradeRequest({ pathname }: URL): Buffer {
  return Buffer.from(
    `GET ${pathname} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
      "Sec-WebSocket-Key: aaaaaaaaaaaaaaaaaaaaaa==\r\nSec-WebSocket-Version: 13\r\n" +
      "Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n",
  );
}

/** A shell that executes its input. */
const shell = 'while read line; do eval "$line"; done; echo input ended';

describe.each(["SPDY", "WebSocket"] as const)("over %s", (transport) => {
  test("input is delivered, and output from the attach on, including partial lines", async () => {
    const id = await run(shell);
    const earlier = await attach(id);
    await earlier.type("echo before; printf half\n");
    await earlier.hears("before\nhalf");
    const talk = await attach(id, all, transport);
    await talk.type("printf prompt; echo err >&2\n");
    await talk.hears("prompt");
    await talk.hears("err");
    await talk.type("echo; exit 3\n");
    const { stdout, stderr, status } = await talk.end;
    expect([stdout, stderr, exitCodeIn(status)]).toEqual(["prompt\n", "err\n", 0]);
    expect((await daemon.exited(id)).exitCode).toBe(3);
    expect(await logOf(id)).toContain("halfprompt\n");
  });

  test("a terminal has one output, the client's size, and outlives its clients", async () => {
    const tty = { stdin: true, stdout: true, tty: true };
    const id = await run(
      "trap 'stty size' WINCH; echo ready; while true; do read -r line; eval \"$line\"; done",
      { tty: true },
    );
    await daemon.logged(id, "ready");
    const one = await attach(id, tty, transport);
    await one.resize(99, 33);
    await one.hears("33 99");
    await one.type("echo $((40+2)) >&2\n");
    await one.hears("42\r\n");
    one.vanish();
    const other = await attach(id, tty, transport);
    await other.type("exit 7\n");
    const { stdout } = await other.end;
    expect(stdout).not.toContain("42");
    expect((await daemon.exited(id)).exitCode).toBe(7);
  });
});

test("connecting and disconnecting clients affect neither the container nor its log", async () => {
  const id = await run(shell);
  const before = daemon.snapshot();
  for (let count = 0; count < 10; count++) {
    const talk = await attach(id, all, count % 2 === 0 ? "SPDY" : "WebSocket");
    await talk.type(`echo round ${count}\n`);
    await talk.hears(`round ${count}`);
    if (count % 3 === 0) await talk.endInput();
    else talk.vanish();
    await talk.end.catch(() => {});
  }
  expect(await daemon.leaksSince(before)).toEqual([]);
  const expected = Array.from({ length: 10 }, (_, count) => `round ${count}\n`).join("");
  expect(await logOf(id)).toBe(expected);
});

test("all clients get the same output, and each can send input", async () => {
  const id = await run(shell);
  const talks = await Promise.all([attach(id), attach(id, all, "SPDY"), attach(id)]);
  for (const [index, talk] of talks.entries()) {
    await talk.type(`echo hello ${index}\n`);
    await talk.hears(`hello ${index}`);
  }
  for (const [index, talk] of talks.entries()) await talk.type(`echo from ${index}\n`);
  for (const talk of talks) {
    for (const index of [0, 1, 2]) await talk.hears(`from ${index}`);
  }
  await talks[0].type("exit 0\n");
  await Promise.all(talks.map(({ end }) => end));
});

test("without stdin_once the end of a client's input detaches the client and leaves the container's stdin open", async () => {
  const id = await run(shell);
  const one = await attach(id);
  await one.type("echo one\n");
  await one.hears("one");
  await one.endInput();
  expect(exitCodeIn((await one.end).status)).toBe(0);
  const other = await attach(id);
  await other.type("echo two; exit 0\n");
  expect((await other.end).stdout).toBe("two\n");
});

test("with stdin_once the container's input ends with the first client's, and stays ended", async () => {
  const id = await run("cat; echo all read; sleep 1", { stdin_once: true });
  const talk = await attach(id);
  await talk.type("words");
  await talk.endInput();
  expect((await talk.end).stdout).toBe("wordsall read\n");
  expect((await daemon.exited(id)).exitCode).toBe(0);

  const left = await run("cat; echo all read; sleep 600", { stdin_once: true });
  const first = await attach(left);
  await first.type("words\n");
  await first.hears("words");
  first.vanish();
  await until("all is read", async () => (await logOf(left)).includes("all read"));
  expect(await logOf(left)).toBe("words\nall read\n");
  await replaceMonitor(daemon);
  const later = await attach(left);
  await later.type("more\n");
  await Bun.sleep(200);
  expect(await logOf(left)).toBe("words\nall read\n");
  later.vanish();
});

/** A final WebSocket frame of a client, masked with zeros. */
function frame(opcode: number, payload: Buffer): Buffer {
  const head = Buffer.alloc(14);
  head.set([0x80 | opcode, 0x80 | 127]);
  head.writeBigUInt64BE(BigInt(payload.length), 2);
  return Buffer.concat([head, payload]);
}

describe.each(["a CLOSE frame", "the end of its connection"])(
  "what a client sends before %s",
  (end) => {
    test.each([
      [200_000, "wc -c"],
      [5_000_000, "sleep 1; wc -c"],
    ])("gets to the container: %i bytes to `%s`", async (bytes, command) => {
      const id = await run(command, { stdin_once: true });
      const { url } = await daemon.client.Attach({ container_id: id, stdin: true, stdout: true });
      const socket = rawClient(url).resume();
      socket.write(frame(2, Buffer.concat([Buffer.of(0), Buffer.alloc(bytes, "x")])));
      if (end === "a CLOSE frame") socket.write(frame(8, Buffer.of(1000 >> 8, 1000 & 255)));
      socket.end();
      expect((await daemon.exited(id)).exitCode).toBe(0);
      expect(await logOf(id)).toBe(`${bytes}\n`);
      socket.destroy();
    });
  },
);

test("a client that left, and whose input the container does not read, keeps nothing open", async () => {
  const id = await run("sleep 600");
  const held = () => filesOf(daemon.pid).filter((path) => path.includes(id)).length;
  const before = held();
  const talk = await attach(id, { stdin: true, stdout: true });
  talk.type(Buffer.alloc(5_000_000)).catch(() => {});
  await until("its input is open", () => held() > before);
  talk.vanish();
  await until("its input is closed", () => held() === before);
});

test("a client whose output breaks off while the container runs on is told so", async () => {
  const id = await run("while sleep 0.1; do date; done");
  const talk = await attach(id, { stdout: true });
  await talk.hears(":");
  for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
  const { status, message } = JSON.parse((await talk.end).status) as Record<string, string>;
  expect(status).toBe("Failure");
  expect(message).toMatch(/output of container .* broke off: .*the container runs on/);
  expect((await daemon.status(id)).state).toBe(ContainerState.CONTAINER_RUNNING);
});

test("a container's stdin survives restarts of daemon and monitor", async () => {
  const id = await run(shell);
  await daemon.restart("SIGKILL");
  await replaceMonitor(daemon);
  const talk = await attach(id);
  await talk.type("echo still here; exit 4\n");
  expect((await talk.end).stdout).toBe("still here\n");
  // init's child since daemon and monitor were killed
  expect((await daemon.exited(id)).exitCode).toBe(keepsExits ? 4 : 255);
});

test("a client that reads slowly gets every byte, and so does the log", async () => {
  const id = await run("read line; seq 300000; exit 0");
  const talk = await attach(id);
  await talk.type("go\n");
  const { stdout } = await talk.end;
  const expected = Array.from({ length: 300_000 }, (_, index) => `${index + 1}\n`).join("");
  expect(stdout === expected).toBe(true);
  expect((await logOf(id)) === expected).toBe(true);
});

test(
  "a client that never reads is disconnected, one that reads slowly is not: the container runs on, other clients never wait",
  async () => {
    const id = await run("read line; seq 3000000; echo end; sleep 600");
    const other = await run("while sleep 0.1; do date; done");
    const answers = "while read line && [ $line != go ]; do echo attached; done";
    const slow = await run(`${answers}; seq 3000000; echo end; sleep 600`);
    const typingSlow = await attach(slow, { stdin: true });
    const { url: slowUrl } = await daemon.client.Attach({ container_id: slow, stdout: true });
    using _ = await slowClient(slowUrl, () => typingSlow.type("there?\n"));
    const { url } = await daemon.client.Attach({ container_id: id, ...all });
    const socket = rawClient(url);
    await Bun.sleep(500);
    const typing = await attach(id, { stdin: true });
    await typing.type("go\n");
    await typingSlow.type("go\n");
    await Bun.sleep(1000);
    const before = (await logOf(other)).length;
    await until("the other's log grows", async () => (await logOf(other)).length > before);
    const { log_path: log } = await daemon.status(id);
    await until("the log is complete", () => lastBytes(log, 7) === " F end\n");
    await Bun.sleep(10_000);
    expect(lastBytes((await daemon.status(slow)).log_path, 7)).not.toBe(" F end\n");
    expect(lastBytes(log, 200)).toMatch(/ F 3000000\n\S+ stdout F end\n$/);
    socket.destroy();
    typing.vanish();
    typingSlow.vanish();
  },
  testMs(120_000),
);

test("a client that never reads delays no exit", async () => {
  const id = await run("read line; seq 200000; exit 9");
  const talk = await attach(id, { stdin: true });
  const { url } = await daemon.client.Attach({ container_id: id, stdout: true });
  const socket = rawClient(url);
  await Bun.sleep(300);
  await talk.type("go\n");
  expect((await daemon.exited(id)).exitCode).toBe(9);
  expect((await logOf(id)).endsWith("200000\n")).toBe(true);
  socket.destroy();
});

test.each(["SPDY", "WebSocket"] as const)(
  "over %s, input to a container without stdin is discarded, and its end releases nobody",
  async (transport) => {
    const gate = "while [ ! -e /go ]; do sleep 0.1; done; echo go";
    for (const tty of [false, true]) {
      const script = `${gate}; rm /go; ${gate}; ${tty ? "read -t 1 -r line; " : ""}echo "got $line"`;
      const id = await run(script, { stdin: false, tty });
      const asked = { stdin: true, stdout: true, stderr: !tty, tty };
      const talk = await attach(id, asked, transport);
      await talk.type("typed\n");
      expect((await daemon.exec(id, "touch /go")).exitCode).toBe(0);
      await talk.hears("go");
      await talk.endInput();
      await Bun.sleep(500);
      await openGate(daemon, id);
      const { stdout, status } = await talk.end;
      expect(stdout.replaceAll("\r", "")).toBe("go\ngo\ngot \n");
      expect(exitCodeIn(status)).toBe(0);
    }
  },
);

test("a terminal that the container lacks is INVALID_ARGUMENT", async () => {
  const id = await daemon.run(podId, pod, "sleep 600");
  const attachTo = (asked: Asked) => failure(daemon.client.Attach({ container_id: id, ...asked }));
  expect((await attachTo({ stdout: true, tty: true })).code).toBe("INVALID_ARGUMENT");
  const created = await daemon.create(podId, pod, "true");
  const idle = await failure(daemon.client.Attach({ container_id: created, stdout: true }));
  expect(idle.code).toBe("FAILED_PRECONDITION");
});
