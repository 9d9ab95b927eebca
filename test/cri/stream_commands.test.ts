// Tests `isulad-ts exec`, `attach` and `port-forward` on a terminal and in a pipe, and crictl with both
// transports.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { createConnection, createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import process from "node:process";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { collected } from "../stream/wires.ts";

const crictl = join(import.meta.dirname, "../.cache/crictl");
const there = existsSync(crictl);
if (!there) console.error(`stream_commands.test.ts: ${crictl} is not there (no Go?): skipped`);

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

type Words = string[];
const ours = (...words: Words): Words => [executable, ...words];
const stock = (...words: Words): Words => [
  crictl,
  "--runtime-endpoint",
  `unix://${daemon.socket}`,
  "--timeout",
  "60s",
  ...words,
];

function environment(): NodeJS.ProcessEnv {
  return { ...process.env, ISULAD_HOST: `unix://${daemon.socket}` };
}

function run([program = "", ...words]: Words, input = "") {
  const options = {
    encoding: "utf8",
    env: environment(),
    timeout: 100_000,
    input,
    maxBuffer: 64 << 20,
  } as const;
  const { status, stdout, stderr } = spawnSync(program, words, options);
  return { code: status, stdout, stderr };
}

/** A program on a terminal of its own, 90 columns and 28 rows; `later`: a shell's command beside it. */
class OnTerminal {
  text = "";
  readonly #child: ChildProcess;
  readonly ended: Promise<number | null>;

