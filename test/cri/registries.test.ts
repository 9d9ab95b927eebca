// Tests pulls from the real docker-registry by every route: HTTP, TLS with a private CA and client
// certificates, passwords, tokens, an incomplete mirror, a proxy. Compares the results with those of skopeo
// and umoci, file by file.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { AuthConfig } from "../../src/proto/types.ts";
import { Authority } from "../certificates.ts";
import { failure } from "../expect.ts";
import { type Daemon, executable, startDaemon } from "../harness.ts";
import { makeImage, makeLayer, pushImage } from "../image_maker.ts";
import { type Registry, startRegistry } from "../registry.ts";
import { TestProxy } from "../registry_proxy.ts";
import { TokenServer } from "../token_server.ts";
import { listTree } from "../tree.ts";

const layerCount = 6;
const user = { username: "me", password: "se:cret-1" };
const refreshToken = "refresh-s3cret-2";

const dir = fs.mkdtempSync(join(tmpdir(), "isulad-registries-"));
const certs = join(dir, "certs.d");
const authFile = join(dir, "auth.json");
const image = makeImage(Array.from({ length: layerCount }, (_, index) => layerOf(index)));
const using = new AsyncDisposableStack();
let authority: Authority;
/** Of its files, but for .pem and .key. */
const client = join(dir, "client");
let plain: Registry;
let mutual: Registry;
let secret: Registry;
let tokens: TokenServer;
let guarded: Registry;
let mirror: Registry;
let halved: Registry;
let proxy: TestProxy;
let daemon: Daemon;
let podId: string;
let pod: ReturnType<Daemon["podConfig"]>;
let expected: string[];

/** All that a layer may bring; each later one changes something of those before. */
function layerOf(index: number) {
  const at = `d${index}/`;
  const capability = Buffer.from("0100000200040000000000000000000000000000", "hex");
  return makeLayer([
    { name: at, type: "5", mode: 0o1771, uid: 5, gid: 6 },
    { name: `${at}file`, data: randomBytes(100_000), uid: 1000, gid: 50, mtime: 1_600_000_000 },
    { name: `${at}setuid`, data: "x", mode: 0o6755 },
    { name: `${at}hard`, type: "1", link: `${at}file` },
    { name: `${at}soft`, type: "2", link: "/nowhere/at all", uid: 7, gid: 8 },
    { name: `${at}null`, type: "3", major: 1, minor: 3, mode: 0o666 },
    { name: `${at}fifo`, type: "6", mode: 0o640 },
    { name: `${at}x`, data: "x", pax: { "SCHILY.xattr.user.test": `value ${index}` } },
    { name: `${at}cap`, data: "x", pax: { "SCHILY.xattr.security.capability": capability } },
    { name: `${at}${"long".repeat(50)}`, data: "long" },
    { name: "same", data: `of layer ${index}`, mode: 0o600 + index },
    { name: `gone${index}`, data: "x" },
    ...(index > 0 ? [{ name: `.wh.gone${index - 1}` }] : []),
  ]);
}

function hostsToml(domain: string, text: string): void {
  const folder = join(certs, domain.replace(/:(\d+)$/, "_$1_"));
  fs.mkdirSync(folder, { recursive: true });
  fs.writeFileSync(join(folder, "hosts.toml"), text);
}

async function startRegistries(): Promise<void> {
  authority = new Authority(dir);
  authority.sign("server", "IP:127.0.0.1,DNS:registry.test");
  const signed = authority.sign("client", "DNS:client");
  const [certificate, key] = [join(dir, "server.pem"), join(dir, "server.key")];
  plain = using.use(await startRegistry());
  await plain.push("a/b", "1", image);
  const { data } = plain;
  const tls = { certificate, key };
  const clientcas = [join(dir, "ca.pem")];
  mutual = using.use(await startRegistry({ data, tls: { ...tls, clientcas } }));
  const path = join(dir, "htpasswd");
  fs.writeFileSync(path, `me:${await Bun.password.hash(user.password, "bcrypt")}\n`);
  secret = using.use(
    await startRegistry({ data, tls, auth: { htpasswd: { realm: "test", path } } }),
  );
  const account = { user: user.username, password: user.password, refreshToken };
  tokens = using.use(await TokenServer.start(signed, account));
  guarded = using.use(await startRegistry({ data, auth: tokens.auth(join(dir, "ca.pem")) }));
  halved = using.use(await halfRegistry(0));
  mirror = using.use(await halfRegistry(1));
  const portOf = ({ host }: Registry) => Number(host.split(":")[1]);
  const hosts = { "plain.test": portOf(plain), "registry.test": portOf(secret) };
  proxy = using.use(await TestProxy.start(hosts));
}

/** It has the image, but for every other layer. */
async function halfRegistry(first: number): Promise<Registry> {
  const registry = await startRegistry();
  await pushImage({ registry: `http://${registry.host}`, repository: "a/b" }, "1", image);
  for (let index = first; index < layerCount; index += 2) {
    const digest = image.layers[index]!.digest.slice(7);
    const blobs = join(registry.data, "docker/registry/v2/blobs/sha256", digest.slice(0, 2));
    fs.rmSync(join(blobs, digest, "data"));
  }
  return registry;
}

