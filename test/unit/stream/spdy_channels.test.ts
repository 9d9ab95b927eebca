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

/** More than a queue holds. */
const tooMuch = Buffer.alloc(300 << 10);
const hangup = new AbortController().signal;
const all = { stdin: true, stdout: true, stderr: true, tty: false };

describe("spdyChannels", () => {
  test("connects the streams in any order and sends the outcome as JSON in v4", async () => {
    const { server, client, close } = connect();
    const opening = spdyChannels(server, all, { protocol: "v4.channel.k8s.io", hangup });
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
      { protocol, hangup },
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
      { protocol, hangup },
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
      { protocol: "v4.channel.k8s.io", hangup },
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
    const opening = spdyChannels(server, all, { protocol: "v4.channel.k8s.io", hangup });
    await client.open({ streamtype: "error" });
    close();
    expect(opening).rejects.toThrow("disconnected before it opened error, stdin, stdout, stderr");
  });
});

test("a client that has filled stdin and disconnects before it has opened all streams ends its session", async () => {
  const { server, client, close } = connect();
  const left = new AbortController();
  const protocol = "v4.channel.k8s.io";
  const opening = spdyChannels(server, all, { protocol, hangup: left.signal });
  const failed = opening.then(String, String);
  const stdin = await client.open({ streamtype: "stdin" });
  await stdin.write(tooMuch);
  const answered = client.open({ streamtype: "error" }).then(String, String);
  left.abort();
  expect(await failed).toContain("waiting for the client's streams");
  close();
  expect(await answered).toContain("connection has ended");
});

test("channels that are disposed of take no more, and hold up nothing", async () => {
  const { server, client, close } = connect();
  const wanted = { ...all, stdout: false, stderr: false };
  const opening = spdyChannels(server, wanted, { protocol: "v4.channel.k8s.io", hangup });
  const stdin = await client.open({ streamtype: "stdin" });
  const error = await client.open({ streamtype: "error" });
  const { channels, ended } = await opening;
  await stdin.write(tooMuch);
  channels[Symbol.dispose]();
  await error.write(Buffer.from("a frame behind the full queue"));
  await client.open({ streamtype: "another" }); // a round trip
  close();
  await ended;
});

describe("forwardSpdy", () => {
  /** In a pod without a network, so that each pair gets an error. */
  function serve() {
    const { server, client, close } = connect();
    const sockets = { take: async () => undefined } as unknown as NetnsSockets;
    const left = new AbortController();
    const served = forwardSpdy(server, {
      sockets,
      addresses: localhost,
      poller: {} as Poller,
      hangup: left.signal,
    });
    const open = (streamtype: string, port: string, requestid?: string) =>
      client.open({ streamtype, port, ...(requestid !== undefined && { requestid }) });
    return { open, served, close, left };
  }

  test("ends at a disconnect after much data without an error stream", async () => {
    const { open, served, close, left } = serve();
    const data = await open("data", "80", "0");
    await data.write(tooMuch);
    left.abort();
    close();
    await served;
  });

  test("a port without listener does not hold up the session, however much was sent to it", async () => {
    const { open, served, close } = serve();
    const data = await open("data", "80", "0");
    const error = await open("error", "80", "0");
    await data.write(tooMuch);
    expect(await collected(error.chunks())).toContain("cannot forward to port 80");
    await open("error", "81", "1"); // a round trip
    close();
    await served;
  });

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
