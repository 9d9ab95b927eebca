// The stream server's parts that need no container: tokens, HTTP heads, protocols, terminal sizes.
import { describe, expect, test } from "bun:test";
import { CriError } from "../../src/base/errors.ts";
import { SizeReader, statusJson, statusText } from "../../src/stream/channels.ts";
import { negotiate, type Session } from "../../src/stream/server.ts";
import { Tokens } from "../../src/stream/tokens.ts";
import { parseHead, readHead, words } from "../../src/sys/http_upgrade.ts";
import { collected, played } from "./wires.ts";

describe("tokens", () => {
  test("are good once, and for a minute", () => {
    let now = 0;
    const tokens = new Tokens<string>(() => now);
    const [one, other] = [tokens.put("one"), tokens.put("other")];
    expect(tokens.take(one)).toBe("one");
    expect(tokens.take(one)).toBeUndefined();
    now = 59_999;
    const late = tokens.put("late");
    now = 60_000;
    expect(tokens.take(other)).toBeUndefined();
    expect(tokens.take(late)).toBe("late");
    expect(tokens.take("never")).toBeUndefined();
  });

  test("wait a thousand at a time, and again when these are old", () => {
    let now = 0;
    const tokens = new Tokens<number>(() => now);
    const all = new Set(Array.from({ length: 1000 }, (_, index) => tokens.put(index)));
    expect(all.size).toBe(1000);
    expect(() => tokens.put(1000)).toThrow(CriError);
    now = 60_000;
    expect(tokens.take(tokens.put(1001))).toBe(1001);
  });
});

describe("an HTTP head", () => {
  const text = "GET /exec/abc HTTP/1.1\r\nHost: x\r\nUPGRADE: a, b\r\nupgrade:c\r\n\r\n";

  test.each([1, 3, 1000])("is read in pieces of %d bytes; what follows is left", async (size) => {
    const { head, rest } = await readHead(played(Buffer.from(`${text}the rest`), size));
    expect(head.line).toBe("GET /exec/abc HTTP/1.1");
    expect(words(head, "upgrade")).toEqual(["a", "b", "c"]);
    expect(await collected(rest.chunks())).toBe("the rest");
  });

  test("is refused when it is long, cut off, or none", () => {
    const long = `GET / HTTP/1.1\r\nx: ${"y".repeat(20_000)}\r\n\r\n`;
    expect(readHead(played(Buffer.from(long), 100))).rejects.toThrow("16384 bytes");
    expect(readHead(played(Buffer.from(text.slice(0, 30))))).rejects.toThrow("ended");
    expect(() => parseHead("GET / HTTP/1.1\r\nno header")).toThrow("no HTTP header");
  });
});

describe("the protocol", () => {
  const session: Session = {
    kind: "exec",
    spdy: ["v4", "v3", "v1"],
    websocket: ["w5", "w4"],
    serve: () => Promise.resolve(),
  };
  const chosen = (...headers: string[]) =>
    negotiate(parseHead(["GET / HTTP/1.1", ...headers].join("\r\n")), session);
  const spdy = ["Connection: Upgrade", "Upgrade: SPDY/3.1"];
  const websocket = ["Upgrade: websocket", "Sec-WebSocket-Key: k", "Sec-WebSocket-Version: 13"];

  test("is the client's first choice among ours; clients that name none speak the oldest", () => {
    const name = "X-Stream-Protocol-Version";
    expect(chosen(...spdy, `${name}: v9`, `${name}: v3, v4`)).toMatchObject({ protocol: "v3" });
    expect(chosen(...spdy)).toMatchObject({ over: "spdy", protocol: "v1" });
    const offer = "Sec-WebSocket-Protocol: w9, w4, w5";
    expect(chosen(...websocket, offer)).toMatchObject({ over: "websocket", protocol: "w4" });
  });

  test("is refused where there is none in common, or no upgrade is asked for", () => {
    const refused = chosen(...spdy, "X-Stream-Protocol-Version: v9");
    expect(refused).toMatchObject({ status: "403 Forbidden" });
    expect(refused.headers).toContainEqual(["X-Accepted-Stream-Protocol-Versions", "v4"]);
    const bad = { status: "400 Bad Request" };
    expect(chosen()).toMatchObject(bad);
    expect(chosen(...websocket)).toMatchObject(bad);
    expect(chosen(websocket[0]!, websocket[1]!)).toMatchObject(bad);
  });
});

test("sizes are read from JSON cut anywhere; what is none is passed over", () => {
  const text =
    '{"Width":80,"Height":24}\n{"Width":0,"Height":1}{"a":1}x}{"Width":3,"Height":70000}';
  const reader = new SizeReader();
  const sizes = Array.from(`${text}{"Width":132,"Height":50}`).flatMap((char) => [
    ...reader.push(Buffer.from(char)),
  ]);
  expect(sizes).toEqual([
    { columns: 80, rows: 24 },
    { columns: 132, rows: 50 },
  ]);
  for (let count = 0; count < 100; count++) {
    expect([...reader.push(Buffer.alloc(1000, "x"))]).toEqual([]);
  }
  expect([...reader.push(Buffer.from('{"Width":1,"Height":2}'))]).toHaveLength(1);
});

test("a status tells the exit code as Kubernetes's clients read it", () => {
  const parsed = (outcome: Parameters<typeof statusJson>[0]): unknown =>
    JSON.parse(statusJson(outcome).toString());
  expect(parsed({ exitCode: 0 })).toEqual({ metadata: {}, status: "Success" });
  expect(parsed({ exitCode: 7 })).toMatchObject({
    status: "Failure",
    reason: "NonZeroExitCode",
    details: { causes: [{ reason: "ExitCode", message: "7" }] },
  });
  expect(parsed({ error: "no" })).toMatchObject({ status: "Failure", reason: "InternalError" });
  expect(statusText({ exitCode: 0 })).toBe("");
  expect(statusText({ exitCode: 7 })).toContain("7");
});
