// Tests requests to registries on loopback that challenge, redirect and refuse.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { readAll, type TransferError } from "../../../src/registry/http_request.ts";
import { withoutMirrors } from "../../../src/registry/failover.ts";
import { givenCredentials } from "../../../src/registry/pull_session.ts";
import { refusal, registryRequest } from "../../../src/registry/registry_request.ts";
import { failure } from "../../expect.ts";
import { FakeRegistry } from "../../registry/fake_registry.ts";
import { pullSession, upstream } from "../fakes.ts";

const user = { username: "me", password: "s3cret" };
const basicHeader = `Basic ${Buffer.from("me:s3cret").toString("base64")}`;

let fake: FakeRegistry;
let other: FakeRegistry;
beforeEach(async () => {
  [fake, other] = [await FakeRegistry.start(), await FakeRegistry.start()];
});
afterEach(async () => {
  for (const one of [fake, other]) await one[Symbol.asyncDispose]();
});

/** Requests a tag's manifest and returns its text. */
async function request(at = upstream(`${fake.url}/v2`)): Promise<string> {
  const { signal } = new AbortController();
  const o = { path: "/manifests/1", headers: { accept: "x/y" }, isVerified: false, signal };
  const response = await registryRequest(pullSession([at]), at, o);
  return (await readAll(response, { bytesMax: 1000, what: "it" })).toString();
}

/** Answers with a manifest if authorized by this header, else challenges; "/token" gives `token`. */
function challenge(header: string, text: string, token = '{"token":"t0k"}'): void {
  fake.intercept = ({ headers }, response, { pathname }) => {
    if (pathname === "/token") response.end(token);
    else if (headers.authorization === header) response.end("manifest");
    else response.writeHead(401, { "www-authenticate": text }).end();
    return true;
  };
}
const bearer = () => `Bearer realm="${fake.url}/token"`;

