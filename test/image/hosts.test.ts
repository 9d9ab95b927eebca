import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { credentialsFor, parseChallenges, tokenOf, tokenRequest } from "../../src/image/auth.ts";
import { endpointsOf, isInsecure } from "../../src/image/hosts.ts";
import { failure } from "../expect.ts";
import { registryOptions } from "./fixture.ts";

let configPath: string;
beforeEach(() => {
  configPath = fs.mkdtempSync(join(tmpdir(), "isulad-certs-"));
});
afterEach(() => fs.rmSync(configPath, { recursive: true }));

function configure(folder: string, files: Record<string, string>): void {
  fs.mkdirSync(join(configPath, folder));
  for (const [name, text] of Object.entries(files)) {
    fs.writeFileSync(join(configPath, folder, name), text);
  }
}

const urls = async (domain: string, o: Partial<typeof registryOptions> = {}) =>
  (await endpointsOf(domain, { ...registryOptions, configPath, ...o })).map(({ url }) => url);

describe("endpointsOf", () => {
  test("is the registry itself without any configuration", async () => {
    expect(await urls("docker.io")).toEqual(["https://registry-1.docker.io/v2"]);
    expect(await urls("r.example:5000")).toEqual(["https://r.example:5000/v2"]);
  });

  test("asks mirrors of daemon.json first, for docker.io only", async () => {
    const mirrors = ["m.example", "http://n.example:81/proxy/", "docker.io"];
    expect(await urls("docker.io", { mirrors })).toEqual([
      "https://m.example/v2",
      "http://n.example:81/proxy/v2",
      "https://registry-1.docker.io/v2",
    ]);
    expect(await urls("r.example", { mirrors })).toEqual(["https://r.example/v2"]);
  });

  test("tries an insecure registry without checking its certificate, then without TLS", async () => {
    const options = { ...registryOptions, configPath, insecure: ["r.example:5000"] };
    const [first, second] = await endpointsOf("r.example:5000", options);
    expect(first).toMatchObject({ url: "https://r.example:5000/v2", tls: { skipVerify: true } });
    expect(second).toMatchObject({ url: "http://r.example:5000/v2", isOrigin: true });
  });

  test("reads hosts.toml with all that it says, in its order", async () => {
    configure("r.example:5000", {
      "hosts.toml": `server = "https://real.example"
skip_verify = true
[host."https://one.example"]
  capabilities = ["pull"]
  ca = "one.pem"
  client = [["c.pem", "k.pem"]]
  [host."https://one.example".header]
    X-A = "b"
[host."http://two.example/v2/prefix"]
  override_path = true
[host."https://push.example"]
  capabilities = ["push"]
[host."three.example"]
  client = "both.pem"
`,
      "one.pem": "CA",
      "c.pem": "CERT",
      "k.pem": "KEY",
      "both.pem": "BOTH",
    });
    const found = await endpointsOf("r.example:5000", { ...registryOptions, configPath });
    expect(found).toEqual([
      {
        url: "https://one.example/v2",
        isOrigin: false,
        canResolve: false,
        headers: { "X-A": "b" },
        tls: { ca: ["CA"], cert: "CERT", key: "KEY", skipVerify: false },
      },
      {
        url: "http://two.example/v2/prefix",
        isOrigin: false,
        canResolve: true,
        headers: {},
        tls: { skipVerify: false },
      },
      {
        url: "https://three.example/v2",
        isOrigin: false,
        canResolve: true,
        headers: {},
        tls: { cert: "BOTH", key: "BOTH", skipVerify: false },
      },
      {
        url: "https://real.example/v2",
        isOrigin: true,
        canResolve: true,
        headers: {},
        tls: { skipVerify: true },
      },
    ]);
  });

  test("knows HOST_PORT_, _default and a server that is listed as host too", async () => {
    configure("r.example_5000_", { "hosts.toml": '[host."https://a.example"]' });
    configure("_default", { "hosts.toml": '[host."https://d.example"]' });
    configure("s.example", { "hosts.toml": '[host."https://s.example"]\nskip_verify = true' });
    expect(await urls("r.example:5000")).toEqual([
      "https://a.example/v2",
      "https://r.example:5000/v2",
    ]);
    expect(await urls("other.example")).toEqual([
      "https://d.example/v2",
      "https://other.example/v2",
    ]);
    const same = await endpointsOf("s.example", { ...registryOptions, configPath });
    expect(same).toMatchObject([{ url: "https://s.example/v2", isOrigin: true }]);
  });

  test("takes certificates of Docker's layout where there is no hosts.toml", async () => {
    configure("r.example", { "ca.crt": "CA", "me.cert": "CERT", "me.key": "KEY" });
    const [only] = await endpointsOf("r.example", { ...registryOptions, configPath });
    expect(only!.tls).toEqual({ ca: ["CA"], cert: "CERT", key: "KEY", skipVerify: false });
  });

  test.each([
    ["server = 1", "server"],
    ["server = ", "hosts.toml"],
    ['server = "ftp://x"', "ftp://x"],
    ['[host."https://a"]\nca = "missing.pem"', "missing.pem"],
  ])("refuses %j with the file's name", async (text, why) => {
    configure("bad.example", { "hosts.toml": text });
    const error = await failure(urls("bad.example"));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("hosts.toml");
    expect(error.message).toContain(why);
  });
});

