// Tests mutated references, hosts.toml files and registries' challenges: each is refused with its own error,
// or accepted and then safe to use.
import { afterAll, expect, test } from "bun:test";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../src/base/errors.ts";
import { parseChallenges, tokenRequest } from "../../src/registry/auth.ts";
import { resolveEndpoints } from "../../src/registry/resolve_endpoints.ts";
import { proxyFor } from "../../src/registry/proxy.ts";
import { parseReference } from "../../src/registry/reference.ts";
import { Authority } from "../certificates.ts";
import { fuzzRounds, fuzzSeed, random } from "../random.ts";
import { registryOptions } from "../unit/fakes.ts";

const dir = fs.mkdtempSync(join(tmpdir(), "isulad-fuzz-"));
afterAll(() => fs.rmSync(dir, { recursive: true }));

const next = random(fuzzSeed);
const pick = <T>(list: ArrayLike<T>): T => list[Math.floor(next() * list.length)]!;

/** Cuts, repeats, swaps and inserts; `words` are what the text is made of. */
function mutated(text: string, words: string[]): string {
  let result = text;
  for (let i = Math.floor(next() * 4); i > 0; i--) {
    const at = Math.floor(next() * (result.length + 1));
    const end = Math.min(result.length, at + Math.floor(next() * 8));
    const put = pick(["", pick(words), result.slice(at, end).repeat(2), oddCharacter()]);
    result = result.slice(0, at) + put + result.slice(pick([at, end]));
  }
  return result;
}

function oddCharacter(): string {
  return String.fromCodePoint(Math.floor(next() * pick([0x20, 0x80, 0x100, 0xd800])));
}

/** The code of a refusal, or "" when it was taken. @throws for any other error, with the input. */
async function codeFor(input: string, use: () => unknown): Promise<string> {
  try {
    await use();
    return "";
  } catch (error) {
    if (error instanceof CriError) return error.code;
    throw new Error(`seed ${fuzzSeed}: ${JSON.stringify(input)}`, { cause: error });
  }
}

test(`${fuzzRounds * 10} mutated references are refused or safe (seed ${fuzzSeed})`, async () => {
  const digest = `sha256:${"0a".repeat(32)}`;
  const seeds = [
    "busybox",
    "docker.io/library/busybox:1.37",
    `r.example:5000/a/b-c__d.e:v1@${digest}`,
    "[fd00::1]:5000/x",
    "127.0.0.1:5000/a",
    "Upper.example/a",
    `x@sha512:${"f".repeat(128)}`,
  ];
  const words = ["/", "//", "..", ":", "@", digest, "%2e", "?", "#", "\\", "0x7f", "xn--a", "\0"];
  const counts = new Map<string, number>();
  for (let round = 0; round < fuzzRounds * 10; round++) {
    const text = mutated(pick(seeds), words);
    const code = await codeFor(text, () => {
      const ref = parseReference(text);
      expect(parseReference(ref.name).name).toBe(ref.name);
      const { domain, path, tag } = ref;
      const url = new URL(`https://${domain}/v2/${path}/manifests/${ref.digest ?? tag}`);
      expect(url.href).toEndWith(`/v2/${path}/manifests/${ref.digest ?? tag}`);
      expect([url.search, url.hash, url.username]).toEqual(["", "", ""]);
      expect(join("/certs", domain)).toBe(`/certs/${domain}`);
    });
    counts.set(code, (counts.get(code) ?? 0) + 1);
  }
  expect([...counts.keys()].sort()).toEqual(["", "INVALID_ARGUMENT"]);
  for (const count of counts.values()) expect(count).toBeGreaterThan(fuzzRounds / 10);
});

const hostsToml = `server = "https://real.example/v2"
capabilities = ["pull", "resolve", "push"]
dial_timeout = "1m30s"
[host."https://one.example:5000"]
  capabilities = ["pull"]
  ca = ["ca.pem", "me.pem"]
  client = [["me.pem", "me.key"], "both.pem"]
  skip_verify = true
  override_path = true
[host."https://one.example:5000".header]
  X-A = ["b", "c"]
[host."http://two.example/a/v2/"]
  ca = "ca.pem"
[host."three.example"]
  dial_timeout = "5s"
`;

test(
  `${fuzzRounds} mutated hosts.toml are refused or safe (seed ${fuzzSeed})`,
  async () => {
    const domain = "r.example:5000";
    const folder = join(dir, "r.example_5000_");
    fs.mkdirSync(folder);
    const authority = new Authority(folder);
    const me = authority.sign("me", "DNS:me");
    fs.writeFileSync(join(folder, "both.pem"), me.cert + me.key);
    const words = [
      '"',
      "[",
      "]",
      "=",
      "\n",
      "host",
      "server",
      "ca",
      "true",
      "1e9",
      "''",
      "://",
      "h",
    ];
    const counts = new Map<string, number>();
    for (let round = 0; round < fuzzRounds; round++) {
      const text = mutated(hostsToml, words);
      fs.writeFileSync(join(folder, "hosts.toml"), text);
      const code = await codeFor(text, async () => {
        const endpoints = await resolveEndpoints(domain, { ...registryOptions, configPath: dir });
        for (const { url, headers, dialTimeoutMs, canPull, canResolve } of endpoints) {
          expect(url).toMatch(/^https?:\/\/[^/]+(\/.*[^/])?$/);
          expect(new URL(`${url}/a/b/manifests/1`).pathname).toEndWith("/a/b/manifests/1");
          expect([...new Headers(headers)]).toHaveLength(Object.keys(headers).length);
          expect(dialTimeoutMs ?? 1).toBeGreaterThan(0);
          expect(canPull || canResolve).toBe(true);
        }
      });
      counts.set(code, (counts.get(code) ?? 0) + 1);
    }
    expect([...counts.keys()].sort()).toEqual(["", "FAILED_PRECONDITION"]);
    for (const count of counts.values()) expect(count).toBeGreaterThan(fuzzRounds / 10);
  },
  60_000 + fuzzRounds * 10,
);

test(`${fuzzRounds} mutated challenges and proxies are refused or used (seed ${fuzzSeed})`, async () => {
  const challenge =
    'Basic realm="a, \\"b", Bearer realm="https://t.example/x?y=1",service="s",scope="a:b:pull"';
  const words = ['"', "\\", ",", "=", "Bearer ", "realm=", "http://", "@", "\r\n", ":", "*", "::1"];
  const env = {
    HTTPS_PROXY: "http://u:p@proxy.example:3128",
    NO_PROXY: "a.b:1,10.0.0.0/8,*.c,::1",
  };
  const codes = new Set<string>();
  for (let round = 0; round < fuzzRounds; round++) {
    const header = mutated(challenge, words);
    const code = await codeFor(header, () => {
      const o = { scope: "s", credentials: undefined, registryUrl: "https://r.example/v2" };
      for (const one of parseChallenges(header)) {
        if (one.scheme === "bearer") expect(tokenRequest(one, o).url).toStartWith("http");
      }
    });
    const proxies = {
      HTTPS_PROXY: mutated(env.HTTPS_PROXY, words),
      NO_PROXY: mutated(env.NO_PROXY, words),
    };
    const proxyCode = await codeFor(JSON.stringify(proxies), () => {
      const proxy = proxyFor(new URL("https://r.example/v2"), proxies);
      if (proxy !== undefined) expect(new URL(proxy.url).hostname).not.toBe("");
    });
    codes.add(code).add(proxyCode);
  }
  expect([...codes].sort()).toEqual(["", "FAILED_PRECONDITION", "UNAUTHENTICATED"]);
});