describe("registryRequest", () => {
  test("answers a Basic challenge with user and password, once", async () => {
    challenge(basicHeader, "Basic");
    const at = upstream(`${fake.url}/v2`, { auth: { credentials: user, from: "x" } });
    expect(await request(at)).toBe("manifest");
    expect(await request(at)).toBe("manifest");
    expect(fake.requests).toHaveLength(3);
    expect(at.isRegistry).toBe(false);
  });

  test("answers a Bearer challenge with a token, and gets a new one when it expires", async () => {
    challenge("Bearer t0k", bearer());
    const authorizations = { [fake.url]: "Bearer old" };
    const at = upstream(`${fake.url}/v2`, { authorizations, headers: { "x-a": "1" } });
    expect(await request(at)).toBe("manifest");
    expect(at).toMatchObject({ authorizations: { [fake.url]: "Bearer t0k" }, isRegistry: true });
    expect(fake.requests.map(({ headers }) => headers["x-a"])).toEqual(["1", "1", "1"]);
  });

  test.each([403, 404, 405, 501])(
    "sends user and password by POST to a token service that answers GET with %d",
    async (status) => {
      const forms: string[] = [];
      fake.intercept = (incoming, response, { pathname }) => {
        if (pathname !== "/token") {
          const isKnown = incoming.headers.authorization === "Bearer t0k";
          if (isKnown) response.end("manifest");
          else response.writeHead(401, { "www-authenticate": `${bearer()},service="s"` }).end();
        } else if (incoming.method === "GET") response.writeHead(status).end();
        else {
          incoming.on("data", (chunk: Buffer) => forms.push(chunk.toString()));
          incoming.on("end", () => response.end('{"access_token":"t0k"}'));
        }
        return true;
      };
      const at = upstream(`${fake.url}/v2`, { auth: { credentials: user, from: "x" } });
      expect(await request(at)).toBe("manifest");
      expect(Object.fromEntries(new URLSearchParams(forms.join("")))).toEqual({
        grant_type: "password",
        username: "me",
        password: "s3cret",
        client_id: "isulad-ts",
        service: "s",
        scope: "repository:a/b:pull",
      });
      fake.requests.length = 0;
      const anonymous = await failure(request());
      expect(anonymous.message).toContain(`token service ${fake.host} answered ${status}`);
      expect(fake.requests.map(({ method }) => method)).toEqual(["GET", "GET"]);
    },
  );

  test("prefers Bearer to Basic, and a registry token to both", async () => {
    challenge("Bearer t0k", `Basic, ${bearer()}`);
    expect(
      await request(upstream(`${fake.url}/v2`, { auth: { credentials: user, from: "x" } })),
    ).toBe("manifest");
    fake.requests.length = 0;
    const auth = { credentials: { registryToken: "t0k" }, from: "x" };
    expect(await request(upstream(`${fake.url}/v2`, { auth }))).toBe("manifest");
    expect(fake.paths().some((path) => path.startsWith("/token"))).toBe(false);
  });

  test.each<[string, () => void, object, string]>([
    ["no credentials", () => challenge("", "Basic"), {}, "requires a user name and a password"],
    [
      "no user",
      () => challenge("", "Basic"),
      { credentials: { username: "" } },
      "requires a user name",
    ],
    [
      "an unknown scheme",
      () => challenge("", "Digest"),
      { credentials: user },
      "requires a user name",
    ],
    ["a broken helper", () => challenge("", "Basic"), { problem: "it broke" }, "but it broke"],
    ["a wrong password", () => challenge("", "Basic"), { credentials: user }, "answered 401"],
  ])("fails with %s", async (_, prepare, auth, why) => {
    prepare();
    const error = await failure(
      request(upstream(`${fake.url}/v2`, { auth: { from: "x", ...auth } })),
    );
    expect(error.code).toBe("UNAUTHENTICATED");
    expect(error.message).toContain(why);
    expect(error.message).not.toContain("s3cret");
  });

  test.each([
    ["a web page", "text/html", 200, "<h1>log in</h1>", "UNAVAILABLE"],
    ["no JSON", "text/plain", 200, "[", "UNAUTHENTICATED"],
    ["a refusal", "text/plain", 403, "", "PERMISSION_DENIED"],
  ])("fails when the token service answers with %s", async (_, type, status, text, code) => {
    const realm = `Bearer realm="${other.url}/token"`;
    other.intercept = (_request, response) => {
      response.writeHead(status, { "content-type": type }).end(text);
      return true;
    };
    challenge("", realm);
    expect((await failure(request())).code).toBe(code as "UNAVAILABLE");
  });

  test("shows the registry's error without the secrets it echoes", async () => {
    fake.intercept = (_, response) => {
      const message = `s3cret t0k head3r ${"x".repeat(400)}`;
      response.writeHead(403).end(JSON.stringify({ errors: [{ message }] }));
      return true;
    };
    const at = upstream(`${fake.url}/v2`, {
      auth: { credentials: user, from: "x" },
      authorizations: { [fake.url]: "Bearer t0k" },
      headers: { "x-a": "Key head3r" },
    });
    const { code, message } = await failure(request(at));
    expect(code).toBe("PERMISSION_DENIED");
    expect(message).toContain("answered 403: … … … xxx");
    expect(message.length).toBeLessThan(400);
    expect(at.isRegistry).toBe(true);
  });

  test("shows a token service's error without the header that it echoes", async () => {
    challenge("", `Bearer realm="${other.url}/token"`);
    other.intercept = ({ headers }, response) => {
      const message = `no ${headers.authorization}, ${String(headers["x-a"])}`;
      response.writeHead(401).end(JSON.stringify({ errors: [{ message }] }));
      return true;
    };
    const auth = { credentials: user, from: "x" };
    const at = upstream(`${fake.url}/v2`, { auth, headers: { "x-a": "s3cret-too" } });
    expect((await failure(request(at))).message).toEndWith("answered 401: no …, …");
  });

  test.each<[string, Record<string, string>, string, boolean]>([
    ["a plain web server", {}, "<h1>no</h1>", false],
    ["errors that are no list", {}, '{"errors":{}}', false],
    ["the API version header", { "docker-distribution-api-version": "registry/2.0" }, "", true],
    ["a distribution error", {}, '{"errors":[{"message":"unknown"}]}', true],
  ])("takes a 404 with %s for a registry's or not", async (_, headers, text, isRegistry) => {
    fake.intercept = (_request, response) => (response.writeHead(404, headers).end(text), true);
    const at = upstream(`${fake.url}/v2`);
    expect((await failure(request(at))).code).toBe("NOT_FOUND");
    expect(at.isRegistry).toBe(isRegistry);
  });

  test("tests the connection once where dial_timeout is set", async () => {
    fake.intercept = (_, response) => (response.end("manifest"), true);
    const at = upstream(`${fake.url}/v2`, { dialTimeoutMs: 5000 });
    expect(await request(at)).toBe("manifest");
    expect(at.isReachable).toBe(true);
    const down = upstream("http://127.0.0.1:1/v2", { dialTimeoutMs: 5000 });
    const error = await failure(request(down));
    expect(error.message).toContain("dial_timeout");
    expect((error as TransferError).mayRetry).toBe(true);
  });
});