describe("isInsecure", () => {
  test.each([
    ["127.0.0.1:5000", [], true],
    ["localhost", [], true],
    ["[::1]:5000", [], true],
    ["10.1.2.3:5000", ["10.0.0.0/8"], true],
    ["11.1.2.3:5000", ["10.0.0.0/8"], false],
    ["10.1.2.3", ["10.1.2.3"], true],
    ["r.example:5000", ["r.example"], true],
    ["r.example:5000", ["http://r.example:5000/"], true],
    ["r.example:5001", ["r.example:5000"], false],
    ["evil.r.example", ["r.example"], false],
    ["10.1.2.3", ["10.0.0.0/99"], false],
  ] as [string, string[], boolean][])("of %s with %j is %p", (domain, insecure, result) => {
    expect(isInsecure(domain, insecure)).toBe(result);
  });
});

describe("parseChallenges", () => {
  test("reads several challenges, quotes and escapes", () => {
    const header =
      'Basic realm="a, b", Bearer realm="https://t/x?y=1",service="s\\"q", scope="a:b:pull,push" , Negotiate';
    const parsed = parseChallenges(header).map(({ scheme, params }) => [
      scheme,
      Object.fromEntries(params),
    ]);
    expect(parsed).toEqual([
      ["basic", { realm: "a, b" }],
      ["bearer", { realm: "https://t/x?y=1", service: 's"q', scope: "a:b:pull,push" }],
      ["negotiate", {}],
    ]);
    expect(parseChallenges("")).toEqual([]);
    expect(parseChallenges('"="==,,')).toEqual([]);
  });
});

describe("credentials", () => {
  const user = { username: "u", password: "p" };

  test("go to the registry they name only", () => {
    const of = (serverAddress: string, domain: string) =>
      credentialsFor(domain, { ...user, serverAddress });
    expect(of("https://index.docker.io/v1/", "docker.io")).toEqual(user);
    expect(of("r.example:5000", "r.example:5000")).toEqual(user);
    expect(of("https://r.example/team", "r.example")).toEqual(user);
    expect(of("r.example", "r.example:5000")).toBeUndefined();
    expect(of("", "r.example")).toEqual(user);
    expect(credentialsFor("r.example", { auth: "", username: "" })).toBeUndefined();
    expect(() => credentialsFor("r.example", { auth: "bm9jb2xvbg==" })).toThrow("base64");
  });

  test("are not sent unencrypted where the registry speaks TLS", () => {
    const [challenge] = parseChallenges('Bearer realm="http://t.example/"');
    const o = { scope: "s", registryUrl: "https://r.example/v2" };
    expect(() => tokenRequest(challenge!, { ...o, credentials: user })).toThrow("unencrypted");
    expect(tokenRequest(challenge!, { ...o, credentials: undefined }).headers).toEqual({});
    const [none] = parseChallenges("Bearer");
    expect(() => tokenRequest(none!, { ...o, credentials: user })).toThrow(
      "no valid token service",
    );
  });

  test("as a token must fit into a header", () => {
    expect(tokenOf({ token: "a.b-c" }, "x")).toBe("a.b-c");
    expect(tokenOf({ access_token: "t" }, "x")).toBe("t");
    for (const bad of [undefined, {}, { token: 1 }, { token: "a\r\nb: c" }, { token: "" }]) {
      expect(() => tokenOf(bad, "x")).toThrow("without a token");
    }
  });
});
