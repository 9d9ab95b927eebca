// Tests the choice of credentials, their sources on the node, and token requests.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../../src/base/errors.ts";
import { parseChallenges, tokenOf, tokenRequest } from "../../../src/registry/auth.ts";
import {
  credentialsFor,
  nodeCredentials,
  readAuthFile,
} from "../../../src/registry/credentials.ts";

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
    expect(parseChallenges(" , ,Basic")).toHaveLength(1);
  });

  test("takes a time that grows with the header's length only", () => {
    const before = process.cpuUsage();
    expect(parseChallenges(`Basic${" ".repeat(100_000)}"`)).toHaveLength(1);
    const { user } = process.cpuUsage(before);
    expect(user / 1_000).toBeLessThan(2_000); // ms; as a square: many seconds
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

  test("of base64 may end in NUL bytes, as for containerd", () => {
    const auth = Buffer.from("u:p\0\0").toString("base64");
    expect(credentialsFor("r.example", { auth })).toEqual(user);
  });

  test("are not sent unencrypted where the registry speaks TLS", () => {
    const [challenge] = parseChallenges('Bearer realm="http://t.example/"');
    const o = { scope: "s", registryUrl: "https://r.example/v2" };
    expect(() => tokenRequest(challenge!, { ...o, credentials: user })).toThrow("unencrypted");
    expect(tokenRequest(challenge!, { ...o, credentials: undefined }).headers).toEqual({});
    const [upper] = parseChallenges('Bearer realm="HTTPS://T.example/"');
    const { url } = tokenRequest(upper!, { ...o, credentials: user });
    expect(url).toStartWith("https://t.example/?");
    const [none] = parseChallenges("Bearer");
    expect(() => tokenRequest(none!, { ...o, credentials: user })).toThrow(
      "an invalid token service",
    );
  });

  test("request the scope of the challenge and of this repository", () => {
    const ours = "repository:a/b:pull";
    const scopesOf = (params: string, credentials?: object) => {
      const [challenge] = parseChallenges(`Bearer realm="https://t.example/?x=1"${params}`);
      const o = { scope: ours, registryUrl: "https://r.example/v2", credentials };
      const { url, body } = tokenRequest(challenge!, o);
      const query = body === undefined ? new URL(url).searchParams : new URLSearchParams(body);
      return query.getAll("scope");
    };
    expect(scopesOf("")).toEqual([ours]);
    expect(scopesOf(',scope=""')).toEqual([ours]);
    expect(scopesOf(`,scope="${ours}"`)).toEqual([ours]);
    const other = "repository:proxy/a/b:pull";
    expect(scopesOf(`,scope="${other}  registry:catalog:* ${ours}"`)).toEqual([
      ours,
      other,
      "registry:catalog:*",
    ]);
    expect(scopesOf(`,scope="${other}"`, { identityToken: "id" })).toEqual([`${ours} ${other}`]);
  });

  test("that are tokens must fit into a header", () => {
    expect(tokenOf({ token: "a.b-c" }, "x")).toBe("a.b-c");
    expect(tokenOf({ access_token: "t" }, "x")).toBe("t");
    expect(tokenOf({ token: "", access_token: "t" }, "x")).toBe("t");
    for (const bad of [
      undefined,
      {},
      { token: 1 },
      { token: "a\r\nb: c" },
      { token: "", access_token: "" },
    ]) {
      expect(() => tokenOf(bad, "x")).toThrow("without a token");
    }
  });
});

