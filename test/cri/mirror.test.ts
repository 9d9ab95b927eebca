// Tests serve-blobs: with the registry cut off, one node pulls from another, unless credentials were needed.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { startDaemon, type Daemon } from "../harness.ts";
import { makeImage, makeLayer } from "../image_maker.ts";
import { freePort } from "../registry.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";

const image = makeImage([makeLayer([{ name: "etc/motd", data: "from afar" }])]);
const using = new AsyncDisposableStack();
let registry: string;
let mirror: string;
let near: Daemon;
let far: Daemon;

beforeAll(async () => {
  const fake = await FakeRegistry.start();
  registry = fake.host;
  for (const name of ["team/open", "team/secret"]) fake.put(name, "1", image);
  mirror = `127.0.0.1:${await freePort()}`;
  const serves = {
    "keep-blobs": true,
    "serve-blobs": mirror,
    "serve-blobs-clients": ["127.0.0.0/8"],
  };
  near = using.use(await startDaemon({ config: serves, image: false, network: false }));
  far = await startDaemon({ image: false, network: false });
  using.use(far);
  await pull(near, "open");
  await pull(near, "secret", { username: "me", password: "s3cret" });
  await fake[Symbol.asyncDispose]();
  const certs = join(far.dir, "certs.d");
  mkdirSync(join(certs, registry), { recursive: true });
  const hosts = `[host."http://${mirror}"]\n  capabilities = ["pull", "resolve"]\n`;
  writeFileSync(join(certs, registry, "hosts.toml"), hosts);
  far.writeConfig({ "registry-config-path": certs });
  await far.client.Reload({});
});
afterAll(() => using.disposeAsync());

function pull(daemon: Daemon, name: string, auth?: { username: string; password: string }) {
  return daemon.client.PullImage({ image: { image: `${registry}/team/${name}:1` }, auth });
}

test("a node pulls by tag from a neighbour while the registry is cut off", async () => {
  expect((await pull(far, "open")).image_ref).toBe(image.config.digest);
  await far.client.RemoveImage({ image: { image: image.config.digest } });
});

test("a node serves an image to others only if one pull of it needed no credentials", async () => {
  const statuses = ["open", "secret"].map(async (name) => {
    const path = `team/${name}/manifests/${image.manifest.digest}?ns=${registry}`;
    return (await fetch(`http://${mirror}/v2/${path}`)).status;
  });
  expect(await Promise.all(statuses)).toEqual([200, 404]);
});
