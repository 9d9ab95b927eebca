// Tests tokens, HTTP heads, protocol negotiation and terminal sizes of the stream server.
import { describe, expect, test } from "bun:test";
import { NewestSize, statusJson, statusText } from "../../../src/stream/channels.ts";
import { negotiate, parseRequestLine, type StreamSession } from "../../../src/stream/server.ts";
import { Tokens } from "../../../src/stream/tokens.ts";
import { parseHead, readHead, words } from "../../../src/sys/http_upgrade.ts";
import { collected, played } from "../../stream/wires.ts";

describe("tokens", () => {
  test("are valid once, within a minute", () => {
    let now = 0;
    const tokens = new Tokens<{ pod: string }>(() => now);
    const value = { pod: "a" };
    const [one, other] = [tokens.put(value), tokens.put(value)];
    expect(tokens.find(one)).toBe(value);
    expect(tokens.take(one)).toBe(value);
    expect(tokens.find(one) ?? tokens.take(one)).toBeUndefined();
    now = 59_999;
    const late = tokens.put(value);
    now = 60_000;
    expect(tokens.take(other)).toBeUndefined();
    expect(tokens.take(late)).toBe(value);
    expect(tokens.take("never")).toBeUndefined();
  });

  test("are limited to a thousand: the pod that has most loses its oldest, others none", () => {
    const tokens = new Tokens<{ pod: string }>(() => 0);
    const others = ["b", "c"].map((pod) => tokens.put({ pod }));
    const greedy = Array.from({ length: 5_000 }, () => tokens.put({ pod: "a" }));
    const late = tokens.put({ pod: "d" });
    expect([...others, late].map((token) => tokens.take(token)?.pod)).toEqual(["b", "c", "d"]);
    const left = greedy.filter((token) => tokens.take(token) !== undefined);
    expect(left).toEqual(greedy.slice(-997));
  });
});

describe("an HTTP head", () => {
  const text = "GET /exec/abc HTTP/1.1\r\nHost: x\r\nUPGRADE: a, b\r\nupgrade:c\r\n\r\n";

  test.each([1, 3, 1000])(
    "is read in pieces of %d bytes; the bytes after it stay unread",
    async (size) => {
      const { head, rest } = await readHead(played(Buffer.from(`${text}the rest`), size));
      expect(head.line).toBe("GET /exec/abc HTTP/1.1");
      expect(words(head, "upgrade")).toEqual(["a", "b", "c"]);
      expect(await collected(rest.chunks())).toBe("the rest");
    },
  );

  test("is refused if it is too long, truncated or invalid", () => {
    const long = `GET / HTTP/1.1\r\nx: ${"y".repeat(20_000)}\r\n\r\n`;
    expect(readHead(played(Buffer.from(long), 100))).rejects.toThrow("16384 bytes");
    expect(readHead(played(Buffer.from(text.slice(0, 30))))).rejects.toThrow("ended");
    for (const line of ["no header", ": no name", "a b: c", "a:\rb", "a:\nb"]) {
      expect(() => parseHead(`GET / HTTP/1.1\r\n${line}`)).toThrow("no HTTP header");
    }
  });
});