describe("the node's own credentials", () => {
  let dir: string;
  let path: string;
  const environment = process.env["PATH"];
  beforeEach(() => {
    dir = fs.mkdtempSync(join(tmpdir(), "isulad-auth-"));
    path = join(dir, "config.json");
    process.env["PATH"] = `${dir}:${environment}`;
  });
  afterEach(() => {
    process.env["PATH"] = environment;
    fs.rmSync(dir, { recursive: true });
  });

  const base64 = (text: string) => Buffer.from(text).toString("base64");
  const signal = new AbortController().signal;
  async function ask(file: object, host: string, repository = "a/b") {
    fs.writeFileSync(path, JSON.stringify(file));
    return await nodeCredentials(readAuthFile(path), { host, repository, path, signal });
  }

  function refusal(file: string): CriError {
    try {
      readAuthFile(file);
    } catch (error) {
      if (error instanceof CriError) return error;
      throw error;
    }
    throw new Error(`${file} was accepted`);
  }

  /** A credential helper, as a shell script; $1 is "get" and the server comes on standard input. */
  function helper(name: string, script: string): void {
    const file = join(dir, `docker-credential-${name}`);
    fs.writeFileSync(file, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  }

  test("are read from auths in every form that Docker and compatible tools write", async () => {
    const auths = {
      "https://index.docker.io/v1/": { auth: base64("hub:p:w") },
      "r.example:5000": { username: "u", password: "p" },
      "https://t.example/v2/": { identitytoken: "id" },
      "g.example": { registrytoken: "reg" },
      "empty.example": {},
      "null.example": { username: "n", password: "p", auth: null, identitytoken: null },
    };
    const file = { auths, credHelpers: null, credsStore: null };
    const of = async (host: string) => (await ask(file, host)).credentials;
    expect(await of("null.example")).toEqual({ username: "n", password: "p" });
    expect(await of("docker.io")).toEqual({ username: "hub", password: "p:w" });
    expect(await of("r.example:5000")).toEqual({ username: "u", password: "p" });
    expect(await of("t.example")).toEqual({ identityToken: "id", username: "" });
    expect(await of("g.example")).toEqual({ registryToken: "reg" });
    expect(await of("r.example")).toBeUndefined();
    expect(await of("empty.example")).toBeUndefined();
  });

  test("may be for a part of a registry; the longest match wins", async () => {
    const auths = {
      "r.example": { auth: base64("all:1") },
      "r.example/team": { auth: base64("team:2") },
      "r.example/team/app": { auth: base64("app:3") },
    };
    const of = async (repository: string) =>
      (await ask({ auths }, "r.example", repository)).credentials?.username;
    expect(await of("other/x")).toBe("all");
    expect(await of("team/x")).toBe("team");
    expect(await of("teams/x")).toBe("all");
    expect(await of("team/app")).toBe("app");
    expect(await of("team/app/x")).toBe("app");
  });

  test("are taken from the registry's helper or the store before auths", async () => {
    const answer = 'printf \'{"ServerURL":"%s","Username":"%s","Secret":"s3"}\' "$(cat)"';
    helper("mine", `[ "$1" = get ] && ${answer} mine`);
    helper(
      "store",
      `read server; [ "$server" = known.example ] || { echo "credentials not found in native keychain"; exit 1; }; ${answer} "<token>"`,
    );
    const auths = { "plain.example": { auth: base64("plain:1") } };
    const file = { auths, credsStore: "store", credHelpers: { "h.example": "mine" } };
    const mine = await ask(file, "h.example");
    expect(mine.credentials).toEqual({ username: "mine", password: "s3" });
    expect(mine.from).toContain("docker-credential-mine");
    expect((await ask(file, "known.example")).credentials).toEqual({ identityToken: "s3" });
    expect((await ask(file, "plain.example")).credentials?.username).toBe("plain");
    expect(await ask({ credsStore: "store" }, "none.example")).toMatchObject({
      from: expect.stringContaining("none"),
    });
  });

  test.each([
    ["fails", "echo s3cret; echo s3cret >&2; exit 3", "exited with 3"],
    ["prints something else", "echo s3cret", "not JSON"],
    ["prints no secret", 'echo \'{"Username":"s3cret"}\'', "not JSON with"],
  ])("are a problem without any secret shown, if a helper %s", async (_, script, why) => {
    helper("bad", script);
    const choice = await ask({ credHelpers: { "r.example": "bad" } }, "r.example");
    expect(choice.credentials).toBeUndefined();
    expect(choice.problem).toContain(why);
    expect(JSON.stringify(choice)).not.toContain("s3cret");
  });

  test("are a problem if the helper is missing or its name is a path", async () => {
    const of = async (name: string) => (await ask({ credHelpers: { h: name } }, "h")).problem;
    expect(await of("absent")).toContain("cannot run docker-credential-absent");
    expect(await of("../../bin/sh")).toContain("not a program name");
  });

  test.each([
    ["{", "not JSON"],
    ['{"auths": {"r": {"auth": 1}}}', "auths"],
    ["null", "not valid"],
  ])("refuse the file %j with its path", async (text, why) => {
    fs.writeFileSync(path, text);
    const error = refusal(path);
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("registry-auth-file");
    expect(error.message).toContain(why);
  });

  test("refuse a missing file, a too long one and a FIFO", () => {
    expect(refusal(join(dir, "absent")).message).toContain("create it");
    fs.writeFileSync(path, " ".repeat((1 << 20) + 1));
    expect(refusal(path).message).toContain("is larger than 1048576 bytes");
    const fifo = join(dir, "fifo");
    execFileSync("mkfifo", [fifo]);
    expect(refusal(fifo).message).toContain("is a FIFO, not a regular file");
    expect(readAuthFile("")).toBeUndefined();
  });
});
