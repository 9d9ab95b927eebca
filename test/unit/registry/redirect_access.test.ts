// Tests what a host gets that a registry redirects to, or names as its token service: no secret of the registry.
import { afterAll, afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Credentials } from "../../../src/registry/credentials.ts";
import { fetchBlob, fetchManifest } from "../../../src/registry/distribution.ts";
import { readAll } from "../../../src/registry/http_request.ts";
import type { Upstream } from "../../../src/registry/pull_session.ts";
import { registryRequest } from "../../../src/registry/registry_request.ts";
import { Authority } from "../../certificates.ts";
import { failure } from "../../expect.ts";
import { makeImage } from "../../image_maker.ts";
import { FakeRegistry } from "../../registry/fake_registry.ts";
import { pullSession, upstream } from "../fakes.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-redirect-"));
const authority = new Authority(dir);
const signed = authority.sign("registry", "IP:127.0.0.1,DNS:localhost");
afterAll(() => rmSync(dir, { recursive: true }));

let stack: AsyncDisposableStack;
let registry: FakeRegistry;
/** The host that the registry redirects to. */
let other: FakeRegistry;
let tokens: FakeRegistry;
beforeEach(async () => {
  stack = new AsyncDisposableStack();
  [registry, other, tokens] = [await start(), await start(), await start()];
  answerWith(other, "manifest");
  answerWith(tokens, '{"token":"t0k"}');
});
afterEach(() => stack.disposeAsync());

const start = async (tls?: typeof signed) => stack.use(await FakeRegistry.start({ tls }));

const user = { username: "me", password: "s3cret" };
const basicHeader = `Basic ${Buffer.from("me:s3cret").toString("base64")}`;
const bearer = (at = tokens, scope = "") => `Bearer realm="${at.url}/token"${scope}`;

/** The registry as an upstream that has every kind of secret. */
function secretive(credentials: Credentials = user, at = registry): Upstream {
  const auth = { credentials, from: "test" };
  const tls = { ca: [authority.pem], skipVerify: false };
  return upstream(`${at.url}/v2`, { auth, tls, headers: { "x-key": "head3r" } });
}

async function request(at: Upstream, isVerified = false): Promise<string> {
  const { signal } = new AbortController();
  const o = { path: "/manifests/1", headers: { accept: "x/y" }, isVerified, signal };
  const response = await registryRequest(pullSession([at]), at, o);
  return (await readAll(response, { bytesMax: 1000, what: "it" })).toString();
}

function answerWith(at: FakeRegistry, text: string): void {
  at.intercept = (_, response) => (response.end(text), true);
}

function redirect(from: FakeRegistry, to: FakeRegistry): void {
  from.intercept = (_, response, { pathname, search }) => {
    response.writeHead(307, { location: to.url + pathname + search }).end();
    return true;
  };
}

/** Lets `at` answer as before only with this Authorization header. */
function protect(at: FakeRegistry, header: string, challenge: string): void {
  const inner = at.intercept;
  at.intercept = (incoming, response, url) => {
    if (incoming.headers.authorization === header) return inner(incoming, response, url);
    response.writeHead(401, { "www-authenticate": challenge }).end();
    return true;
  };
}

/** [method, Authorization, the upstream's own header] of each request. */
const got = (at: FakeRegistry) =>
  at.requests.map(({ method, headers }) => [method, headers.authorization, headers["x-key"]]);
const nothing = ["GET", undefined, undefined];