describe("the protocol", () => {
  const session: StreamSession = {
    pod: "a-pod",
    kind: "exec",
    spdy: ["v4", "v3", "v1"],
    websocket: ["w5", "w4", ""],
    serve: () => Promise.resolve(),
  };
  const asked = (line: string, headers: string[], from = session) =>
    negotiate(parseHead([`${line} HTTP/1.1`, ...headers].join("\r\n")), from);
  const chosen = (...headers: string[]) => asked("GET /", headers);
  const spdy = ["Connection: Upgrade", "Upgrade: SPDY/3.1"];
  const key = "Sec-WebSocket-Key: k";
  const version = "Sec-WebSocket-Version: 13";
  const websocket = ["Connection: Upgrade", "Upgrade: websocket", key, version];

  test("is the client's first supported choice; the oldest for SPDY clients that name none", () => {
    const name = "X-Stream-Protocol-Version";
    expect(chosen(...spdy, `${name}: v9`, `${name}: v3, v4`)).toMatchObject({ protocol: "v3" });
    expect(chosen(...spdy)).toMatchObject({ over: "spdy", protocol: "v1" });
    const offer = "Sec-WebSocket-Protocol: w9, w4, w5";
    expect(chosen(...websocket, offer)).toMatchObject({ over: "websocket", protocol: "w4" });
  });

  test("is empty over WebSocket if the client names none, and not in the response", () => {
    for (const more of [[], ["Sec-WebSocket-Protocol:"]]) {
      const answer = chosen(...websocket, ...more);
      expect(answer).toMatchObject({ over: "websocket", protocol: "" });
      expect(answer.headers!.map(([name]) => name)).not.toContain("Sec-WebSocket-Protocol");
    }
    const strict = asked("GET /", websocket, { ...session, websocket: ["w5"] });
    expect(strict).toMatchObject({ status: "403 Forbidden" });
    expect((strict as { message: string }).message).toContain("offers none at all");
  });

  test("is refused with 403 if there is none in common", () => {
    const refused = chosen(...spdy, "X-Stream-Protocol-Version: v9");
    expect(refused).toMatchObject({ status: "403 Forbidden" });
    expect(refused.headers).toContainEqual(["X-Accepted-Stream-Protocol-Versions", "v4"]);
    const other = chosen(...websocket, "Sec-WebSocket-Protocol: w9");
    expect(other).toMatchObject({ status: "403 Forbidden" });
  });

  test("needs Connection: Upgrade, in any case, among others, over several lines", () => {
    for (const lines of [
      ["connection: keep-alive, uPGRADE"],
      ["Connection: keep-alive", "Connection: Upgrade"],
    ]) {
      expect(chosen(...lines, "UPGRADE: spdy/3.1")).toMatchObject({ over: "spdy" });
      const lower = ["upgrade: h2c", "upgrade: WEBSOCKET", key, version];
      expect(chosen(...lines, ...lower)).toMatchObject({ over: "websocket" });
    }
    const bad = { status: "400 Bad Request" };
    expect(chosen(spdy[1]!)).toMatchObject(bad);
    expect(chosen("Connection: close", spdy[1]!)).toMatchObject(bad);
    expect(chosen(...websocket.slice(1))).toMatchObject(bad);
    expect(chosen("Connection: Upgrade", "Upgrade: SPDY/2")).toMatchObject(bad);
    expect(chosen()).toMatchObject(bad);
  });

  test("WebSocket needs GET, a key and version 13", () => {
    const bad = { status: "400 Bad Request" };
    expect(chosen(...websocket.slice(0, 3))).toMatchObject(bad);
    expect(chosen(...websocket.slice(0, 3), "Sec-WebSocket-Version: 8")).toMatchObject(bad);
    expect(chosen(...websocket.slice(0, 2), "Sec-WebSocket-Key:", version)).toMatchObject(bad);
    const post = asked("POST /", websocket);
    expect(post).toMatchObject({ status: "405 Method Not Allowed", headers: [["Allow", "GET"]] });
    expect(asked("POST /", spdy)).toMatchObject({ over: "spdy" });
  });
});

describe("parseRequestLine", () => {
  test.each([
    ["GET /exec/abc-_1 HTTP/1.1", "exec", "abc-_1"],
    ["POST /attach/t?x=1 HTTP/1.0", "attach", "t"],
    ["GET http://127.0.0.1:1/portforward/t HTTP/1.1", "portforward", "t"],
    ["GET /exec/a/b HTTP/1.1", "", ""],
    ["GET /exec HTTP/1.1", "", ""],
    ["GET / HTTP/1.1", "", ""],
  ])("of %s has the kind %j and the token %j", (line, kind, token) => {
    expect(parseRequestLine(line)).toEqual({ kind, token });
  });

  test.each([
    ["GET /exec/a HTTP/2", "400 Bad Request"],
    ["GET exec/a HTTP/1.1", "400 Bad Request"],
    ["GET /exec/a", "400 Bad Request"],
    ["PUT /exec/a HTTP/1.1", "405 Method Not Allowed"],
  ])("refuses %s with %s", (line, status) => {
    expect(parseRequestLine(line)).toMatchObject({ status });
  });
});

