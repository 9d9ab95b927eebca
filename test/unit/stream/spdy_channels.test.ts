// Tests channels and port-forward pairs that a SPDY client in memory opens.
import { describe, expect, test } from "bun:test";
import type { NetnsSockets } from "../../../src/node/netns_sockets.ts";
import { localhost } from "../../../src/stream/port_forward.ts";
import { forwardSpdy } from "../../../src/stream/port_forward_spdy.ts";
import { spdyChannels } from "../../../src/stream/spdy_channels.ts";
import type { Poller } from "../../../src/sys/poller.ts";
import { SpdySession } from "../../../src/sys/spdy.ts";
import { collected, wirePair } from "../../stream/wires.ts";

function connect() {
  const [server, wire] = wirePair();
  const client = new SpdySession(wire, () => {});
  client.run().catch(() => {});
  return { server, client, close: () => wire.close() };
}

const all = { stdin: true, stdout: true, stderr: true, tty: false };

describe("spdyChannels", () => {
  test("connects the streams in any order and sends the outcome as JSON in v4", async () => {
    const { server, client, close } = connect();
    const opening = spdyChannels(server, all, "v4.channel.k8s.io");
    const [stderr, stdin, error, stdout] = await Promise.all(
      ["stderr", "stdin", "error", "stdout"].map((streamtype) => client.open({ streamtype })),
    );
    const { channels, ended } = await opening;
    await stdin!.write(Buffer.from("in"));
    await stdin!.end();
    expect(await collected(channels.stdin)).toBe("in");
    await channels.write("stdout", Buffer.from("out"));
    await channels.write("stderr", Buffer.from("err"));
    await channels.finish({ exitCode: 3 });
    expect(await collected(stdout!.chunks())).toBe("out");
    expect(await collected(stderr!.chunks())).toBe("err");
    expect(await collected(error!.chunks())).toContain('"ExitCode"');
    close();
    await ended;
  });

  test.each([
    ["v4.channel.k8s.io", { exitCode: 0 }, '{"metadata":{},"status":"Success"}'],
    ["v3.channel.k8s.io", { exitCode: 0 }, ""],
    ["v2.channel.k8s.io", { error: "no" }, "no"],
  ])("sends the outcome of %s %j as %j", async (protocol, outcome, text) => {
    const { server, client } = connect();
    const opening = spdyChannels(
      server,
      { ...all, stdin: false, stdout: false, stderr: false },
      protocol,
    );
    const error = await client.open({ streamtype: "error" });
    const { channels } = await opening;
    await channels.finish(outcome);
    expect(await collected(error.chunks())).toBe(text);
  });

  test.each([
    ["v4.channel.k8s.io", true],
    ["v3.channel.k8s.io", true],
    ["v2.channel.k8s.io", false],
  ])("of a terminal in %s has sizes: %p", async (protocol, hasSizes) => {
    const { server, client, close } = connect();
    const opening = spdyChannels(
      server,
      { stdin: false, stdout: true, stderr: false, tty: true },
      protocol,
    );
    await client.open({ streamtype: "error" });
    await client.open({ streamtype: "stdout" });
    const resize = await client.open({ streamtype: "resize" });
    if (hasSizes) await resize.write(Buffer.from('{"Width":80,"Height":24}')).catch(() => {});
    await resize.end().catch(() => {});
    const { channels } = await opening;
    const sizes = await Array.fromAsync(channels.resizes);
    expect(sizes).toEqual(hasSizes ? [{ columns: 80, rows: 24 }] : []);
    expect(resize.gone.aborted).toBe(!hasSizes);
    close();
  });

  test("resets streams that were not requested or come twice", async () => {
    const { server, client } = connect();
    const opening = spdyChannels(
      server,
      { ...all, stdin: false, stderr: false },
      "v4.channel.k8s.io",
    );
    const wrong = [
      await client.open({ streamtype: "stdin" }),
      await client.open({}),
      (await client.open({ streamtype: "error" })) && (await client.open({ streamtype: "error" })),
    ];
    await client.open({ streamtype: "stdout" });
    await opening;
    expect(wrong.map(({ gone }) => gone.aborted)).toEqual([true, true, true]);
  });

  test("fails if the client disconnects before it has opened its streams", async () => {
    const { server, client, close } = connect();
    const opening = spdyChannels(server, all, "v4.channel.k8s.io");
    await client.open({ streamtype: "error" });
    close();
    expect(opening).rejects.toThrow("disconnected before it opened error, stdin, stdout, stderr");
  });
});

describe("forwardSpdy", () => {
  /** In a pod without a network, so that each pair gets an error. */
  function serve() {
    const { server, client, close } = connect();
    const sockets = { take: async () => undefined } as unknown as NetnsSockets;
    const { signal } = new AbortController();
    const served = forwardSpdy(server, {
      sockets,
      addresses: localhost,
      poller: {} as Poller,
      hangup: signal,
    });
    const open = (streamtype: string, port: string, requestid?: string) =>
      client.open({ streamtype, port, ...(requestid !== undefined && { requestid }) });
    return { open, served, close };
  }

  test("pairs streams by request id, in any order", async () => {
    const { open, served, close } = serve();
    const first = await open("error", "80", "0");
    const second = await open("error", "81", "1");
    await open("data", "81", "1");
    await open("data", "80", "0");
    expect(await collected(first.chunks())).toContain("cannot forward to port 80");
    expect(await collected(second.chunks())).toContain("cannot forward to port 81");
    close();
    await served;
  });

  test("pairs streams of clients without request ids by their order", async () => {
    const { open, served, close } = serve();
    const error = await open("error", "80");
    await open("data", "80");
    expect(await collected(error.chunks())).toContain("port 80");
    close();
    await served;
  });

  test.each<[string, [string, string, string?][]]>([
    ["another type", [["stdin", "80", "0"]]],
    ["port 0", [["data", "0", "0"]]],
    ["port 65536", [["data", "65536", "0"]]],
    ["a port that is no number", [["data", "x", "0"]]],
    ["a fraction for a port", [["data", "1.5", "0"]]],
    [
      "the same type twice",
      [
        ["data", "80", "0"],
        ["data", "80", "0"],
      ],
    ],
    [
      "another port than its pair",
      [
        ["data", "80", "0"],
        ["error", "81", "0"],
      ],
    ],
  ])("resets a stream of %s", async (_, headers) => {
    const { open, served, close } = serve();
    const streams = [];
    for (const one of headers) streams.push(await open(...one));
    await open("error", "99", "9"); // a round trip, so that the reset has arrived
    expect(streams.at(-1)!.gone.aborted).toBe(true);
    expect(streams.slice(0, -1).every(({ gone }) => !gone.aborted)).toBe(true);
    close();
    await served;
  });
});