describe("a host that the registry redirects to", () => {
  test.each<[string, Credentials]>([
    ["a password", user],
    ["an identity token", { identityToken: "id3nt" }],
    ["a registry token", { registryToken: "r3g" }],
  ])("gets an anonymous token of the service that it names, not the pull's %s", async (_, auth) => {
    redirect(registry, other);
    protect(other, "Bearer t0k", bearer());
    const at = secretive(auth);
    expect(await request(at)).toBe("manifest");
    expect(got(tokens)).toEqual([nothing]);
    expect(got(other)).toEqual([nothing, ["GET", "Bearer t0k", undefined]]);
    expect(got(registry)).toEqual([
      ["GET", undefined, "head3r"],
      ["GET", undefined, "head3r"],
    ]);
    expect(at.isRegistry).toBe(false);
    expect(await request(at)).toBe("manifest"); // with the same token
    expect(tokens.requests).toHaveLength(1);
  });

  test("gets its own token where the registry requires a password", async () => {
    redirect(registry, other);
    protect(registry, basicHeader, "Basic");
    protect(other, "Bearer t0k", bearer());
    expect(await request(secretive())).toBe("manifest");
    expect(got(tokens)).toEqual([nothing]);
    expect(got(other).at(-1)).toEqual(["GET", "Bearer t0k", undefined]);
    expect(got(registry).at(-1)).toEqual(["GET", basicHeader, "head3r"]);
  });

  test("names its own scope: it may not have the registry's repository", async () => {
    redirect(registry, other);
    protect(other, "Bearer t0k", bearer(tokens, ',scope="repository:moved:pull"'));
    expect(await request(secretive())).toBe("manifest");
    const { searchParams } = new URL(tokens.paths()[0]!, tokens.url);
    expect(searchParams.getAll("scope")).toEqual(["repository:moved:pull"]);
  });

  test("gets nothing of the registry's own token service", async () => {
    registry.intercept = (_, response, { pathname }) => {
      if (pathname === "/token") response.end('{"token":"t0k"}');
      else response.writeHead(307, { location: other.url }).end();
      return true;
    };
    protect(other, "Bearer t0k", bearer(registry));
    expect(await request(secretive())).toBe("manifest");
    expect(got(registry)[1]).toEqual(nothing);
  });

  test.each(["Basic", "Digest", ""])("is named when its challenge is %j", async (challenge) => {
    redirect(registry, other);
    protect(other, basicHeader, challenge);
    const at = secretive();
    const error = await failure(request(at));
    expect(error.code).toBe("UNAUTHENTICATED");
    const name = `${other.host} (redirected from ${registry.host})`;
    expect(error.message).toBe(`${name} answered 401`);
    expect(got(other)).toEqual([nothing]);
    expect(at.isRegistry).toBe(false);
  });

  test("is one of four at most that get a token for a request", async () => {
    const many = await FakeRegistry.start({ host: "0.0.0.0" });
    stack.use(many);
    const { port } = new URL(many.url);
    let last = 1;
    registry.intercept = (_, response) => {
      response.writeHead(307, { location: `http://127.0.0.${++last}:${port}/` }).end();
      return true;
    };
    protect(many, "never", bearer());
    expect((await failure(request(secretive()))).code).toBe("UNAUTHENTICATED");
    expect(tokens.requests).toHaveLength(4);
    expect(many.requests).toHaveLength(5);
  });

  test("is forgotten once the pull has tokens of four later ones", async () => {
    const many = await FakeRegistry.start({ host: "0.0.0.0" });
    stack.use(many);
    const { port } = new URL(many.url);
    answerWith(many, "manifest");
    protect(many, "Bearer t0k", bearer());
    const at = secretive();
    for (let last = 2; last < 9; last++) {
      const location = `http://127.0.0.${last}:${port}/`;
      registry.intercept = (_, response) => (response.writeHead(307, { location }).end(), true);
      expect(await request(at)).toBe("manifest");
    }
    const origins = [5, 6, 7, 8].map((last) => `http://127.0.0.${last}:${port}`);
    expect(Object.keys(at.authorizations)).toEqual(origins);
  });

  test.each(["Basic", "Bearer"])(
    "gets nothing sent to a path of the registry that it chooses (%s)",
    async (scheme) => {
      const challenge = scheme === "Basic" ? "Basic" : bearer();
      registry.intercept = ({ headers }, response, { pathname }) => {
        const isChosen = pathname === "/chosen";
        if (isChosen || headers.authorization === undefined) {
          response.writeHead(401, { "www-authenticate": isChosen ? challenge : "Basic" }).end();
        } else response.writeHead(307, { location: other.url }).end();
        return true;
      };
      other.intercept = (_, response) => {
        response.writeHead(307, { location: `${registry.url}/chosen` }).end();
        return true;
      };
      expect((await failure(request(secretive()))).code).toBe("UNAUTHENTICATED");
      expect(got(registry)).toEqual([
        ["GET", undefined, "head3r"],
        ["GET", basicHeader, "head3r"],
        nothing,
      ]);
      expect(tokens.requests).toEqual([]);
    },
  );
});

