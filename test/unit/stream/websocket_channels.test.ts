// Tests channels that a WebSocket client in memory opens.
import { describe, expect, test } from "bun:test";
import { ChannelMessages } from "../../../src/stream/channel_messages.ts";
import type { WantedStreams } from "../../../src/stream/channels.ts";
import { websocketChannels } from "../../../src/stream/websocket_channels.ts";
import { channel } from "../../../src/sys/remote_command.ts";
import { WebSocketConnection } from "../../../src/sys/websocket.ts";
import { until } from "../../expect.ts";
import { collected, wirePair } from "../../stream/wires.ts";

const all = { stdin: true, stdout: true, stderr: true, tty: false };

async function connect(wanted: WantedStreams, protocol: string) {
  const [server, wire] = wirePair();
  const client = new ChannelMessages(new WebSocketConnection(wire, "client"), protocol);
  const received: string[] = [];
  const ended = (async () => {
    for await (const { channel, bytes } of client.pieces())
      received.push(`${channel} ${bytes.toString()}`);
  })();
  const opened = await websocketChannels(server, wanted, protocol);
  const { channels, ended: serverEnded } = opened;
  return { client, channels, received, ended, serverEnded, close: () => wire.close() };
}

describe("websocketChannels", () => {
  test("channels that are disposed of take no more, and hold up nothing", async () => {
    const { client, channels, received, close, serverEnded } = await connect(
      all,
      "v5.channel.k8s.io",
    );
    const sent = client.send(channel.stdin, Buffer.alloc(300 << 10));
    channels[Symbol.dispose]();
    await sent;
    await channels.finish({ exitCode: 0 });
    await until("the outcome has come", () => received.length > 1);
    close();
    await serverEnded;
  });

  test.each<[string, Partial<WantedStreams>, string]>([
    ["stdout", {}, "1 "],
    ["stderr", { stdout: false }, "2 "],
    ["the error channel", { stdout: false, stderr: false }, "3 "],
  ])(
    "sends an empty first message on %s, then only the streams requested",
    async (_, more, first) => {
      const wanted = { ...all, ...more };
      const { channels, received, ended } = await connect(wanted, "v4.channel.k8s.io");
      await channels.write("stdout", Buffer.from("out"));
      await channels.write("stderr", Buffer.from("err"));
      await channels.write("stdout", Buffer.alloc(0));
      await channels.finish({ exitCode: 0 });
      await ended;
      const output = [...(wanted.stdout ? ["1 out"] : []), ...(wanted.stderr ? ["2 err"] : [])];
      expect(received).toEqual([first, ...output, '3 {"metadata":{},"status":"Success"}']);
    },
  );

  test.each([
    ["channel.k8s.io", { exitCode: 0 }, []],
    ["channel.k8s.io", { error: "no" }, ["3 no"]],
    ["base64.channel.k8s.io", { error: "no" }, ["3 no"]],
  ])("before v4 (%s) sends the outcome %j as text", async (protocol, outcome, messages) => {
    const { channels, received, ended } = await connect(all, protocol);
    await channels.finish(outcome);
    await ended;
    expect(received.slice(1)).toEqual(messages);
  });

  test("passes on stdin and sizes, and ignores other channels", async () => {
    const { client, channels, close } = await connect({ ...all, tty: true }, "v4.channel.k8s.io");
    await client.send(channel.stdout, Buffer.from("ignored"));
    await client.send(channel.stdin, Buffer.from("in"));
    await client.send(channel.resize, Buffer.from('{"Width":80,"Height":24}'));
    await client.send(channel.close, Buffer.of(channel.stdin)); // not in v4
    await client.send(channel.stdin, Buffer.from("put"));
    close();
    expect(await collected(channels.stdin)).toBe("input");
    expect(await Array.fromAsync(channels.resizes)).toEqual([{ columns: 80, rows: 24 }]);
  });

  test("ends stdin in v5 when the client half-closes it", async () => {
    const { client, channels, close } = await connect(all, "v5.channel.k8s.io");
    await client.send(channel.stdin, Buffer.from("in"));
    await client.send(channel.close, Buffer.of(channel.stdout));
    await client.send(channel.close, Buffer.of(channel.stdin));
    expect(await collected(channels.stdin)).toBe("in");
    close();
  });

  test("discards stdin and sizes that were not requested", async () => {
    const { client, channels, close } = await connect(
      { ...all, stdin: false },
      "v4.channel.k8s.io",
    );
    await client.send(channel.stdin, Buffer.from("in"));
    await client.send(channel.resize, Buffer.from('{"Width":80,"Height":24}'));
    close();
    expect(await collected(channels.stdin)).toBe("");
    expect(await Array.fromAsync(channels.resizes)).toEqual([]);
  });
});
