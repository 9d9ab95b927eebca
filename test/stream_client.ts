// Connects to exec and attach streams for tests, by either protocol; collects each stream's text and the
// final status.
import { openSpdy, openWebSocket } from "../src/cli/stream_client.ts";
import type { SpdyStream } from "../src/sys/spdy.ts";
import { WebSocketConnection } from "../src/sys/websocket.ts";
import { until } from "./expect.ts";

export type Transport = "SPDY" | "WebSocket";
export type Asked = { stdin?: boolean; stdout?: boolean; stderr?: boolean; tty?: boolean };
export type Heard = { stdout: string; stderr: string; status: string };

/** A connected client. */
export type Conversation = {
  /** Text received so far. */
  heard: Heard;
  type(text: string | Uint8Array): Promise<void>;
  endInput(): Promise<void>;
  resize(columns: number, rows: number): Promise<void>;
  /** Waits until the server ends the stream. */
  end: Promise<Heard>;
  /** Closes the connection abruptly, like a killed client. */
  vanish(): void;
  /** Waits for a text. @throws Error after 15 s. */
  hears(text: string): Promise<void>;
};

/** Returns the exit code in a status of protocol v4. */
export function exitCodeIn(status: string): number {
  const { status: word, details } = JSON.parse(status) as {
    status: string;
    details?: { causes: { reason?: string; message: string }[] };
  };
  if (word === "Success") return 0;
  return Number(details?.causes.find(({ reason }) => reason === "ExitCode")?.message ?? Number.NaN);
}

export async function converse(
  url: string,
  asked: Asked,
  transport: Transport = "WebSocket",
): Promise<Conversation> {
  const heard: Heard = { stdout: "", stderr: "", status: "" };
  const open = transport === "SPDY" ? overSpdy : overWebSocket;
  const conversation = await open(url, asked, heard);
  const hears = async (text: string) => {
    await until(
      () => `${JSON.stringify(text)} is heard, not ${JSON.stringify(heard)}`,
      () => (heard.stdout + heard.stderr).includes(text),
    );
  };
  return { ...conversation, heard, hears };
}

type Opened = Omit<Conversation, "heard" | "hears">;

async function overSpdy(
  url: string,
  asked: Asked,
  heard: Heard,
  protocol = "v4.channel.k8s.io",
): Promise<Opened> {
  const session = await openSpdy(url, protocol);
  const ended = session.run();
  ended.catch(() => {});
  const streams: Record<string, SpdyStream> = {};
  const names = [
    "error",
    ...(["stdin", "stdout", "stderr"] as const).filter((name) => asked[name]),
  ];
  if (asked.tty === true) names.push("resize");
  for (const name of names) streams[name] = await session.open({ streamtype: name });
  const hear = async (name: string, as: keyof Heard) => {
    for await (const chunk of streams[name]?.chunks() ?? []) heard[as] += chunk.toString();
  };
  const all = [hear("error", "status"), hear("stdout", "stdout"), hear("stderr", "stderr")];
  return {
    type: (text) => streams["stdin"]!.write(Buffer.from(text)),
    endInput: () => streams["stdin"]!.end(),
    resize: (Width, Height) =>
      streams["resize"]!.write(Buffer.from(JSON.stringify({ Width, Height }))),
    end: Promise.all(all).then(() => (session.wire.close(), heard)),
    vanish: () => session.wire.close(),
  };
}

/** Parses the error stream of older protocols. */
export async function oldStatus(url: string, protocol: string): Promise<string> {
  const heard: Heard = { stdout: "", stderr: "", status: "" };
  const { end } = await overSpdy(url, { stdout: true, stderr: true }, heard, protocol);
  return (await end).status;
}

async function overWebSocket(url: string, _: Asked, heard: Heard): Promise<Opened> {
  const wire = await openWebSocket(url, "v5.channel.k8s.io");
  const connection = new WebSocketConnection(wire, "client");
  const send = (channel: number, bytes: string | Uint8Array) =>
    connection.send(Buffer.from([channel]), Buffer.from(bytes));
  const names = ["", "stdout", "stderr", "status"] as const;
  const end = (async () => {
    let channel = 0;
    for await (const { first, bytes } of connection.pieces()) {
      if (first) channel = bytes[0]!;
      const name = names[channel];
      if (name) heard[name] += bytes.subarray(first ? 1 : 0).toString();
    }
    wire.close();
    return heard;
  })();
  end.catch(() => {});
  return {
    type: (text) => send(0, text),
    endInput: () => send(255, new Uint8Array([0])),
    resize: (Width, Height) => send(4, JSON.stringify({ Width, Height })),
    end,
    vanish: () => wire.close(),
  };
}