/** The sizes that come out when each text is read before the next one is there. */
async function sizesFrom(texts: Iterable<string | Buffer>): Promise<string[]> {
  const found: string[] = [];
  for (const text of texts) {
    const newest = new NewestSize();
    for (const part of typeof text === "string" ? text : [text]) newest.push(Buffer.from(part));
    newest.end();
    for await (const { columns, rows } of newest.sizes()) found.push(`${columns}x${rows}`);
  }
  return found;
}

describe("a head", () => {
  test("has the values of its headers without the blanks around them", () => {
    const { headers } = parseHead("GET / HTTP/1.1\r\nA: \t b  c\t \r\na:d\r\nB:\r\nC:  ");
    expect([...headers]).toEqual([
      ["a", ["b  c", "d"]],
      ["b", [""]],
      ["c", [""]],
    ]);
  });

  test.each([
    ["blanks inside of a value", `X: a: b${" ".repeat(16_200)}b`],
    ["one header many times", Array(4_000).fill("a:").join("\r\n")],
  ])("with %s is read in time that grows with its length alone", (_, headers) => {
    const begin = performance.now();
    for (let round = 0; round < 100; round++) parseHead(`GET / HTTP/1.1\r\n${headers}`);
    expect(performance.now() - begin).toBeLessThan(3_000); // the blanks took 19 s
  });

  test("that comes byte by byte is copied and searched once", async () => {
    const text = `GET / HTTP/1.1\r\nX: ${"y".repeat(16_000)}\r\n\r\n`;
    const begin = performance.now();
    for (let round = 0; round < 10; round++) {
      const { head } = await readHead(played(Buffer.from(text), 1));
      expect(head.headers.get("x")?.[0]).toHaveLength(16_000);
    }
    expect(performance.now() - begin).toBeLessThan(5_000);
  });
});

describe("terminal sizes", () => {
  const size = '{"Width":132,"Height":50}';

  test("are read from JSON in any chunks; anything else is ignored", async () => {
    const others = ['{"Width":0,"Height":1}', '{"a":1}', "x}", '{"Width":3,"Height":70000}', "}{"];
    expect(await sizesFrom([size, Buffer.from(size), ...others])).toEqual(["132x50", "132x50"]);
    expect(await sizesFrom([Buffer.from(`{"Width":1,"Height":1}${size}}}{"Wid`)])).toEqual([
      "132x50",
    ]);
    const newest = new NewestSize();
    for (let count = 0; count < 100; count++) newest.push(Buffer.alloc(1000, "x"));
    newest.push(Buffer.from(size));
    expect((await newest.sizes().next()).value).toEqual({ columns: 132, rows: 50 });
  });

  test("that come while another is being set are skipped, except the newest", async () => {
    const newest = new NewestSize();
    const sizes = newest.sizes();
    newest.push(Buffer.from(size));
    expect((await sizes.next()).value).toEqual({ columns: 132, rows: 50 });
    for (let width = 1; width <= 1000; width++) {
      newest.push(Buffer.from(`{"Width":${width},"Height":1}`));
    }
    newest.end();
    expect(await Array.fromAsync(sizes)).toEqual([{ columns: 1000, rows: 1 }]);
  });

  test("a megabyte of closing braces is as quick as a megabyte of anything", async () => {
    const newest = new NewestSize();
    const begin = performance.now();
    newest.push(Buffer.alloc(1 << 20, "}"));
    expect(performance.now() - begin).toBeLessThan(200); // with a parse each: 2 s
  });
});

test("a status has the exit code as Kubernetes clients read it", () => {
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