describe("a redirect", () => {
  const redirectTo = (location: string | undefined, status = 307) => {
    fake.intercept = (_, response) => {
      response.writeHead(status, location === undefined ? {} : { location }).end();
      return true;
    };
  };

  test("to another origin loses all headers but accept", async () => {
    other.intercept = (_, response) => (response.end("moved"), true);
    redirectTo(`${other.url}/x`);
    const authorizations = { [fake.url]: "Bearer t0k" };
    const at = upstream(`${fake.url}/v2`, { authorizations, headers: { "x-a": "1" } });
    expect(await request(at)).toBe("moved");
    const { headers } = other.requests[0]!;
    expect([headers.accept, headers.authorization, headers["x-a"]]).toEqual([
      "x/y",
      undefined,
      undefined,
    ]);
  });

  test("within the origin keeps the headers", async () => {
    fake.intercept = (_, response, { pathname }) => {
      if (pathname === "/x") response.end("moved");
      else response.writeHead(302, { location: "/x" }).end();
      return true;
    };
    const at = upstream(`${fake.url}/v2`, { authorizations: { [fake.url]: "Bearer t0k" } });
    expect(await request(at)).toBe("moved");
    expect(fake.requests[1]!.headers.authorization).toBe("Bearer t0k");
  });

  test.each([
    ["in a circle", "/v2", 307, "redirects more than 10 times"],
    ["to no address", "http://[", 307, "no valid address"],
    ["to another protocol", "ftp://x/", 307, "from http to ftp (x): refused"],
    ["without a location", undefined, 307, "answered 307"],
    ["of an unknown status", "/x", 300, "answered 300"],
  ])("%s fails", async (_, location, status, why) => {
    redirectTo(location, status);
    expect((await failure(request())).message).toContain(why);
  });

  test("of an identity token to another origin is refused", async () => {
    challenge("", bearer());
    const inner = fake.intercept;
    fake.intercept = (incoming, response, url) => {
      if (url.pathname !== "/token") return inner(incoming, response, url);
      response.writeHead(307, { location: `${other.url}/token` }).end();
      return true;
    };
    const auth = { credentials: { identityToken: "id" }, from: "x" };
    const error = await failure(request(upstream(`${fake.url}/v2`, { auth })));
    expect(error.message).toContain("redirects credentials");
    expect(other.requests).toEqual([]);
  });
});

