// Tests the endpoints of registries from hosts.toml files, mirrors and insecure registries.
import { afterAll, afterEach, beforeEach, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { resolveEndpoints, isInsecure } from "../../../src/registry/resolve_endpoints.ts";
import { Authority } from "../../certificates.ts";
import { failure } from "../../expect.ts";
import { registryOptions } from "../fakes.ts";

const dir = fs.mkdtempSync(join(tmpdir(), "isulad-hosts-"));
const authority = new Authority(dir);
const me = authority.sign("me", "DNS:me");
const other = authority.sign("other", "DNS:other");
const both = me.cert + me.key;
const pems = { "ca.pem": authority.pem, "me.pem": me.cert, "me.key": me.key, "both.pem": both };
const noTls = { skipVerify: false, files: [] };
afterAll(() => fs.rmSync(dir, { recursive: true }));

let configPath: string;
beforeEach(() => {
  configPath = fs.mkdtempSync(join(tmpdir(), "isulad-certs-"));
});
afterEach(() => fs.rmSync(configPath, { recursive: true }));

function configure(folder: string, files: Record<string, string>): void {
  fs.mkdirSync(join(configPath, folder));
  for (const [name, text] of Object.entries(
    "hosts.toml" in files ? { ...pems, ...files } : files,
  )) {
    fs.writeFileSync(join(configPath, folder, name), text);
  }
}

const urls = async (domain: string, o: Partial<typeof registryOptions> = {}) =>
  (await resolveEndpoints(domain, { ...registryOptions, configPath, ...o })).map(({ url }) => url);

describe("resolveEndpoints", () => {
  test("returns the registry itself without any configuration", async () => {
    expect(await urls("docker.io")).toEqual(["https://registry-1.docker.io/v2"]);
    expect(await urls("r.example:5000")).toEqual(["https://r.example:5000/v2"]);
  });

  test("puts mirrors of daemon.json first, for docker.io only", async () => {
    const mirrors = ["m.example", "http://n.example:81/proxy/", "docker.io"];
    expect(await urls("docker.io", { mirrors })).toEqual([
      "https://m.example/v2",
      "http://n.example:81/proxy/v2",
      "https://registry-1.docker.io/v2",
    ]);
    expect(await urls("r.example", { mirrors })).toEqual(["https://r.example/v2"]);
  });

  test("returns an insecure registry without certificate verification, then without TLS", async () => {
    const options = { ...registryOptions, configPath, insecure: ["r.example:5000"] };
    const [first, second] = await resolveEndpoints("r.example:5000", options);
    expect(first).toMatchObject({ url: "https://r.example:5000/v2", tls: { skipVerify: true } });
    expect(second).toMatchObject({ url: "http://r.example:5000/v2", isOrigin: true });
  });

  test("reads every field of hosts.toml, in order", async () => {
    configure("r.example_5000_", {
      "hosts.toml": `server = "https://real.example/base/"
skip_verify = true
[host."https://one.example"]
  capabilities = ["PULL"]
  ca = ["ca.pem", "../r.example_5000_/ca.pem"]
  client = [["me.pem", "me.key"]]
  dial_timeout = "1m0.5s"
  [host."https://one.example".header]
    X-A = "b"
    X-B = ["c", "d"]
[host."http://two.example/v2/prefix"]
  override_path = true
[host."https://push.example"]
  capabilities = ["push", "referrers"]
[host."three.example//path/v2/"]
  client = "both.pem"
[host."http://four.example"]
  capabilities = ["resolve"]
`,
    });
    const [file, more] = [join(configPath, "r.example_5000_/hosts.toml"), {}];
    const all = { isOrigin: false, canPull: true, canResolve: true, headers: more, from: file };
    const found = await resolveEndpoints("r.example:5000", { ...registryOptions, configPath });
    expect(found).toEqual([
      {
        ...all,
        url: "https://one.example/v2",
        canResolve: false,
        headers: { "x-a": "b", "x-b": "c, d" },
        tls: {
          ca: [authority.pem, authority.pem],
          ...me,
          skipVerify: false,
          files: ["ca.pem", "../r.example_5000_/ca.pem", "me.pem"],
        },
        dialTimeoutMs: 60_500,
      },
      { ...all, url: "http://two.example/v2/prefix", tls: noTls },
      {
        ...all,
        url: "https://three.example/path/v2",
        tls: { cert: both, key: both, skipVerify: false, files: ["both.pem"] },
      },
      { ...all, url: "http://four.example/v2", canPull: false, tls: noTls },
      {
        ...all,
        url: "https://real.example/base/v2",
        isOrigin: true,
        tls: { skipVerify: true, files: [] },
      },
    ]);
  });

  test("returns one endpoint per client certificate", async () => {
    configure("r.example", {
      "hosts.toml":
        'server = "https://s"\nclient = ["both.pem", ["me.pem", "me.key"], ["both.pem", ""]]',
    });
    const found = await resolveEndpoints("r.example", { ...registryOptions, configPath });
    expect(found.map(({ url, tls }) => [url, tls.cert, tls.key])).toEqual([
      ["https://s/v2", both, both],
      ["https://s/v2", me.cert, me.key],
      ["https://s/v2", both, both],
    ]);
  });

  test("tries TLS first at an http server with TLS settings", async () => {
    configure("r.example", { "hosts.toml": 'server = "http://s.example"\nskip_verify = true' });
    const found = await resolveEndpoints("r.example", { ...registryOptions, configPath });
    expect(found.map(({ url, tls }) => [url, tls.skipVerify])).toEqual([
      ["https://s.example/v2", true],
      ["http://s.example/v2", true],
    ]);
  });

  test("uses the first existing folder of HOST_PORT_, HOST:PORT, _default", async () => {
    const toml = (host: string) => ({ "hosts.toml": `[host."https://${host}"]` });
    configure("r.example:5000", toml("b.example"));
    expect(await urls("r.example:5000")).toEqual([
      "https://b.example/v2",
      "https://r.example:5000/v2",
    ]);
    configure("r.example_5000_", toml("a.example"));
    expect((await urls("r.example:5000"))[0]).toBe("https://a.example/v2");
    configure("_default", toml("d.example"));
    expect(await urls("other.example")).toEqual([
      "https://d.example/v2",
      "https://other.example/v2",
    ]);
    fs.mkdirSync(join(configPath, "empty.example"));
    expect(await urls("empty.example")).toEqual(["https://empty.example/v2"]);
  });

  test("recognizes the server among the hosts", async () => {
    configure("s.example", { "hosts.toml": '[host."https://s.example"]\nskip_verify = true' });
    const same = await resolveEndpoints("s.example", { ...registryOptions, configPath });
    expect(same).toMatchObject([{ url: "https://s.example/v2", isOrigin: true }]);
    configure("p.example", {
      "hosts.toml": '[host."https://p.example"]\ncapabilities = ["pull"]',
    });
    const partly = await resolveEndpoints("p.example", { ...registryOptions, configPath });
    expect(partly.map(({ canResolve }) => canResolve)).toEqual([false, true]);
  });

  test("recognizes the server at its plain address, and keeps the one with TLS", async () => {
    const server = 'server = "https://p.example:5000"\n';
    for (const [name, text] of [
      ["p.example:5000", server],
      ["q.example:5000", ""],
    ] as const) {
      const hosts = `[host."http://${name}"]\n[host."http://${name}/v2/cache"]\noverride_path = true`;
      configure(name, { "hosts.toml": text + hosts });
      const found = await resolveEndpoints(name, { ...registryOptions, configPath });
      expect(found.map(({ url, isOrigin }) => [url, isOrigin])).toEqual([
        [`http://${name}/v2`, true],
        [`http://${name}/v2/cache`, false],
        [`https://${name}/v2`, true],
      ]);
    }
  });

  test("without a server line uses the registry as configured in daemon.json", async () => {
    configure("r.example", { "hosts.toml": '[header]\nX-A = "b"' });
    configure("127.0.0.1_5000_", { "hosts.toml": '[host."https://m.example"]' });
    const found = await resolveEndpoints("r.example", {
      ...registryOptions,
      configPath,
      insecure: ["r.example"],
    });
    expect(found).toMatchObject([
      { url: "https://r.example/v2", headers: { "x-a": "b" }, tls: { skipVerify: true } },
      { url: "http://r.example/v2", headers: { "x-a": "b" } },
    ]);
    expect(await urls("127.0.0.1:5000")).toEqual([
      "https://m.example/v2",
      "https://127.0.0.1:5000/v2",
      "http://127.0.0.1:5000/v2",
    ]);
  });

  test("reads certificates in Docker's layout if there is no hosts.toml", async () => {
    const files = { "ca.crt": authority.pem, "me.cert": me.cert, "me.key": me.key };
    configure("docker.io", files);
    configure("m.example", { "me.cert": both });
    const options = { ...registryOptions, configPath, mirrors: ["https://m.example"] };
    const [mirror, only] = await resolveEndpoints("docker.io", options);
    expect(mirror!.tls).toEqual({ cert: both, key: both, skipVerify: false, files: ["me.cert"] });
    expect(only!.tls).toEqual({
      ca: [authority.pem],
      ...me,
      skipVerify: false,
      files: ["ca.crt", "me.cert"],
    });
  });

  test.each([
    ["server = 1", "server"],
    ["server = ", "hosts.toml"],
    ['server = "ftp://x"', "ftp://x"],
    ['[host."https://a"]\nca = "missing.pem"', "missing.pem"],
    ['[host."https://a"]\nca = "me.key"', "holds no certificate"],
    ['client = ["me.pem"]', "holds no private key"],
    ['client = [["me.pem", "other.key"]]', "me.pem"],
    ['client = [["a", "b", "c"]]', "client"],
    ['client = [["", "me.key"]]', "client"],
    ['client = ""', "client"],
    ['ca = ""', "ca"],
    ['capabilities = ["pull", "fetch"]', "capabilities"],
    ['dial_timeout = "5"', "not a duration"],
    ['header = { "X Y" = "1" }', "not a header name"],
    ['header = { Authorization = "s3cret\\r\\nX: y" }', "not a header value"],
    ['server = "http://u:s3cret@x:y"', "http://…@x:y"],
  ])("refuses %j with the file's name and no secret", async (text, why) => {
    configure("bad.example", { "hosts.toml": text, "other.key": other.key });
    const error = await failure(urls("bad.example"));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("hosts.toml");
    expect(error.message).toContain(why);
    expect(error.message).not.toContain("s3cret");
  });

  test("refuses files that it would have to wait for, and text in another encoding", async () => {
    const texts = { "hosts.toml": 'ca = "fifo.pem"' };
    configure("fifo.example", texts);
    const folder = join(configPath, "fifo.example");
    execFileSync("mkfifo", [join(folder, "fifo.pem")]);
    const refusal = async () => {
      const error = await failure(urls("fifo.example"));
      expect(error.code).toBe("FAILED_PRECONDITION");
      return error.message;
    };
    expect(await refusal()).toContain("fifo.pem is a FIFO, not a regular file");
    fs.writeFileSync(join(folder, "hosts.toml"), Buffer.from('server = "http://\xe4"', "latin1"));
    expect(await refusal()).toContain("hosts.toml is not UTF-8");
    fs.writeFileSync(join(folder, "hosts.toml"), "# \n".repeat(30_000));
    expect(await refusal()).toContain("hosts.toml: is longer than 65536 bytes");
    fs.rmSync(join(folder, "hosts.toml"));
    execFileSync("mkfifo", [join(folder, "hosts.toml")]);
    expect(await refusal()).toContain("hosts.toml is a FIFO, not a regular file");
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
    ["[fd00::12]:5000", ["[fd00::]/8"], true],
    ["[fe00::12]:5000", ["[fd00::]/8"], false],
    ["[::ffff:10.1.2.3]", ["10.0.0.0/8"], true],
  ] as [string, string[], boolean][])("of %s with %j is %p", (domain, insecure, result) => {
    expect(isInsecure(domain, insecure)).toBe(result);
  });
});
