// Tests pulls from the real docker-registry: an image that runs, from an index, behind an untrusted
// certificate, through a mirror. test/cri/registries.test.ts has passwords, tokens and certificates.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Authority } from "../certificates.ts";
import { busyboxImage, hostPlatform, makeImage, pushIndex } from "../image_maker.ts";
import { startRegistry, type Registry } from "../registry.ts";
import { openFixture, within } from "../image/fixture.ts";

const image = busyboxImage({ User: "user" }, [{ name: "extra/file", data: "extra" }]);
const dir = fs.mkdtempSync(join(tmpdir(), "isulad-tls-"));
let plain: Registry;
let secure: Registry;

beforeAll(async () => {
  plain = await startRegistry();
  await plain.push("library/busybox", "latest", image);
  new Authority(dir).sign("server", "IP:127.0.0.1");
  const tls = { certificate: join(dir, "server.pem"), key: join(dir, "server.key") };
  secure = await startRegistry({ data: plain.data, tls });
});
afterAll(async () => {
  await secure?.[Symbol.asyncDispose]();
  await plain?.[Symbol.asyncDispose]();
  fs.rmSync(dir, { recursive: true, force: true });
});

describe("docker-registry", () => {
  test("serves an image that runs: owners, hard links, and its config", async () => {
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

  test("serves this machine's image of an index", async () => {
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

  test("behind an untrusted certificate serves as an insecure registry", async () => {
    await using fixture = await openFixture({ insecure: [secure.host] });
    const name = `${secure.host}/library/busybox`;
    const pulled = await fixture.store.pull(name, { signal: within() });
    expect(pulled.id).toBe(image.config.digest);
  });

  test("as the mirror of docker.io serves short names", async () => {
    await using fixture = await openFixture({ mirrors: [`http://${plain.host}`] });
    const pulled = await fixture.store.pull("busybox", { signal: within() });
    expect(pulled.repoTags).toEqual(["docker.io/library/busybox:latest"]);
  });
});
