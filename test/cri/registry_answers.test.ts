// Tests registries with wrong, oversized, late or missing responses: each pull ends with a clear error,
// leaves nothing, and sends no secret to another host.
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { spawn, type ChildProcess } from "node:child_process";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import type { ServerResponse } from "node:http";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import type { AuthConfig } from "../../src/proto/types.ts";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";
import { makeImage, makeLayer } from "../image_maker.ts";

const image = makeImage([makeLayer([{ name: "f", data: randomBytes(100_000) }])]);
const user = { username: "me", password: "pass-s3cret" };
let fake: FakeRegistry;
let other: FakeRegistry;
let daemon: Daemon;
let certs: string;

beforeAll(async () => {
  certs = fs.mkdtempSync("/tmp/isulad-certs-");
  const config = { "registry-config-path": certs };
  daemon = await startDaemon({ config, image: false, network: false });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  fs.rmSync(certs, { recursive: true, force: true });
});
beforeEach(async () => {
  fake = await FakeRegistry.start();
  other = await FakeRegistry.start();
  fake.put("a/b", "1", image);
});
afterEach(async () => {
  await fake[Symbol.asyncDispose]();
  await other[Symbol.asyncDispose]();
  const { images } = await daemon.client.ListImages({});
  for (const { id } of images) await daemon.client.RemoveImage({ image: { image: id! } });
  // A later registry may get the port of this one.
  for (const folder of fs.readdirSync(certs)) fs.rmSync(join(certs, folder), { recursive: true });
});

const pull = async (auth?: AuthConfig, timeoutMs?: number) =>
  (await daemon.client.PullImage({ image: { image: `${fake.host}/a/b:1` }, auth }, { timeoutMs }))
    .image_ref;

/** The failure of a pull at its caller's deadline, which is long enough for a first request. */
async function lateFailure() {
  for (let deadlineMs = 1_500; ; deadlineMs *= 2) {
    const error = await failure(pull(undefined, deadlineMs));
    if (fake.requests.length > 0) return error;
  }
}

/** The failure of a pull that leaves nothing. */
async function refusal(auth?: AuthConfig) {
  const error = await failure(pull(auth));
  expect((await daemon.client.ListImages({})).images).toEqual([]);
  const left = ["layers/scratch", "images"].flatMap((name) =>
    fs.readdirSync(join(daemon.dir, "graph", name)),
  );
  expect(left).toEqual([]);
  expect(error.message + daemon.log).not.toContain("s3cret");
  return error;
}

function hostsToml(text: string): void {
  const folder = join(certs, fake.host.replace(":", "_") + "_");
  fs.mkdirSync(folder);
  fs.writeFileSync(join(folder, "hosts.toml"), text);
}

/** Everything needs a token, which `answer` gives or not. */
function wantToken(at: FakeRegistry, answer: (response: ServerResponse) => void, realm = at.url) {
  at.intercept = (request, response, url) => {
    if (url.pathname === "/token") answer(response);
    else if (request.headers.authorization === "Bearer good") return false;
    else {
      const challenge = `Bearer realm="${realm}/token",service="s"`;
      response.writeHead(401, { "www-authenticate": challenge }).end();
    }
    return true;
  };
}

/** Chunk after chunk of spaces, as fast as they are taken. */
function endless(response: ServerResponse, bytes: number): void {
  const chunk = Buffer.alloc(1 << 20, " ");
  let left = bytes;
  const more = () => {
    while (left > 0 && !response.destroyed) {
      left -= chunk.length;
      if (!response.write(chunk)) return void response.once("drain", more);
    }
    response.end();
  };
  more();
}

const memoryKiB = (field: string) => {
  const status = fs.readFileSync(`/proc/${daemon.pid}/status`, "utf8");
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(status)![1]);
};

