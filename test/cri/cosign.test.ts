// Tests the image verifier of docs/images.md with the real cosign, which test/cosign builds: it accepts what the key has
// signed, with the credentials of the pull, and refuses everything else.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { failure, testMs } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage, mediaTypes, pushManifest, type TestImage } from "../image_maker.ts";
import { type Registry, startRegistry } from "../registry.ts";

const cosign = join(import.meta.dirname, "../.cache/cosign");
const user = { username: "me", password: "se:cret-3" };
const using = new AsyncDisposableStack();
const isBuilt = existsSync(cosign);
const dir = isBuilt ? mkdtempSync(join(tmpdir(), "isulad-cosign-")) : "";
const verifiers = join(dir, "verifiers");
const images = {
  signed: busyboxImage({ Labels: { is: "signed" } }),
  unsigned: busyboxImage({ Labels: { is: "unsigned" } }),
  foreign: busyboxImage({ Labels: { is: "foreign" } }),
  tampered: busyboxImage({ Labels: { is: "tampered" } }),
};
let daemon: Daemon;
/** Open to all; `secret` serves the same data to who has the password. */
let open: Registry;
let secret: Registry;

/** A home without credentials. */
const env = { PATH: process.env["PATH"], HOME: dir, COSIGN_PASSWORD: "" };

function run(...args: string[]): void {
  execFileSync(cosign, args, { cwd: dir, env, stdio: ["ignore", "ignore", "pipe"] });
}

const digestOf = ({ manifest }: TestImage) => manifest.digest;
const named = (name: keyof typeof images) => `${open.host}/app@${digestOf(images[name])}`;

function sign(name: keyof typeof images, key: string): void {
  run("sign", "--yes", "--key", `${key}.key`, "--tlog-upload=false", named(name));
}

/** The tag under which cosign keeps the signatures of an image. */
const signatureTag = (name: keyof typeof images) =>
  `${digestOf(images[name]).replace(":", "-")}.sig`;

/** Gives an image the signature of another one. */
async function copySignature(from: keyof typeof images, to: keyof typeof images): Promise<void> {
  const target = { registry: `http://${open.host}`, repository: "app" };
  const url = `${target.registry}/v2/app/manifests/${signatureTag(from)}`;
  const answer = await fetch(url, { headers: { accept: mediaTypes.manifest } });
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const [digest, mediaType] = ["", mediaTypes.manifest];
  await pushManifest(target, signatureTag(to), { bytes, digest, mediaType, size: bytes.length });
}

/** The program of the documentation, for the test's cosign and key; nothing here reaches Rekor. */
function documentedVerifier(): string {
  const page = readFileSync(join(import.meta.dirname, "../../docs/images.md"), "utf8");
  const script = page.split("```").find((part) => part.includes("exec cosign verify"))!;
  return script
    .replace(/^sh\n/, "")
    .replace("exec cosign verify", `exec ${cosign} verify --insecure-ignore-tlog`)
    .replace("/etc/isulad/cosign.pub", join(dir, "own.pub"));
}

describe.skipIf(!isBuilt)("cosign as image verifier", () => {
  beforeAll(async () => {
    open = using.use(await startRegistry());
    const path = join(dir, "htpasswd");
    writeFileSync(path, `me:${await Bun.password.hash(user.password, "bcrypt")}\n`);
    const auth = { htpasswd: { realm: "test", path } };
    secret = using.use(await startRegistry({ data: open.data, auth }));
    for (const [name, image] of Object.entries(images)) await open.push("app", name, image);
    for (const key of ["own", "other"]) run("generate-key-pair", "--output-key-prefix", key);
    sign("signed", "own");
    sign("foreign", "other");
    mkdirSync(verifiers);
    writeFileSync(join(verifiers, "cosign"), documentedVerifier(), { mode: 0o755 });
    const config = {
      "insecure-registries": [open.host, secret.host],
      "image-verifier-dir": verifiers,
      "per-verifier-timeout": "1m",
    };
    daemon = using.use(await startDaemon({ config, env: { HOME: dir }, image: false }));
  }, testMs(120_000));
  afterAll(async () => {
    await using.disposeAsync();
    rmSync(dir, { recursive: true });
  });

  const pull = async (image: string, auth?: typeof user) =>
    (await daemon.client.PullImage({ image: { image }, auth })).image_ref;

  /** tag: its image is the one of that name, unless another is said. */
  async function expectRefused(tag: keyof typeof images, why: string, is = tag): Promise<void> {
    const error = await failure(pull(`${open.host}/app:${tag}`));
    expect(error.code).toBe("UNKNOWN");
    expect(error.message).toMatch(
      /^SignatureValidationFailed: .*cosign refuses it \(exit code \d+\)/,
    );
    expect(error.message).toContain(why);
    const image = { image: images[is].config.digest };
    expect((await daemon.client.ImageStatus({ image })).image).toBeNull();
  }

  test("accepts an image that the key has signed, by tag and by digest", async () => {
    expect(await pull(`${open.host}/app:signed`)).toBe(images.signed.config.digest);
    expect(await pull(named("signed"))).toBe(images.signed.config.digest);
  });

  test("refuses an image without a signature", async () => {
    await expectRefused("unsigned", "no signatures found");
  });

  test("refuses an image that another key has signed", async () => {
    await expectRefused("foreign", "invalid signature");
  });

  test("refuses another image under the name of a signed one, and with its signature", async () => {
    await open.push("app", "signed", images.tampered);
    await expectRefused("signed", "no signatures found", "tampered");
    await copySignature("signed", "tampered");
    await expectRefused("signed", "no matching signatures", "tampered");
    await open.push("app", "signed", images.signed);
    expect(await pull(`${open.host}/app:signed`)).toBe(images.signed.config.digest);
  });

  test("reads the signature with the credentials of the pull", async () => {
    const name = `${secret.host}/app:signed`;
    expect((await failure(pull(name))).code).toBe("UNAUTHENTICATED");
    expect(await pull(name, user)).toBe(images.signed.config.digest);
    expect(daemon.log).not.toContain(user.password);
  });
});