  constructor(words: Words, later = "true") {
    const quoted = words.map((word) => `'${word.replaceAll("'", String.raw`'\''`)}'`).join(" ");
    const command = `stty cols 90 rows 28; (${later}) & ${quoted}`;
    this.#child = spawn("script", ["-qec", command, "/dev/null"], { env: environment() });
    this.#child.stdout!.on("data", (chunk: Buffer) => (this.text += chunk.toString()));
    this.ended = new Promise((resolve) => this.#child.once("exit", resolve));
  }

  type(text: string): void {
    this.#child.stdin!.write(text);
  }

  async shows(text: string): Promise<void> {
    await until(
      () => `${JSON.stringify(text)} is shown, not ${JSON.stringify(this.text)}`,
      () => this.text.includes(text),
    );
  }
}

/** A shell's command that waits until its terminal has our size. */
const untilSized = 'until [ "$(stty size)" = "28 90" ]; do sleep 0.1; done';

describe("exec", () => {
  test("shows both streams, and its exit code is the command's", () => {
    const done = run(ours("exec", id, "sh", "-c", "echo out; echo err >&2; exit 9"));
    expect(done).toEqual({ code: 9, stdout: "out\n", stderr: "err\n" });
  });

  test("-i passes a pipe on, all of it, to its end", () => {
    const text = "0123456789abcdef".repeat(200_000);
    expect(run(ours("exec", "-i", id, "cat"), text)).toEqual({ code: 0, stdout: text, stderr: "" });
    expect(run(ours("exec", id, "cat"), text)).toEqual({ code: 0, stdout: "", stderr: "" });
  });

  test("-i of a command that does not read all input ends with that command", () => {
    for (let round = 0; round < 5; round++) {
      const done = run(
        ours("exec", "-i", id, "head", "-c", "4"),
        "0123456789abcdef".repeat(400_000),
      );
      expect(done).toEqual({ code: 0, stdout: "0123", stderr: "" });
    }
  });

  test("-it is a terminal with our size, whose keys go to the command", async () => {
    const shell = new OnTerminal(ours("exec", "-it", id, "sh"));
    await shell.shows("# ");
    shell.type(`${untilSized}; echo sized $((6*6))\r`);
    await shell.shows("sized 36");
    shell.type("sleep 61631\r");
    const processes = async () => (await daemon.exec(id, "ps -o args")).stdout;
    await until("it sleeps", async () => /^sleep 61631$/m.test(await processes()));
    shell.type("\u0003");
    shell.type("echo after $((6*7))\r");
    await shell.shows("after 42");
    shell.type("exit 5\r");
    expect(await shell.ended).toBe(5);
  });

  test("-it passes on a changed terminal size", async () => {
    const command = "trap 'stty size' WINCH; echo on; while sleep 0.1; do :; done";
    const go = join(daemon.dir, "resize");
    const later = `until [ -e ${go} ]; do sleep 0.1; done; stty -F /dev/tty cols 101 rows 31`;
    const shell = new OnTerminal(ours("exec", "-it", id, "sh", "-c", command), later);
    await shell.shows("on");
    writeFileSync(go, "");
    await shell.shows("31 101");
    shell.type("\u0003");
    expect(await shell.ended).toBe(130);
  });

  test("--sync waits for the end, with a deadline of its own", () => {
    const done = run(ours("exec", "--sync", id, "sh", "-c", "echo out; echo err >&2; exit 9"));
    expect(done).toEqual({ code: 9, stdout: "out\n", stderr: "err\n" });
    const late = run(ours("exec", "--sync", "--timeout", "1", id, "sleep", "60"));
    expect(late.code).toBe(125);
  });

  test("commands that cannot start exit with docker's codes, usage errors with isulad-ts's own", () => {
    const { code, stderr } = run(ours("exec", id, "nosuch"));
    expect(code).toBe(127);
    expect(stderr).toMatch(/^isulad-ts: \S+runc exec: .*"nosuch"/);
    expect(run(ours("exec", id, "/etc")).code).toBe(126);
    expect(run(ours("exec", "nosuch", "true")).code).toBe(125);
    expect(run(ours("exec", id)).code).toBe(125);
    expect(run(ours("exec", "--timeout", "5", id, "true")).stderr).toContain("--sync");
  });

  test("a killed client leaves nothing", async () => {
    const before = daemon.snapshot();
    const [program = "", ...words] = ours("exec", id, "sleep", "61630");
    const child = spawn(program, words, { env: environment() });
    const processes = async () => (await daemon.exec(id, "ps -o args")).stdout;
    await until("it runs", async () => (await processes()).includes("sleep 61630"));
    child.kill("SIGKILL");
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

describe("attach", () => {
  test("shows what comes, passes input on, and ends with the container's code", async () => {
    const command = "while read line; do echo got $line; [ $line != end ] || exit 6; done";
    const container = await daemon.run(podId, pod, command, { stdin: true, stdin_once: true });
    const done = run(ours("attach", "-i", container), "one\ntwo\nend\n");
    expect(done).toEqual({ code: 6, stdout: "got one\ngot two\ngot end\n", stderr: "" });
  });

  test("finds out by itself that the container has a terminal", async () => {
    const container = await daemon.run(podId, pod, ["sh"], { stdin: true, tty: true });
    const shell = new OnTerminal(ours("attach", "-i", container));
    await Bun.sleep(500);
    shell.type(`${untilSized}; echo $((6*7))\r`);
    await shell.shows("42\r");
    shell.type("exit 3\r");
    expect(await shell.ended).toBe(3);
  });
});

test("run -it has the output from the start, the terminal's size and the exit code", async () => {
  const script = "echo banner; exec sh";
  const shell = new OnTerminal(ours("run", "-it", "--host-network", "busybox", "sh", "-c", script));
  await shell.shows("banner");
  shell.type(`${untilSized}; exit 4\r`);
  expect(await shell.ended).toBe(4);
});

/** Reads the local port that a port-forward prints. */
function localPort(child: ChildProcess): Promise<string> {
  return new Promise((resolve, reject) => {
    child.stdout!.once("data", (chunk: Buffer) => {
      const line = chunk.toString();
      const [, port] = /127\.0\.0\.1:(\d+) -> /.exec(line) ?? [];
      if (port === undefined) reject(new Error(`no local port in ${line}`));
      else resolve(port);
    });
    child.once("exit", (code) => reject(new Error(`port-forward ended with ${code}`)));
  });
}

describe("port-forward", () => {
  test("forwards a local port to a pod until it is interrupted", async () => {
    const server = createServer((socket) => socket.end("from the pod"));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    const [program = "", ...words] = ours("port-forward", podId, `0:${port}`);
    const child = spawn(program, words, { env: environment() });
    const local = await localPort(child);
    for (let count = 0; count < 3; count++) {
      expect(await collected(createConnection(Number(local), "127.0.0.1"))).toBe("from the pod");
    }
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGINT");
    expect(await ended).toBe(130);
    server.close();
  });

  test("refuses what is no port", () => {
    for (const word of ["70000", "x", "1:2:3", "0"]) {
      expect(run(ours("port-forward", podId, word)).code).toBe(2);
    }
    expect(run(ours("port-forward", podId)).code).toBe(2);
  });
});

describe.skipIf(!there).each(["spdy", "websocket"])("crictl --transport %s", (transport) => {
  const exec = (...words: Words) => stock("exec", "--transport", transport, ...words);

  test("exec: both streams, input, a failure", () => {
    const done = run(exec("-i", id, "sh", "-c", "cat; echo err >&2"), "typed");
    expect(done.code).toBe(0);
    expect(done.stdout).toBe("typed");
    expect(done.stderr).toContain("err\n");
    const failed = run(exec(id, "sh", "-c", "exit 7"));
    expect(failed.code).toBe(1);
    expect(failed.stderr).toContain("exit code 7");
  });

  test("exec -it", async () => {
    const shell = new OnTerminal(exec("-it", id, "sh"));
    await shell.shows("# ");
    shell.type(`${untilSized}; echo $((6*7))\r`);
    await shell.shows("42\r");
    shell.type("exit\r");
    expect(await shell.ended).toBe(0);
  });

  test("attach", async () => {
    const command = "while read line; do echo got $line; done; echo over";
    const container = await daemon.run(podId, pod, command, { stdin: true, stdin_once: true });
    const done = run(stock("attach", "-i", "--transport", transport, container), "one\ntwo\n");
    expect(done.code).toBe(0);
    expect(done.stdout).toBe("got one\ngot two\nover\n");
  });

  test("attach -it, a terminal of another size meanwhile", async () => {
    const container = await daemon.run(podId, pod, ["sh"], { stdin: true, tty: true });
    const later = "sleep 1.5; stty -F /dev/tty cols 101 rows 31";
    const shell = new OnTerminal(
      stock("attach", "-it", "--transport", transport, container),
      later,
    );
    await Bun.sleep(500);
    const resized = '[ "$(stty size)" = "31 101" ]';
    shell.type(`echo $((6*7)); until ${resized}; do sleep 0.1; done; echo $((6*11))\r`);
    await shell.shows("42\r");
    await shell.shows("66\r");
    shell.type("exit\r");
    expect(await shell.ended).toBe(0);
  });

  test("port-forward", async () => {
    const server = createServer((socket) => socket.end("from the pod"));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const { port } = server.address() as AddressInfo;
    const words = stock("port-forward", "--transport", transport, podId, `:${port}`);
    const child = spawn(words[0]!, words.slice(1), { env: environment() });
    const local = await localPort(child);
    expect(await collected(createConnection(Number(local), "127.0.0.1"))).toBe("from the pod");
    child.kill("SIGKILL");
    server.close();
  });
});