describe("too much", () => {
  test("a manifest of 100 MB is refused without being read, with bounded memory", async () => {
    await pull(); // warm
    await daemon.client.RemoveImage({ image: { image: image.config.digest } });
    fake.intercept = (_request, response, url) => {
      if (!url.pathname.includes("/manifests/")) return false;
      endless(response.writeHead(200, { "content-type": image.manifest.mediaType }), 100 << 20);
      return true;
    };
    const before = memoryKiB("VmRSS");
    fs.writeFileSync(`/proc/${daemon.pid}/clear_refs`, "5"); // the peak counts from now on
    const error = await refusal();
    expect(error.code).toBe("RESOURCE_EXHAUSTED");
    expect(error.message).toContain("longer than");
    expect(memoryKiB("VmHWM") - before).toBeLessThan(40 << 10);
  });

  test.each<[string, (response: ServerResponse) => void]>([
    ["of 1 MB", (response) => response.end(JSON.stringify({ token: "x".repeat(1 << 20) }))],
    ["of 100 KB", (response) => response.end(JSON.stringify({ token: "x".repeat(100_000) }))],
    ["that never ends", (response) => endless(response, 100 << 20)],
  ])("a token %s is refused", async (_, answer) => {
    wantToken(fake, answer);
    expect((await refusal()).code).toBe("RESOURCE_EXHAUSTED");
  });

  test("a token of 1 MB that comes with the pull is INVALID_ARGUMENT", async () => {
    const error = await refusal({ registry_token: "x".repeat(1 << 20) });
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain("auth.registry_token");
    expect(fake.requests).toEqual([]);
  });

  test("a challenge of 1 MB, and one of nothing but quotes, are no challenge", async () => {
    for (const challenge of [`Bearer realm="${"x".repeat(1 << 20)}"`, '"'.repeat(10_000)]) {
      fake.intercept = (_request, response) => {
        response.writeHead(401, { "www-authenticate": challenge }).end();
        return true;
      };
      expect(["UNAUTHENTICATED", "UNAVAILABLE"]).toContain((await refusal(user)).code);
    }
  });
});

describe("something else", () => {
  const page = (response: ServerResponse) =>
    response.writeHead(200, { "content-type": "text/html; charset=utf-8" }).end("<html>Login");

  test("an HTML page instead of a manifest or a token is reported as such", async () => {
    fake.intercept = (_request, response) => (page(response), true);
    const error = await refusal();
    expect(error.code).toBe("UNAVAILABLE");
    expect(error.message).toContain("web page");
    wantToken(fake, page);
    expect((await refusal()).message).toContain("web page");
  });

  test("an HTML page instead of a blob is DATA_LOSS", async () => {
    fake.intercept = (_request, response, url) =>
      url.pathname.includes("/blobs/") ? (page(response), true) : false;
    expect((await refusal()).code).toBe("DATA_LOSS");
  });

  test.each([
    ["{}", "without a token"],
    ["[", "without a token"],
    ['{"token": "a\\r\\nX: y"}', "without a token"],
  ])("a token service's %j is no token", async (text, why) => {
    wantToken(fake, (response) => response.end(text));
    const error = await refusal();
    expect(error.code).toBe("UNAUTHENTICATED");
    expect(error.message).toContain(why);
  });

  test("an invalid response of a mirror only falls back to the next endpoint", async () => {
    hostsToml(`server = "${fake.url}"\n[host."${other.url}"]`);
    wantToken(other, (response) => response.end("["));
    const id = await pull();
    expect(id).toBe(image.config.digest);
    expect(other.requests.length).toBeGreaterThan(0);
    const { info } = await daemon.client.ImageStatus({ image: { image: id }, verbose: true });
    expect(JSON.parse(info["info"]!).source.host).toBe(fake.host);
  });

  test("an error in which the registry echoes credentials does not leak them", async () => {
    fake.intercept = (request, response) => {
      const sent = request.headers.authorization;
      const errors = [{ message: `${sent} ${Buffer.from(sent ?? "").toString("base64")}` }];
      const headers = { "www-authenticate": "Basic", "content-type": "application/json" };
      response.writeHead(sent === undefined ? 401 : 403, headers);
      response.end(JSON.stringify({ errors: sent === undefined ? [] : errors }));
      return true;
    };
    const error = await refusal(user);
    expect(error.code).toBe("PERMISSION_DENIED");
    const encoded = Buffer.from(`me:${user.password}`).toString("base64");
    expect(error.message + daemon.log).not.toContain(encoded);
  });
});