function configure(): void {
  const ca = JSON.stringify(join(dir, "ca.pem"));
  const pair = JSON.stringify([[`${client}.pem`, `${client}.key`]]);
  hostsToml(mutual.host, `server = "https://${mutual.host}"\nca = ${ca}\nclient = ${pair}`);
  hostsToml(secret.host, `server = "https://${secret.host}"\nca = [${ca}]`);
  hostsToml(halved.host, `server = "http://${halved.host}"\n[host."http://${mirror.host}"]`);
  hostsToml("plain.test", 'server = "http://plain.test"');
  hostsToml("registry.test", `server = "https://registry.test"\nca = ${ca}`);
  fs.writeFileSync(authFile, "{}");
}

function referenceTree(): string[] {
  const [oci, bundle] = [join(dir, "oci"), join(dir, "bundle")];
  const source = `docker://${plain.host}/a/b:1`;
  execFileSync("skopeo", ["copy", "--quiet", "--src-tls-verify=false", source, `oci:${oci}:1`]);
  execFileSync("umoci", ["unpack", "--image", `${oci}:1`, bundle], { stdio: "ignore" });
  return listTree(join(bundle, "rootfs"));
}

beforeAll(async () => {
  await startRegistries();
  configure();
  expected = referenceTree();
  const env = { HTTP_PROXY: proxy.url, https_proxy: proxy.url, NO_PROXY: "other.test" };
  const config = { "registry-config-path": certs, "registry-auth-file": authFile };
  daemon = using.use(await startDaemon({ config, env, image: false, network: false }));
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
});
afterAll(async () => {
  await using.disposeAsync();
  fs.rmSync(dir, { recursive: true, force: true });
});

const pull = async (name: string, auth?: AuthConfig) =>
  (await daemon.client.PullImage({ image: { image: name }, auth })).image_ref;

/** Pulls it anew, and compares all that a container of it would see. */
async function expectWhole(name: string, auth?: AuthConfig): Promise<void> {
  const id = await pull(name, auth);
  expect(id).toBe(image.config.digest);
  const spec = { image: { image: id, user_specified_image: name } };
  const container = await daemon.create(podId, pod, ["/d0/setuid"], spec);
  expect(listTree(join(daemon.dir, "graph/containers", container, "rootfs"))).toEqual(expected);
  await daemon.client.RemoveContainer({ container_id: container });
  await daemon.client.RemoveImage({ image: { image: id } });
}

async function check(name: string, creds = "") {
  const argv = [executable, "registry", "check", name, "--host", `unix://${daemon.socket}`];
  const child = Bun.spawn(argv, { env: { ...process.env, ISULAD_CREDS: creds }, stderr: "pipe" });
  const [stdout, stderr] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  return { code: await child.exited, text: stdout + stderr };
}

