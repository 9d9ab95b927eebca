// Pulls from the real docker-registry: with a password, over TLS of our own authority, as a mirror.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { failure } from "../expect.ts";
import { busyboxImage, hostPlatform, makeImage, pushImage, pushIndex } from "../image_maker.ts";
import { freePort, startRegistry, type Registry } from "../registry.ts";
import { openFixture, within } from "./fixture.ts";

const image = busyboxImage({ User: "user" }, [{ name: "extra/file", data: "extra" }]);
const user = { username: "me", password: "se:cret" };
const openssl = Bun.which("openssl");
let plain: Registry;
let dir: string;
let secret: ChildProcess | undefined;
let secretHost: string;

beforeAll(async () => {
  plain = await startRegistry();
  await plain.push("library/busybox", "latest", image);
  dir = fs.mkdtempSync(join(tmpdir(), "isulad-tls-"));
  secretHost = `127.0.0.1:${await freePort()}`;
  if (openssl === null) return;
  makeCertificate();
  fs.writeFileSync(join(dir, "htpasswd"), `me:${await Bun.password.hash("se:cret", "bcrypt")}\n`);
  fs.writeFileSync(
    join(dir, "config.yml"),
    `version: 0.1
storage: { filesystem: { rootdirectory: ${dir}/data } }
http: { addr: "${secretHost}", tls: { certificate: ${dir}/cert.pem, key: ${dir}/key.pem } }
auth: { htpasswd: { realm: test, path: ${dir}/htpasswd } }
log: { level: error }
`,
  );
  const args = ["serve", join(dir, "config.yml")];
  secret = spawn("docker-registry", args, { stdio: "ignore" });
  await pushBehindTls();
});
afterAll(async () => {
  secret?.kill("SIGKILL");
  await plain?.[Symbol.asyncDispose]();
  fs.rmSync(dir, { recursive: true, force: true });
});

function makeCertificate(): void {
  const args = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -keyout";
  execFileSync(
    "openssl",
    [
      ...args.split(" "),
      join(dir, "key.pem"),
      "-out",
      join(dir, "cert.pem"),
      "-addext",
      "subjectAltName=IP:127.0.0.1",
    ],
    { stdio: "ignore" },
  );
}

async function pushBehindTls(): Promise<void> {
  const authorization = `Basic ${Buffer.from("me:se:cret").toString("base64")}`;
  const ca = fs.readFileSync(join(dir, "cert.pem"), "utf8");
  const target = { registry: `https://${secretHost}`, repository: "a/b", authorization, ca };
  for (let tries = 0; ; tries++) {
    try {
      await pushImage(target, "1", image);
      return;
    } catch (error) {
      if (tries > 100) throw error;
      await Bun.sleep(100);
    }
  }
}

/** A certs.d tree with one registry's hosts.toml. */
function configure(host: string, text: string): string {
  const configPath = fs.mkdtempSync(join(dir, "certs-"));
  fs.mkdirSync(join(configPath, host));
  fs.copyFileSync(join(dir, "cert.pem"), join(configPath, host, "ca.pem"));
  fs.writeFileSync(join(configPath, host, "hosts.toml"), text);
  return configPath;
}

describe("docker-registry", () => {
  test("gives an image that runs: owners, hard links, and its config", async () => {
    await using fixture = await openFixture();
    const ref = `${plain.host}/library/busybox`;
    const pulled = await fixture.store.pull(ref, { signal: within() });
    expect(pulled.config).toMatchObject({ User: "user", Cmd: ["sh"] });
    const root = await fixture.store.mountRootfs(pulled, {
      dir: join(fixture.graph, "containers/c"),
    });
    const run = (command: string) =>
      execFileSync("chroot", [root, "/bin/sh", "-c", command], { encoding: "utf8" });
    expect(run("cat /extra/file; stat -c %u:%g:%a /home/user /tmp")).toBe(
      "extra1000:1000:755\n0:0:1777\n",
    );
    const applets = fs.readdirSync(join(root, "bin")).length;
    expect(run("stat -c %h /bin/ls")).toBe(`${applets}\n`);
  });

  test("gives this machine's image of an index", async () => {
    const { architecture } = hostPlatform();
    const other = architecture === "amd64" ? "arm64" : "amd64";
    const foreign = makeImage(image.layers, {}, { os: "linux", architecture: other });
    const target = { registry: `http://${plain.host}`, repository: "multi" };
    const index = await pushIndex(target, "1", [foreign, image]);
    await using fixture = await openFixture();
    const pulled = await fixture.store.pull(`${plain.host}/multi:1`, { signal: within() });
    expect(pulled.id).toBe(image.config.digest);
    expect(pulled.repoDigests).toEqual([`${plain.host}/multi@${index.digest}`]);
  });

  test.skipIf(openssl === null)(
    "behind TLS and a password needs the authority and the right password",
    async () => {
      const configPath = configure(secretHost, `server = "https://${secretHost}"\nca = "ca.pem"`);
      await using fixture = await openFixture({ configPath });
      const pull = async (auth?: typeof user) =>
        await fixture.store.pull(`${secretHost}/a/b:1`, { auth, signal: within() });
      expect((await failure(pull())).code).toBe("UNAUTHENTICATED");
      expect((await failure(pull({ ...user, password: "x" }))).code).toBe("UNAUTHENTICATED");
      expect((await pull(user)).id).toBe(image.config.digest);
      const unknown = configure(secretHost, `server = "https://${secretHost}"`);
      await using strict = await openFixture({ configPath: unknown });
      const error = await failure(
        strict.store.pull(`${secretHost}/a/b:1`, { auth: user, signal: within() }),
      );
      expect(error.code).toBe("UNAVAILABLE");
      expect(error.message).toContain("insecure-registries");
    },
  );

  test.skipIf(openssl === null)(
    "behind a certificate of nobody serves as an insecure registry",
    async () => {
      await using fixture = await openFixture({ insecure: [secretHost] });
      const options = { auth: user, signal: within() };
      const pulled = await fixture.store.pull(`${secretHost}/a/b:1`, options);
      expect(pulled.id).toBe(image.config.digest);
    },
  );

  test("as the mirror of docker.io serves short names", async () => {
    await using fixture = await openFixture({ mirrors: [`http://${plain.host}`] });
    const pulled = await fixture.store.pull("busybox", { signal: within() });
    expect(pulled.repoTags).toEqual(["docker.io/library/busybox:latest"]);
  });
});
