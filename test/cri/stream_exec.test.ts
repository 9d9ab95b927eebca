// Tests Exec: streams, terminals, exit codes, and slow, misbehaving or disconnected clients.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createConnection } from "node:net";
import { join } from "node:path";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, testMs, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { type Asked, converse, exitCodeIn, oldStatus, type Transport } from "../stream_client.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
let id: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  id = await daemon.run(podId, pod, "while sleep 0.1; do :; done"); // an init that reaps
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const both: Asked = { stdout: true, stderr: true };

async function urlOf(command: string, asked: Asked = both): Promise<string> {
  const cmd = ["sh", "-c", command];
  return (await daemon.client.Exec({ container_id: id, cmd, ...asked })).url;
}

async function exec(command: string, asked: Asked = both, transport: Transport = "WebSocket") {
  return converse(await urlOf(command, asked), asked, transport);
}

describe.each(["SPDY", "WebSocket"] as const)("over %s", (transport) => {
  test("both streams arrive apart, and the exit code", async () => {
    const { end } = await exec("echo out; echo err >&2; exit 4", both, transport);
    const { stdout, stderr, status } = await end;
    expect([stdout, stderr, exitCodeIn(status)]).toEqual(["out\n", "err\n", 4]);
  });

  test("a success is reported as such", async () => {
    const { end } = await exec("true", both, transport);
    expect(exitCodeIn((await end).status)).toBe(0);
  });

  test("input and its end are delivered while output continues", async () => {
    const asked = { stdin: true, stdout: true };
    const talk = await exec(
      "read a; echo got $a; cat; echo end; sleep 0.3; echo late",
      asked,
      transport,
    );
    await talk.type("one\n");
    await talk.hears("got one");
    await talk.type("two\n");
    await talk.hears("two");
    await talk.endInput();
    const { stdout, status } = await talk.end;
    expect([stdout, exitCodeIn(status)]).toEqual(["got one\ntwo\nend\nlate\n", 0]);
  });

  test("8 MiB go in and come out unchanged", async () => {
    const talk = await exec("cat", { stdin: true, stdout: true }, transport);
    const line = `${"0123456789abcdef".repeat(2047)}\n`;
    const text = line.repeat(256);
    await talk.type(text);
    await talk.endInput();
    const { stdout } = await talk.end;
    expect(stdout.length).toBe(text.length);
    expect(stdout === text).toBe(true);
  });

  test("a terminal has the client's size and follows its changes", async () => {
    const asked = { stdin: true, stdout: true, tty: true };
    const command =
      "trap 'stty size' WINCH; tty; echo $TERM; while true; do read a && break; done; exit 6";
    const talk = await exec(command, asked, transport);
    await talk.hears("xterm");
    expect(talk.heard.stdout).toContain("/dev/pts/");
    await talk.resize(132, 43);
    await talk.hears("43 132");
    await talk.type("x\n");
    const { stdout, status } = await talk.end;
    expect(stdout).toContain("x\r\n");
    expect(exitCodeIn(status)).toBe(6);
  });

  test("a missing command fails with the reason", async () => {
    const { url } = await daemon.client.Exec({ container_id: id, cmd: ["/no/such"], ...both });
    const { status } = await (await converse(url, both, transport)).end;
    expect(JSON.parse(status)).toMatchObject({ status: "Failure", reason: "InternalError" });
    expect(status).toContain("/no/such");
  });

  test("a disconnected client ends its command with all descendants", async () => {
    const before = daemon.snapshot();
    for (const asked of [
      { stdin: true, stdout: true },
      { stdin: true, stdout: true, tty: true },
    ]) {
      const talk = await exec(
        "setsid sleep 61617 & sleep 61618 & echo on; sleep 61619",
        asked,
        transport,
      );
      await talk.hears("on");
      talk.vanish();
    }
    expect(await daemon.leaksSince(before)).toEqual([]);
    expect((await daemon.exec(id, "ps -o args")).stdout).not.toMatch(/sleep 6161/);
  });

  test("so does a client whose input is not read, with all buffers full", async () => {
    const before = daemon.snapshot();
    const talk = await exec("echo on; sleep 61620", { stdin: true, stdout: true }, transport);
    await talk.hears("on");
    const typing = talk.type(Buffer.alloc(32 << 20)).catch(() => {});
    await Bun.sleep(300);
    talk.vanish();
    await typing;
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

test.each([
  ["channel.k8s.io", "5"],
  ["v2.channel.k8s.io", "5"],
  ["v3.channel.k8s.io", "5"],
])("%s tells a failure as text", async (protocol, code) => {
  const text = await oldStatus(await urlOf("exit 5"), protocol);
  expect(text).toBe(`command terminated with non-zero exit code: ${code}`);
  expect(await oldStatus(await urlOf("true"), protocol)).toBe("");
});

test("a child that keeps the output open delays nobody", async () => {
  const start = performance.now();
  const { stdout } = await (await exec("echo first; sleep 300 & exit 0")).end;
  expect(stdout).toBe("first\n");
  expect(performance.now() - start).toBeLessThan(100_000);
  await daemon.exec(id, "pkill -f 'sleep 300'");
});

test("a command that stops reading its input keeps running", async () => {
  const talk = await exec("read a; exec 0<&-; sleep 0.5; echo done", { stdin: true, stdout: true });
  await talk.type("a\n");
  await Bun.sleep(100);
  for (let count = 0; count < 50; count++) await talk.type("more\n");
  expect((await talk.end).stdout).toBe("done\n");
});

test("a slow client causes backpressure: nothing is lost, and the daemon buffers nothing", async () => {
  const url = new URL(await urlOf("head -c 100000000 /dev/zero | tr '\\0' x"));
  const socket = createConnection(Number(url.port), url.hostname);
  socket.write(
    `GET ${url.pathname} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
      "Sec-WebSocket-Key: aaaaaaaaaaaaaaaaaaaaaa==\r\nSec-WebSocket-Version: 13\r\n" +
      "Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n",
  );
  let bytes = 0;
  socket.pause();
  await Bun.sleep(1000);
  const pages = Number(readFileSync(`/proc/${daemon.pid}/statm`, "utf8").split(" ")[1]);
  expect(pages * 4096).toBeLessThan(200 << 20);
  socket.on("data", (chunk) => (bytes += chunk.length));
  socket.resume();
  await new Promise((resolve) => socket.once("end", resolve));
  expect(bytes).toBeWithin(100_000_000, 101_000_000);
});

test(
  "200 streams opened and killed leave everything as before",
  async () => {
    const before = daemon.snapshot();
    for (let round = 0; round < 20; round++) {
      const talks = await Promise.all(
        Array.from({ length: 10 }, async (_, index) => {
          const asked = { stdin: true, stdout: true, tty: index % 2 === 0 };
          return exec("echo on; sleep 61621", asked, index % 4 < 2 ? "SPDY" : "WebSocket");
        }),
      );
      await Promise.all(talks.map((talk) => talk.hears("on")));
      for (const talk of talks) talk.vanish();
    }
    expect(await daemon.leaksSince(before)).toEqual([]);
  },
  testMs(400_000),
);

test("the daemon's exit ends its commands, and nothing of them is left", async () => {
  const before = daemon.snapshot();
  const talks = await Promise.all([
    exec("echo on; sleep 61622", { stdin: true, stdout: true }),
    exec("echo on; sleep 61623", { stdin: true, stdout: true, tty: true }),
  ]);
  await Promise.all(talks.map((talk) => talk.hears("on")));
  await daemon.restart("SIGKILL");
  await Promise.allSettled(talks.map(({ end }) => end));
  const processes = async () => (await daemon.exec(id, "ps -o args")).stdout;
  await until("the commands have ended", async () => !/sleep 6162/.test(await processes()));
  expect((await daemon.leaksSince(before)).filter((leak) => !/pid \d+/.test(leak))).toEqual([]);
});

test("the monitor's exit ends them too, with an error", async () => {
  const talk = await exec("trap '' HUP PIPE; echo on; sleep 61624", { stdout: true });
  await talk.hears("on");
  for (const pid of daemon.monitors()) process.kill(pid, "SIGKILL");
  const { status } = await talk.end;
  expect(JSON.parse(status)).toMatchObject({ status: "Failure" });
  const processes = async () => (await daemon.exec(id, "ps -o args")).stdout;
  await until("the command has ended", async () => !(await processes()).includes("sleep 61624"));
});

describe("requests are validated", () => {
  const wrong: [string, Asked][] = [
    ["tty and stderr", { tty: true, stdout: true, stderr: true }],
    ["no stream", {}],
    ["no stream but a terminal", { tty: true }],
  ];
  test.each(wrong)("%s is INVALID_ARGUMENT", async (_, asked) => {
    for (const name of ["Exec", "Attach"] as const) {
      const request = { container_id: id, cmd: ["true"], ...asked };
      expect((await failure(daemon.client[name](request))).code).toBe("INVALID_ARGUMENT");
    }
  });

  test("a missing container, or one that is not running", async () => {
    const request = { cmd: ["true"], ...both };
    const none = await failure(daemon.client.Exec({ container_id: "nosuch", ...request }));
    expect(none.code).toBe("NOT_FOUND");
    const created = await daemon.create(podId, pod, "true");
    const idle = await failure(daemon.client.Exec({ container_id: created, ...request }));
    expect(idle.code).toBe("FAILED_PRECONDITION");
    const empty = await failure(daemon.client.Exec({ container_id: id, cmd: [], ...both }));
    expect(empty.code).toBe("INVALID_ARGUMENT");
  });
});

describe("the server", () => {
  async function status(path: string, headers: Record<string, string> = {}): Promise<number> {
    const { origin } = new URL(await urlOf("true"));
    return (await fetch(`${origin}${path}`, { headers })).status;
  }

  test("listens on loopback alone, and knows only its tokens, each once", async () => {
    const url = await urlOf("true");
    expect(new URL(url).hostname).toBe("127.0.0.1");
    await (
      await converse(url, both)
    ).end;
    expect(converse(url, both)).rejects.toThrow("404");
    expect(await status("/exec/abc")).toBe(404);
    expect(await status("/")).toBe(404);
    expect(await status("/attach/../etc/passwd")).toBe(404);
  });

  test("a token is for its own kind of URL", async () => {
    const url = await urlOf("true");
    expect(converse(url.replace("/exec/", "/attach/"), both)).rejects.toThrow("404");
  });

  test("a request without a stream gets an error", async () => {
    expect((await fetch(await urlOf("true"))).status).toBe(400);
  });

  test("takes the port of the key, and refuses one that is taken", async () => {
    await using other = await startDaemon({ image: false, network: false });
    await other.stop();
    const { port } = new URL(await urlOf("true"));
    other.writeConfig({ "websocket-server-listening-port": Number(port) });
    expect(other.start()).rejects.toThrow("websocket-server-listening-port");
    await Bun.sleep(500);
  });
});

test.skipIf(Bun.which("openssl") === null)("with a certificate the streams are TLS", async () => {
  const [cert, key] = [join(daemon.dir, "cert.pem"), join(daemon.dir, "key.pem")];
  const words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x"];
  spawnSync("openssl", [...words, "-keyout", key, "-out", cert]);
  const address = "127.0.0.2";
  daemon.writeConfig({
    "stream-server-address": address,
    "stream-tls-cert": cert,
    "stream-tls-key": key,
  });
  await daemon.restart();
  for (const transport of ["SPDY", "WebSocket"] as const) {
    const url = await urlOf("echo safe; exit 3");
    expect(url).toStartWith(`https://${address}:`);
    const { stdout, status } = await (await converse(url, both, transport)).end;
    expect([stdout, exitCodeIn(status)]).toEqual(["safe\n", 3]);
  }
  const before = daemon.snapshot();
  const talk = await exec("echo on; sleep 61625");
  await talk.hears("on");
  talk.vanish();
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("a stream without a byte for the idle timeout ends, and its command with it", async () => {
  daemon.writeConfig({ "stream-idle-timeout": 8, "stream-server-address": "127.0.0.3" });
  await daemon.restart();
  expect(await urlOf("true")).toStartWith("http://127.0.0.3:");
  const before = daemon.snapshot();
  const idle = await exec("echo on; sleep 61626");
  await idle.hears("on");
  // Longer than the timeout, which is long enough for the start of an exec.
  const busy = await exec("for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 1; done");
  await idle.end.catch(() => {});
  expect((await busy.end).stdout).toBe("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
  expect(await daemon.leaksSince(before)).toEqual([]);
});