describe("an image arrives whole", () => {
  test("the reference has what makes it hard", () => {
    const lines = expected.filter((line) => line.startsWith("d1/"));
    expect(lines.find((line) => line.startsWith("d1/setuid"))).toContain(" 106755 ");
    expect(lines.find((line) => line.startsWith("d1/hard"))).toContain(" = d1/file");
    expect(lines.find((line) => line.startsWith("d1/cap"))).toContain("0100000200040000");
    expect(lines.find((line) => line.startsWith("d1/x"))).toContain(
      Buffer.from("value 1").toString("hex"),
    );
    expect(expected.filter((line) => line.startsWith("gone"))).toHaveLength(1);
  });

  test("over HTTP", () => expectWhole(`${plain.host}/a/b:1`));

  test("over TLS with an authority and a client certificate of one's own", async () => {
    const name = `${mutual.host}/a/b:1`;
    await expectWhole(name);
    const ca = `ca = ${JSON.stringify(join(dir, "ca.pem"))}`;
    const server = `server = "https://${mutual.host}"`;
    hostsToml(mutual.host, `${server}\n${ca}`);
    const noClient = await failure(pull(name));
    hostsToml(mutual.host, `${server}\nclient = [["${client}.pem", "${client}.key"]]`);
    const noAuthority = await failure(pull(name));
    expect([noClient.code, noAuthority.code]).toEqual(["UNAVAILABLE", "UNAVAILABLE"]);
    expect(noClient.message).toContain("client certificate");
    expect(noAuthority.message).toContain("hosts.toml");
    const strange = new Authority(dir, "strange").sign("stranger", "DNS:stranger");
    fs.writeFileSync(join(dir, "both.pem"), strange.cert + strange.key);
    const clients = JSON.stringify([
      [join(dir, "both.pem"), ""],
      [`${client}.pem`, `${client}.key`],
    ]);
    const capabilities = 'capabilities = ["pull", "resolve", "referrers"]';
    hostsToml(mutual.host, `${server}\n${capabilities}\n${ca}\nclient = ${clients}`);
    await expectWhole(name); // the second of them is let in
  });

  test("with a password, from the pull or from the node's file", async () => {
    const name = `${secret.host}/a/b:1`;
    expect((await failure(pull(name))).code).toBe("UNAUTHENTICATED");
    const wrong = await failure(pull(name, { ...user, password: "wrong-s3cret" }));
    expect(wrong.code).toBe("UNAUTHENTICATED");
    expect(wrong.message).not.toContain("wrong-s3cret");
    await expectWhole(name, user);
    const auth = Buffer.from(`me:${user.password}`).toString("base64");
    fs.writeFileSync(authFile, JSON.stringify({ auths: { [`${secret.host}/a`]: { auth } } }));
    await expectWhole(name);
    fs.writeFileSync(authFile, "{}");
  });

  test.each<[string, () => AuthConfig, string[]]>([
    ["user and password", () => user, ["GET"]],
    ["auth", () => ({ auth: Buffer.from(`me:${user.password}`).toString("base64") }), ["GET"]],
    ["an identity token", () => ({ identity_token: refreshToken }), ["POST refresh_token"]],
    ["a registry token", () => ({ registry_token: tokens.token("a/b", ["pull"]) }), []],
  ])("with tokens that %s gets", async (_, auth, asked) => {
    tokens.requests.length = 0;
    await expectWhole(`${guarded.host}/a/b:1`, { ...auth(), server_address: guarded.host });
    expect([...new Set(tokens.requests)]).toEqual(asked);
    const foreign = { ...auth(), server_address: "other.example" };
    const error = await failure(pull(`${guarded.host}/a/b:1`, foreign));
    expect(error.code).toBe("UNAUTHENTICATED");
  });

  test("from a mirror that lacks half of it and a registry that lacks the other half", async () => {
    await expectWhole(`${halved.host}/a/b:1`);
  });

  test("through a proxy, which also knows what no name server does", async () => {
    await expectWhole("plain.test/a/b:1");
    await expectWhole("registry.test/a/b:1", user);
    expect(proxy.requests).toContain("GET http://plain.test/v2/a/b/manifests/1");
    expect(proxy.requests).toContain("CONNECT registry.test:443");
    const past = await failure(pull("other.test/a/b:1"));
    expect(past.message).toContain("host name not found");
    expect(proxy.requests.join()).not.toContain("other.test");
  });
});

describe("registry check", () => {
  test("lists each endpoint with its TLS, proxy, credentials and result", async () => {
    const good = await check(`${secret.host}/a/b:1`, `me:${user.password}`);
    expect(good.text).toContain(`1. https://${secret.host}/v2`);
    expect(good.text).toContain(`from ${certs}`);
    expect(good.text).toContain(`verified with the system CAs, and ${dir}/ca.pem`);
    expect(good.text).toContain('user "me", given with the pull (basic)');
    expect(good.text).toContain(`has ${image.manifest.digest}, ${layerCount} layers`);
    expect(good.code).toBe(0);
    const proxied = await check("registry.test/a/b:1", `me:${user.password}`);
    expect(proxied.text).toContain(`http://${proxy.host} (https_proxy)`);
    expect(proxied.code).toBe(0);
    expect((await daemon.client.ListImages({})).images).toEqual([]);
  });

  test("reports each failure without secrets", async () => {
    const wrong = await check(`${secret.host}/a/b:1`, "me:wrong-s3cret");
    expect(wrong.code).toBe(1);
    expect(wrong.text).toContain("failed, UNAUTHENTICATED");
    expect(wrong.text).toContain("A pull would fail.");
    hostsToml(
      "many.test",
      `server = "http://plain.test"
[host."http://127.0.0.1:1"]
  capabilities = ["pull"]
[host."http://127.0.0.1:2"]
  [host."http://127.0.0.1:2".header]
    Authorization = "Bearer header-s3cret"
[host."https://${secret.host}"]`,
    );
    const { code, text } = await check("many.test/a/b:1");
    expect(code).toBe(0);
    expect(text).toMatch(/1\. http:\/\/127\.0\.0\.1:1\/v2\n.*mirror, may pull;[^]*skipped/);
    expect(text).toMatch(/2\. [^]*header authorization\n.*failed, UNAVAILABLE.*connection refused/);
    expect(text).toMatch(/3\. [^]*system CAs\n[^]*certificate is not trusted/);
    expect(text).toMatch(/4\. http:\/\/plain\.test\/v2\n.*registry, may resolve and pull/);
    expect(wrong.text + text).not.toContain("s3cret");
    expect(text).toContain("A pull would succeed.");
  });
});

test("no secret is in the daemon's log", () => {
  const token = tokens.token("a/b", ["pull"]).split(".")[0]!;
  const secrets = [user.password, refreshToken, "s3cret", token, "Bearer ey"];
  const encoded = [`me:${user.password}`, "proxy-user:proxy-s3cret"].map((text) =>
    Buffer.from(text).toString("base64"),
  );
  for (const word of [...secrets, ...encoded]) expect(daemon.log).not.toContain(word);
});
