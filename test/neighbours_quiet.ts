// Runs the quiet pod of test/neighbours.ts and counts the harm that it suffers: probes and new streams each second, a
// container that writes a numbered log, and an exec stream and a port-forward whose echo is compared byte by byte.
import type { ChildProcess } from "node:child_process";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../src/base/errors.ts";
import { toLong } from "../src/base/int64.ts";
import { openSpdy } from "../src/cli/stream_client.ts";
import type { PodSandboxConfig } from "../src/proto/types.ts";
import { until } from "./expect.ts";
import type { SpdyStream } from "../src/sys/spdy.ts";
import type { Daemon } from "./harness.ts";
import { logText } from "./log_text.ts";
import { writerScript } from "./storm.ts";
import { difference } from "./stress_check.ts";
import { numbers } from "./stress_loads.ts";
import { echoPort, startPodServers } from "./stress_node.ts";
import { converse, exitCodeIn } from "./stream_client.ts";

/** What the quiet pod has suffered. */
export type Harm = {
  probes: number;
  failedProbes: number;
  /** Probes and new streams that took longer than a second, a kubelet's default limit. */
  late: number;
  probeMsMax: number;
  /** New exec streams and port-forwards. */
  streams: number;
  failedStreams: number;
  /** The longest way there and back of the long streams. */
  echoMsMax: number;
  bytes: number;
  lostBytes: number;
  /** The first of each kind. */
  problems: string[];
};

const beatMs = 1_000;
const lateMs = 1_000;
const echoEveryMs = 50;
const linesAtOnce = 200;
/** Lines of the log, each 20 ms. */
const burst = 10;
const problemsMax = 8;

/** One long stream that returns what it gets. */
type Echo = {
  name: string;
  send(text: string): Promise<void>;
  heard(): string;
  /** Half-closes, and waits until the other side has ended. */
  end(): Promise<void>;
};

export class QuietPod implements AsyncDisposable {
  readonly harm: Harm = {
    probes: 0,
    failedProbes: 0,
    late: 0,
    probeMsMax: 0,
    streams: 0,
    failedStreams: 0,
    echoMsMax: 0,
    bytes: 0,
    lostBytes: 0,
    problems: [],
  };
  readonly #daemon: Daemon;
  readonly #podId: string;
  /** The container that is probed. */
  readonly target: string;
  readonly #writer: string;
  readonly #servers: ChildProcess;
  readonly #stop = new AbortController();
  #running: Promise<unknown> = Promise.resolve();

  private constructor(
    daemon: Daemon,
    ids: { podId: string; target: string; writer: string },
    servers: ChildProcess,
  ) {
    this.#daemon = daemon;
    [this.#podId, this.target, this.#writer] = [ids.podId, ids.target, ids.writer];
    this.#servers = servers;
  }

  static async start(daemon: Daemon): Promise<QuietPod> {
    const config: PodSandboxConfig = daemon.podConfig({ metadata: { name: "quiet" } });
    const podId = await daemon.runPod(config);
    const target = await daemon.run(podId, config, ["sleep", "1000000"]);
    const writer = await daemon.run(podId, config, writerScript(burst));
    const quiet = new QuietPod(daemon, { podId, target, writer }, await startPodServers(podId));
    const echoes = [await quiet.#execEcho(), await quiet.#forwardEcho()];
    quiet.#running = Promise.all([
      quiet.#each(() => quiet.#probe()),
      quiet.#each(() => quiet.#newStreams()),
      ...echoes.map((echo) => quiet.#follow(echo)),
    ]);
    quiet.#running.catch(() => {}); // finish() reports it
    return quiet;
  }

  get #isOver(): boolean {
    return this.#stop.signal.aborted;
  }