describe("refusal", () => {
  const of = (status: number, retryAfter?: string) =>
    refusal(
      {
        status,
        headers: new Headers(retryAfter === undefined ? {} : { "retry-after": retryAfter }),
      },
      "r.test",
      "",
    );

  test.each([
    [401, "UNAUTHENTICATED", false],
    [403, "PERMISSION_DENIED", false],
    [404, "NOT_FOUND", false],
    [410, "NOT_FOUND", false],
    [407, "UNAVAILABLE", false],
    [418, "UNAVAILABLE", false],
    [408, "UNAVAILABLE", true],
    [429, "RESOURCE_EXHAUSTED", true],
    [500, "UNAVAILABLE", true],
    [503, "UNAVAILABLE", true],
  ])("of %d is %s, retried: %p", (status, code, mayRetry) => {
    expect(of(status)).toMatchObject({ code, mayRetry, retryAfterMs: 0 });
  });

  test("reads Retry-After as seconds or a date, and does not wait over two minutes", () => {
    expect(of(503, "7")).toMatchObject({ mayRetry: true, retryAfterMs: 7000 });
    expect(of(429, "120")).toMatchObject({ mayRetry: true, retryAfterMs: 120_000 });
    expect(of(429, "121")).toMatchObject({ mayRetry: false });
    expect(of(429, "121").message).toContain("Retry-After of 121 s is too long");
    const { retryAfterMs } = of(503, new Date(Date.now() + 60_000).toUTCString());
    expect(retryAfterMs).toBeWithin(50_000, 60_001);
    expect(of(503, "soon").retryAfterMs).toBe(0);
    expect(of(503, new Date(0).toUTCString()).retryAfterMs).toBe(0);
  });

  test("of a proxy says where its password is set", () => {
    expect(of(407).message).toContain("HTTP_PROXY");
  });
});

describe("credentials given with a pull", () => {
  const registry = upstream("https://registry.test/v2");
  const mirror = upstream("https://mirror.test/v2", { isOrigin: false });
  const given = (at: typeof registry, serverAddress?: string) =>
    givenCredentials(at, "registry.test", { ...user, serverAddress });

  test("go to the registry, and to a mirror only if they name it", () => {
    const found = { credentials: user, from: "given with the pull" };
    expect(given(registry)).toEqual(found);
    expect(given(registry, "registry.test")).toEqual(found);
    expect(given(registry, "mirror.test")).toBeUndefined();
    expect(given(mirror)).toBeUndefined();
    expect(given(mirror, "registry.test")).toBeUndefined();
    expect(given(mirror, "https://mirror.test")).toEqual(found);
  });

  test.each<[domain: string, url: string, isOwn: boolean]>([
    ["reg.test:5000", "http://reg.test:5000/v2", true],
    ["reg.test", "https://reg.test/v2/cache", true],
    ["reg.test:80", "http://reg.test/v2", true],
    ["reg.test:443", "https://reg.test/v2", true],
    ["docker.io", "https://registry-1.docker.io/v2/cache", true],
    ["reg.test:5000", "http://reg.test:5001/v2", false],
    ["reg.test", "http://reg.test:443/v2", false],
    ["reg.test", "https://sub.reg.test/v2", false],
    ["docker.io", "https://mirror.test/v2/docker.io", false],
  ])("for %s go to %s, which hosts.toml lists beside the server: %p", (domain, url, isOwn) => {
    const at = upstream(url, { isOrigin: false });
    const found = { credentials: user, from: "given with the pull" };
    expect(givenCredentials(at, domain, user)).toEqual(isOwn ? found : undefined);
    const auth = { ...user, serverAddress: domain };
    expect(givenCredentials(at, domain, auth)).toEqual(isOwn ? found : undefined);
  });

  test("a session without mirrors has the registry only; undefined: it has no mirrors", () => {
    expect(withoutMirrors(pullSession([mirror, registry]))!.upstreams).toEqual([registry]);
    expect(withoutMirrors(pullSession([registry]))).toBeUndefined();
  });
});
