// Provides the bad neighbours of test/neighbours.ts that are clients: floods of frames, heads and output, sessions that
// end badly, and URLs and sessions that nobody uses.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../src/base/errors.ts";
import { openSpdy } from "../src/cli/stream_client.ts";
import type { SpdySession } from "../src/sys/spdy.ts";
import { until } from "./expect.ts";
import { type Attack, type Attacker, engine, type Stage } from "./neighbours_stage.ts";
import { converse } from "./stream_client.ts";

const nothing = { [Symbol.asyncDispose]: async () => {} };
const protocol = "portforward.k8s.io";
/** Nobody listens there. */
const closedPort = 1;
/** More than a queue of a stream takes. */
const underWay = Buffer.alloc(300 << 10);
const sessionsAtOnce = 25;
const stuckMs = 500;

type Target = "pod" | "container";

/** Runs the flood as a process of its own. */
async function flood(
  stage: Stage,
  kind: string,
  { target, port = 0, seconds }: { target: Target; port?: number; seconds: number },
) {
  const id = target === "pod" ? stage.pod.id : stage.container;
  const script = join(import.meta.dirname, "neighbours_flood.ts");
  const argv = [script, kind, stage.daemon.socket, id, String(port), String(seconds)];
  const child = spawn(engine, argv, { stdio: ["ignore", "ignore", "inherit"] });
  const late = setTimeout(() => child.kill("SIGKILL"), seconds * 1000 + 60_000);
  const [code] = (await once(child, "exit")) as [number | null];
  clearTimeout(late);
  if (code !== 0) throw new Error(`the flood ${kind} ended with ${code ?? "a signal"}`);
}

function flooding(name: string, item: string, about: string, target: Target): Attack {
  return {
    name,
    item,
    about,
    prepare: async (stage) => ({
      attack: (seconds) => flood(stage, name, { target, seconds }),
      ...nothing,
    }),
  };
}

/** Clients that send HTTP heads to a port. */
function heads(name: string, about: string, portOf: (stage: Stage) => Promise<number>): Attack {
  const item = "A2";
  const prepare = async (stage: Stage): Promise<Attacker> => {
    const port = await portOf(stage);
    const attack = (seconds: number) =>
      flood(stage, "http-heads", { target: "pod", port, seconds });
    return { attack, ...nothing };
  };
  return { name, item, about, prepare };
}

async function streamPort({ daemon, container }: Stage): Promise<number> {
  const { url } = await daemon.client.Exec({
    container_id: container,
    cmd: ["true"],
    stdout: true,
  });
  return Number(new URL(url).port);
}

async function openForward({ daemon, pod }: Stage): Promise<SpdySession> {
  const request = { pod_sandbox_id: pod.id, port: [closedPort] };
  const { url } = await daemon.client.PortForward(request);
  return openSpdy(url, protocol);
}

/** Opens sessions that stay idle until one is refused; returns how many could be opened, and how to close them. */
async function openAll(stage: Stage, most: number) {
  const sessions: SpdySession[] = [];
  let refused: string | undefined;
  while (refused === undefined && sessions.length < most) {
    const opening = Array.from({ length: Math.min(50, most - sessions.length) }, () =>
      openForward(stage),
    );
    for (const one of await Promise.allSettled(opening)) {
      if (one.status === "fulfilled") sessions.push(one.value);
      else refused = messageOf(one.reason);
    }
  }
  const close = () => sessions.forEach(({ wire }) => wire.close());
  return { count: sessions.length, refused, close };
}

/** Opens a session, and ends it badly. @throws Error when it is refused. */
type Ending = (stage: Stage) => Promise<void>;

/** Writes that may wait for ever, where the daemon takes no more. */
async function stuck(act: () => Promise<unknown>): Promise<void> {
  await Promise.race([act().catch(() => {}), sleep(stuckMs)]);
}

async function cutOffForward(stage: Stage, act: (session: SpdySession) => Promise<unknown>) {
  const session = await openForward(stage);
  session.run().catch(() => {});
  await stuck(() => act(session));
  session.wire.close();
}

/** A data stream whose error stream never comes, with bytes that nobody takes. */
const withoutError: Ending = (stage) =>
  cutOffForward(stage, async (session) => {
    const headers = { streamtype: "data", port: String(closedPort), requestid: "0" };
    await (await session.open(headers)).write(underWay);
  });

/** A forward to a closed port while more is under way than a queue takes. */
const toClosedPort: Ending = (stage) =>
  cutOffForward(stage, async (session) => {
    const headers = { port: String(closedPort), requestid: "0" };
    const error = await session.open({ ...headers, streamtype: "error" });
    await error.end();
    const data = await session.open({ ...headers, streamtype: "data" });
    await data.write(underWay);
    await data.write(underWay);
  });

