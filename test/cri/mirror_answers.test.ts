// Tests mirrors that send something else than the layer, or half of it: the registry's bytes decide.
import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdirSync, writeFileSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { join } from "node:path";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { makeImage, makeLayer } from "../image_maker.ts";
import { FakeRegistry } from "../registry/fake_registry.ts";

const image = makeImage([makeLayer([{ name: "f", data: randomBytes(100_000) }])]);
const layer = image.layers[0]!;
const using = new AsyncDisposableStack();
let daemon: Daemon;
let registry: FakeRegistry;
let mirror: FakeRegistry;
let certs: string;

beforeAll(async () => {
  registry = using.use(await FakeRegistry.start());
  mirror = using.use(await FakeRegistry.start());
  daemon = using.use(
    await startDaemon({ config: { "pull-progress-timeout": "5s" }, image: false, network: false }),
  );
  certs = join(daemon.dir, "certs.d");
  mkdirSync(join(certs, registry.host), { recursive: true });
  const hosts = `server = "${registry.url}"\n[host."${mirror.url}"]`;
  writeFileSync(join(certs, registry.host, "hosts.toml"), hosts);
  daemon.writeConfig({ "registry-config-path": certs });
  await daemon.client.Reload({});
});
afterAll(() => using.disposeAsync());
beforeEach(() => {
  for (const one of [registry, mirror]) {
    one.requests.length = 0;
    one.put("a/b", "1", image);
  }
});

async function pull(): Promise<string> {
  const { image_ref } = await daemon.client.PullImage({
    image: { image: `${registry.host}/a/b:1` },
  });
  await daemon.client.RemoveImage({ image: { image: image_ref } });
  return image_ref;
}

const { length } = layer.bytes;
function half(response: ServerResponse, then: () => void): void {
  response.writeHead(200, { "content-length": length });
  response.write(layer.bytes.subarray(0, length / 2), then);
}

test.each<[string, (response: ServerResponse) => void]>([
  ["another length", (response) => response.end("short")],
  [
    "no archive",
    (response) =>
      response.writeHead(200, { "content-length": length }).end(Buffer.alloc(length, "no layer")),
  ],
  ["half of it, again and again", (response) => half(response, () => response.destroy())],
  ["half of it, then nothing", (response) => half(response, () => {})],
])("a layer of which a mirror sends %s comes from the registry", async (_, answer) => {
  mirror.intercept = (_request, response, url) =>
    url.pathname.endsWith(layer.digest) && (answer(response), true);
  expect(await pull()).toBe(image.config.digest);
  expect(registry.requests).toHaveLength(1); // for the layer alone
});

test.each<[string, (response: ServerResponse, length: number) => void]>([
  ["falls silent", () => {}],
  ["breaks off", (response) => response.destroy()],
  ["sends something else", (response, length) => response.end(Buffer.alloc(length, "x"))],
])("a mirror that %s is asked for no further layer of the pull", async (_, answer) => {
  daemon.writeConfig({ "max-concurrent-downloads": 1, "registry-config-path": certs });
  await daemon.restart();
  const layers = [1, 2, 3].map((n) => makeLayer([{ name: `f${n}`, data: randomBytes(100) }]));
  const many = makeImage(layers);
  for (const one of [registry, mirror]) one.put("a/b", "1", many);
  const layerAt = (url: string) => layers.find(({ digest }) => url.includes(digest));
  mirror.intercept = (_request, response, url) => {
    const asked = layerAt(url.pathname);
    if (asked !== undefined) answer(response, asked.bytes.length);
    return asked !== undefined;
  };
  expect(await pull()).toBe(many.config.digest);
  expect(new Set(mirror.paths().filter(layerAt)).size).toBe(1);
  expect(registry.paths().filter(layerAt)).toHaveLength(3);
});

test("a layer that is no archive at the registry, either, is refused without a request to it", async () => {
  mirror.intercept = () => false;
  const bad = makeImage([makeLayer(Buffer.alloc(100_000, "no layer"), "none")]);
  for (const one of [registry, mirror]) one.put("a/b", "1", bad);
  const error = await failure(pull());
  expect(error.code).toBe("INVALID_ARGUMENT");
  expect(error.message).toContain("not a valid tar stream");
  expect(registry.requests).toEqual([]);
});