describe("too late", () => {
  test.each<[string, (response: ServerResponse) => void]>([
    ["nothing", () => {}],
    ["headers only", (response) => response.writeHead(200).flushHeaders()],
  ])("a registry that sends %s is DEADLINE_EXCEEDED", async (_, answer) => {
    fake.intercept = (_request, response) => (answer(response), true);
    const error = await daemon.configured({ "pull-progress-timeout": "1s" }, () => refusal());
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(error.message).toContain("sent nothing for 1000 ms");
  });

  test("a pull is broken off at its caller's deadline, long before the daemon's own", async () => {
    let isClosed = false;
    fake.intercept = (_request, response) => (
      response.once("close", () => (isClosed = true)),
      true
    );
    expect((await lateFailure()).code).toBe("DEADLINE_EXCEEDED");
    await until("the connection to the registry is closed", () => isClosed);
  });

  test("429 and 503 are retried no sooner than Retry-After, in seconds or as a date", async () => {
    const times: number[] = [];
    const inTwo = () => new Date(Date.now() + 2_999).toUTCString(); // whole seconds, rounded down
    fake.intercept = (_request, response) => {
      times.push(performance.now());
      if (times.length > 2) return false;
      const isFirst = times.length === 1;
      response.writeHead(isFirst ? 429 : 503, { "retry-after": isFirst ? "2" : inTwo() }).end();
      return true;
    };
    expect(await pull()).toBe(image.config.digest);
    expect(times[1]! - times[0]!).toBeGreaterThan(1_900);
    expect(times[2]! - times[1]!).toBeGreaterThan(1_900);
  }, 120_000);

  test("a Retry-After is waited for while the caller's deadline lasts", async () => {
    fake.intercept = (_request, response) => {
      response.writeHead(503, { "retry-after": "100" }).end();
      return true;
    };
    expect((await lateFailure()).code).toBe("DEADLINE_EXCEEDED");
    expect(fake.requests).toHaveLength(1);
  });

  test.each([
    ["a day", () => "86400"],
    ["an hour, as a date", () => new Date(Date.now() + 3_600_000).toUTCString()],
  ])("a Retry-After of %s ends the pull at once, and says so", async (_, value) => {
    fake.intercept = (_request, response) => {
      response.writeHead(503, { "retry-after": value() }).end();
      return true;
    };
    const error = await refusal();
    expect(error.code).toBe("UNAVAILABLE");
    expect(error.message).toMatch(/Retry-After of (86400|3[56]\d\d) s/);
    expect(fake.requests).toHaveLength(1);
  });

  test("a mirror's Retry-After delays nobody else", async () => {
    hostsToml(`server = "${fake.url}"\n[host."${other.url}"]`);
    other.intercept = (_request, response) => {
      response.writeHead(429, { "retry-after": "100" }).end();
      return true;
    };
    let count = 0;
    fake.intercept = (_request, response) => {
      if (++count > 1) return false;
      response.writeHead(503).end();
      return true;
    };
    expect(await pull()).toBe(image.config.digest);
  });

  test("503 is retried a few times", async () => {
    let count = 0;
    fake.intercept = (_request, response) => {
      count++;
      return (response.writeHead(503).end(), true);
    };
    expect((await refusal()).code).toBe("UNAVAILABLE");
    expect(count).toBe(4);
  });
});