  #problem(text: string): void {
    if (this.harm.problems.length < problemsMax) this.harm.problems.push(text);
  }

  async #each(act: () => Promise<void>): Promise<void> {
    for (let next = performance.now(); !this.#isOver;) {
      await act();
      next += beatMs;
      const leftMs = Math.max(0, next - performance.now());
      await sleep(leftMs, undefined, this.#stop).catch(() => {});
    }
  }

  /** Counts a call that fails or takes too long. */
  async #counted(
    kind: "failedProbes" | "failedStreams",
    act: () => Promise<void>,
  ): Promise<number> {
    const start = performance.now();
    try {
      await act();
    } catch (error) {
      this.harm[kind]++;
      this.#problem(`${kind}: ${messageOf(error)}`);
    }
    const ms = performance.now() - start;
    if (ms > lateMs) this.harm.late++;
    return ms;
  }

  async #probe(): Promise<void> {
    const text = `probe ${++this.harm.probes}\n`;
    const ms = await this.#counted("failedProbes", async () => {
      const request = {
        container_id: this.target,
        cmd: ["echo", text.trim()],
        timeout: toLong(30),
      };
      const { exit_code, stdout } = await this.#daemon.client.ExecSync(request);
      const got = `${exit_code} ${Buffer.from(stdout).toString()}`;
      if (got !== `0 ${text}`)
        throw new Error(`${JSON.stringify(got)} for ${JSON.stringify(text)}`);
    });
    this.harm.probeMsMax = Math.max(this.harm.probeMsMax, ms);
  }

  async #newStreams(): Promise<void> {
    this.harm.streams += 2;
    await this.#counted("failedStreams", async () => {
      const asked = { stdout: true };
      const request = { container_id: this.target, cmd: ["echo", "streamed"], ...asked };
      const { url } = await this.#daemon.client.Exec(request);
      const { stdout, status } = await (await converse(url, asked)).end;
      const got = `${exitCodeIn(status)} ${stdout}`;
      if (got !== "0 streamed\n") throw new Error(`exec stream: ${got}`);
    });
    await this.#counted("failedStreams", async () => {
      const echo = await this.#forwardEcho();
      await echo.send("there and back");
      await echo.end();
      if (echo.heard() !== "there and back") throw new Error(`port-forward: ${echo.heard()}`);
    });
  }

  async #execEcho(): Promise<Echo> {
    const asked = { stdin: true, stdout: true };
    const request = { container_id: this.target, cmd: ["cat"], ...asked };
    const { url } = await this.#daemon.client.Exec(request);
    const talk = await converse(url, asked, "WebSocket");
    return {
      name: "exec stream",
      send: (text) => talk.type(text),
      heard: () => talk.heard.stdout,
      end: async () => {
        await talk.endInput();
        await talk.end;
      },
    };
  }

  async #forwardEcho(): Promise<Echo> {
    const request = { pod_sandbox_id: this.#podId, port: [echoPort] };
    const { url } = await this.#daemon.client.PortForward(request);
    const session = await openSpdy(url, "portforward.k8s.io");
    const running = session.run().catch(() => {});
    const headers = { port: String(echoPort), requestid: "0" };
    const error = await session.open({ ...headers, streamtype: "error" });
    await error.end();
    const data = await session.open({ ...headers, streamtype: "data" });
    let heard = "";
    const hear = async (stream: SpdyStream) => {
      for await (const chunk of stream.chunks()) heard += chunk.toString("latin1");
    };
    // The error stream says why there is no connection.
    const reading = Promise.all([hear(data), hear(error)]);
    return {
      name: "port-forward",
      send: (text) => data.write(Buffer.from(text)),
      heard: () => heard,
      end: async () => {
        await data.end();
        await reading;
        session.wire.close();
        await running;
      },
    };
  }

  /** Sends numbered lines until the end, and compares what comes back. */
  async #follow(echo: Echo): Promise<void> {
    let sent = "";
    try {
      for (let line = 1; !this.#isOver; line += linesAtOnce) {
        const text = numbers(line, line + linesAtOnce - 1);
        sent += text;
        const start = performance.now();
        await echo.send(text);
        await until(
          `${echo.name}: ${text.length} bytes are back`,
          () => echo.heard().length >= sent.length,
        );
        this.harm.echoMsMax = Math.max(this.harm.echoMsMax, performance.now() - start);
        await sleep(echoEveryMs);
      }
      await echo.end();
    } catch (error) {
      this.#problem(`${echo.name}: ${messageOf(error)}`);
    }
    this.#compare(echo.name, echo.heard(), sent);
  }

  #compare(name: string, got: string, wanted: string): void {
    this.harm.bytes += wanted.length;
    const words = difference(got, wanted);
    if (words === undefined) return;
    this.harm.lostBytes += wanted.length - commonLength(got, wanted);
    this.#problem(`${name}: ${words}`);
  }

  /** Ends all streams and the writer, whose log must be whole. */
  async finish(): Promise<void> {
    this.#stop.abort();
    await this.#running;
    await this.#daemon.client.StopContainer({ container_id: this.#writer, timeout: toLong(30) });
    const { status } = await this.#daemon.exited(this.#writer);
    const got = logText(readFileSync(status.log_path!, "utf8"));
    const last = Number(/^END (\d+)$/m.exec(got)?.[1] ?? Number.NaN);
    if (Number.isNaN(last)) this.#problem("the log has no end");
    this.#compare(
      "log",
      got,
      Number.isNaN(last) ? `${got}END\n` : `${numbers(1, last)}END ${last}\n`,
    );
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    this.#servers.kill("SIGKILL");
    await this.#running.catch(() => {});
  }
}

function commonLength(one: string, other: string): number {
  const length = Math.min(one.length, other.length);
  let at = 0;
  while (at < length && one[at] === other[at]) at++;
  return at;
}