/** A command that never reads its input, over either protocol. */
const unreadInput: Ending = async ({ daemon, container }) => {
  const asked = { stdin: true, stdout: true };
  const request = { container_id: container, cmd: ["sleep", "1000"], ...asked };
  const { url } = await daemon.client.Exec(request);
  const talk = await converse(url, asked, Math.random() < 0.5 ? "SPDY" : "WebSocket");
  talk.end.catch(() => {});
  await stuck(async () => {
    for (let count = 0; count < 4; count++) await talk.type(underWay);
  });
  talk.vanish();
};

type Sessions = { name: string; about: string; atOnce: number; one: Ending };

/** Sessions that end badly: each gives its slot back, so that none of the next is refused. */
function sessions({ name, about, atOnce, one }: Sessions): Attack {
  const prepare = async (stage: Stage): Promise<Attacker> => {
    let made = 0;
    const refused: string[] = [];
    const next = async () => {
      made++;
      await one(stage).catch((error: unknown) => refused.push(messageOf(error)));
    };
    const attack = async (seconds: number) => {
      for (const end = performance.now() + seconds * 1000; performance.now() < end;) {
        const failed = refused.length;
        await Promise.all(Array.from({ length: atOnce }, next));
        if (refused.length > failed) await sleep(100);
      }
    };
    const check = async () => {
      // A pod that has 1,000 sessions open is refused itself; once they have ended, it is served again.
      const accepted = until("a session is accepted again", () =>
        one(stage).then(
          () => true,
          () => false,
        ),
      );
      const faults = await accepted.then(
        () => [],
        (error: unknown) => [messageOf(error)],
      );
      const notes = [`${refused.length} of ${made} sessions are refused: ${refused.at(-1) ?? ""}`];
      return { faults, notes };
    };
    return { attack, check, ...nothing };
  };
  return { name, item: "B7", about, prepare };
}

const unusedUrls: Attack = {
  name: "unused-urls",
  item: "B8",
  about: "1,200 URLs of one pod that nobody uses",
  prepare: async ({ daemon, container }) => ({
    async attack(seconds) {
      const ask = () =>
        daemon.client.Exec({ container_id: container, cmd: ["true"], stdout: true });
      const end = performance.now() + seconds * 1000;
      for (let left = 1_200; left > 0; left -= 100)
        await Promise.allSettled(Array.from({ length: 100 }, ask));
      await sleep(Math.max(0, end - performance.now()));
    },
    ...nothing,
  }),
};

const idleSessions: Attack = {
  name: "idle-sessions",
  item: "B8",
  about: "1,010 idle sessions of one pod",
  prepare: async (stage) => {
    let close = () => {};
    let opened = 0;
    return {
      async attack(seconds) {
        const end = performance.now() + seconds * 1000;
        const all = await openAll(stage, 1_010);
        const earlier = close;
        close = () => (earlier(), all.close());
        opened += all.count;
        await sleep(Math.max(0, end - performance.now()));
      },
      check: async () => ({ faults: [], notes: [`${opened} sessions were open`] }),
      [Symbol.asyncDispose]: async () => close(),
    };
  },
};

export const streamAttacks: Attack[] = [
  flooding("spdy-frames", "A1", "8-byte data frames of an unknown SPDY stream", "pod"),
  flooding("ws-pongs", "A1", "WebSocket pongs of 6 bytes", "container"),
  flooding("resize-braces", "A1", "} on the resize channel of a terminal", "container"),
  flooding("ws-pings", "-", "WebSocket pings, whose answers nobody reads", "container"),
  flooding("ws-empty-stdin", "-", "empty messages on the input channel", "container"),
  flooding("resize-sizes", "-", "sizes of a terminal, one after the other", "container"),
  heads("http-heads", "heads with blanks at the stream port, 8 clients", streamPort),
  heads(
    "http-heads-metrics",
    "the same at the metrics' port",
    async ({ metricsPort }) => metricsPort,
  ),
  flooding("spdy-headers", "A5", "SPDY header blocks that inflate to 64 KiB each", "pod"),
  sessions({
    name: "forward-without-error",
    about: "port-forwards without their error stream, cut off",
    atOnce: sessionsAtOnce,
    one: withoutError,
  }),
  sessions({
    name: "forward-closed-port",
    about: "port-forwards to a closed port, cut off",
    atOnce: sessionsAtOnce,
    one: toClosedPort,
  }),
  sessions({
    name: "exec-unread-input",
    about: "execs that do not read their input, cut off",
    atOnce: 4,
    one: unreadInput,
  }),
  unusedUrls,
  idleSessions,
  flooding("big-execs", "A5", "20 ExecSync at once with 16 MiB of output each", "container"),
  flooding("big-outputs", "-", "4 exec streams of endless output", "container"),
  flooding(
    "unread-outputs",
    "-",
    "20 exec streams of endless output that nobody reads",
    "container",
  ),
];