describe("the registry's host name by TLS", () => {
  let upgraded: FakeRegistry;
  beforeEach(async () => {
    upgraded = await start(signed);
    answerWith(upgraded, "manifest");
  });

  test("gets the password and the headers, and plain HTTP no password", async () => {
    protect(upgraded, basicHeader, "Basic");
    redirect(registry, upgraded);
    expect(await request(secretive())).toBe("manifest");
    expect(got(upgraded).at(-1)).toEqual(["GET", basicHeader, "head3r"]);
    expect(got(registry).every(([, authorization]) => authorization === undefined)).toBe(true);
  });

  test("gets an identity token that is for a token service at plain HTTP", async () => {
    answerWith(registry, "manifest");
    protect(registry, "Bearer t0k", bearer());
    redirect(tokens, upgraded);
    answerWith(upgraded, '{"token":"t0k"}');
    expect(await request(secretive({ identityToken: "id3nt" }))).toBe("manifest");
    expect(got(upgraded)).toEqual([["POST", undefined, "head3r"]]);
  });

  test("does not send a password on in plain text", async () => {
    protect(upgraded, "Bearer t0k", bearer());
    redirect(registry, upgraded);
    expect((await failure(request(secretive()))).message).toContain("unencrypted");
    expect(tokens.requests).toEqual([]);
  });

  test("is not another name of the same address", async () => {
    protect(upgraded, basicHeader, "Basic");
    const location = upgraded.url.replace("127.0.0.1", "localhost");
    registry.intercept = (_, response) => (response.writeHead(307, { location }).end(), true);
    expect((await failure(request(secretive()))).message).toContain("localhost");
    expect(got(upgraded)).toEqual([nothing]);
  });
});

describe("a token service on another host", () => {
  test("that the registry names gets the registry's headers", async () => {
    answerWith(registry, "manifest");
    protect(registry, "Bearer t0k", bearer());
    expect(await request(secretive())).toBe("manifest");
    expect(got(tokens)).toEqual([["GET", basicHeader, "head3r"]]);
  });

  test("by plain HTTP gets none of a registry that speaks TLS", async () => {
    const secure = await start(signed);
    answerWith(secure, "manifest");
    protect(secure, "Bearer t0k", bearer());
    expect(await request({ ...secretive({}, secure), auth: { from: "none" } })).toBe("manifest");
    expect(got(tokens)).toEqual([nothing]);
  });

  test("takes nothing along when it redirects to a third", async () => {
    protect(registry, "Bearer t0k", bearer());
    redirect(tokens, other);
    answerWith(other, "{}");
    const error = await failure(request(secretive()));
    expect(error.message).toContain(`token service ${other.host} (redirected from ${tokens.host})`);
    expect(got(other)).toEqual([nothing]);
  });
});

describe("a redirect from https to http", () => {
  const image = makeImage([]);
  const wanted = { digest: image.manifest.digest };
  const { signal } = new AbortController();
  let secure: FakeRegistry;
  beforeEach(async () => {
    secure = await start(signed);
    other.intercept = () => false;
    other.put("a/b", "1", image);
    redirect(secure, other);
  });
  const session = () => pullSession([secretive(user, secure)]);

  test("is followed for content that its digest verifies, without secrets", async () => {
    expect((await fetchManifest(session(), wanted, signal)).digest).toBe(wanted.digest);
    const config = await fetchBlob(session(), image.config, { bytesMax: 10_000, signal });
    expect(config.equals(image.config.bytes)).toBe(true);
    expect(got(other)).toEqual([nothing, nothing]);
  });

  test("is refused for a tag", async () => {
    const error = await failure(fetchManifest(session(), { tag: "1" }, signal));
    expect(error.message).toContain(`redirects from https to http (${other.host}): refused`);
    expect(other.requests).toEqual([]);
  });

  test("is refused for a token, also of verified content", async () => {
    protect(secure, "Bearer t0k", bearer(secure));
    const inner = secure.intercept;
    secure.intercept = (incoming, response, url) => {
      if (url.pathname !== "/token") return inner(incoming, response, url);
      response.writeHead(307, { location: `${tokens.url}/token` }).end();
      return true;
    };
    const error = await failure(fetchManifest(session(), wanted, signal));
    expect(error.message).toContain(`redirects from https to http (${tokens.host}): refused`);
    expect(tokens.requests).toEqual([]);
  });
});

describe("a hostile redirect", () => {
  const redirectTo = (location: string) => {
    registry.intercept = (_, response) => (response.writeHead(307, { location }).end(), true);
  };

  test.each([
    ["file:///etc/hostname", "redirects from http to file (): refused"],
    ["data:text/plain,manifest", "redirects from http to data (): refused"],
    ["HTTP://u5er:pa55@127.0.0.1:1/x?sign=s1gn", "127.0.0.1:1 (redirected from"],
    [`http://${"x".repeat(5000)}/`, "xxx"],
  ])("to %s fails and is not shown in full", async (location, why) => {
    redirectTo(location);
    const { message } = await failure(request(secretive(), true));
    expect(message).toContain(why);
    expect(message).not.toMatch(/u5er|pa55|s1gn/);
    expect(message.length).toBeLessThan(500);
  });
});