describe("elsewhere", () => {
  test("a redirect to another host takes no credentials along", async () => {
    other.put("a/b", "1", image);
    hostsToml(`server = "${fake.url}"\n[header]\nX-Key = "header-s3cret"`);
    fake.intercept = (request, response, url) => {
      if (request.headers.authorization === undefined) {
        response.writeHead(401, { "www-authenticate": "Basic" }).end();
      } else response.writeHead(307, { location: `${other.url}${url.pathname}` }).end();
      return true;
    };
    expect(await pull(user)).toBe(image.config.digest);
    expect(other.requests.length).toBeGreaterThan(2);
    for (const { headers } of other.requests) {
      expect(JSON.stringify(headers)).not.toContain("s3cret");
      expect(headers.authorization).toBeUndefined();
    }
    expect(fake.requests[0]!.headers["x-key"]).toBe("header-s3cret");
  });

  test("credentials for a mirror by its name are for it alone", async () => {
    other.put("a/b", "1", image);
    hostsToml(`server = "${fake.url}"\n[host."${other.url}"]`);
    other.intercept = (request, response) => {
      if (request.headers.authorization !== undefined) return false;
      response.writeHead(401, { "www-authenticate": "Basic" }).end();
      return true;
    };
    expect(await pull({ ...user, server_address: other.host })).toBe(image.config.digest);
    expect(fake.requests).toEqual([]);
    expect(other.requests.at(-1)!.headers.authorization).toStartWith("Basic ");
    other.requests.length = 0;
    await daemon.client.RemoveImage({ image: { image: image.config.digest } });
    expect(await pull(user)).toBe(image.config.digest);
    expect(other.requests.some(({ headers }) => headers.authorization)).toBe(false);
  });

  test("a token that expires during a pull is renewed", async () => {
    let [given, left] = [0, 0];
    fake.intercept = (request, response, url) => {
      if (url.pathname === "/token") {
        left = 1;
        response.end(JSON.stringify({ token: `t${++given}` }));
        return true;
      }
      if (request.headers.authorization === `Bearer t${given}` && left-- > 0) return false;
      const challenge = `Bearer realm="${fake.url}/token"`;
      response.writeHead(401, { "www-authenticate": challenge }).end();
      return true;
    };
    expect(await pull()).toBe(image.config.digest);
    expect(given).toBe(3); // manifest, config, layer
  });

  test("a token service that sends an identity token on to another host is refused", async () => {
    for (const status of [302, 307, 308]) {
      wantToken(fake, (response) =>
        response.writeHead(status, { location: `${other.url}/token` }).end(),
      );
      const error = await refusal({ identity_token: "identity-s3cret" });
      expect(error.code).toBe("UNAVAILABLE");
      expect(error.message).toContain("refused");
    }
    expect(other.requests).toEqual([]);
  });
});

describe("an unreachable mirror", () => {
  let listener: ChildProcess;
  const sockets: Socket[] = [];
  afterAll(() => {
    for (const socket of sockets) socket.destroy();
    listener?.kill("SIGKILL");
  });

  /** A port whose queue is full, so that no connection comes about. */
  async function silentPort(): Promise<number> {
    const script = `use Socket; socket(S, PF_INET, SOCK_STREAM, 0); bind(S, sockaddr_in(0, INADDR_LOOPBACK));
      listen(S, 0); $| = 1; print((sockaddr_in(getsockname(S)))[0], "\\n"); sleep 600`;
    listener = spawn("perl", ["-e", script], { stdio: ["ignore", "pipe", "inherit"] });
    const port = await new Promise<number>((resolve, reject) => {
      listener.stdout!.once("data", (line: Buffer) => resolve(Number(line.toString())));
      listener.once("error", reject);
    });
    for (let i = 0; i < 4; i++) {
      const socket = connect(port, "127.0.0.1");
      socket.on("error", () => {});
      sockets.push(socket);
    }
    await new Promise((resolve) => sockets[0]!.once("connect", resolve));
    return port;
  }

  test("is skipped after its dial_timeout", async () => {
    const mirror = `http://127.0.0.1:${await silentPort()}`;
    hostsToml(`server = "${fake.url}"\n[host."${mirror}"]\ndial_timeout = "300ms"`);
    expect(await pull()).toBe(image.config.digest);
    const found = [];
    const request = { image: `${fake.host}/a/b:1` };
    for await (const check of daemon.client.CheckRegistry(request)) found.push(check);
    expect(found.map(({ code }) => code)).toEqual(["UNAVAILABLE", "OK"]);
    expect(found[0]!.detail).toContain("no connection within 300 ms (dial_timeout)");
  });
});
