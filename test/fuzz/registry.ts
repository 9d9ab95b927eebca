// Runs a registry of hostile images that answers one request of three in a hostile way.
import type { ServerResponse } from "node:http";
import { FakeRegistry } from "../registry/fake_registry.ts";
import { changedJson } from "../layer/fuzz.ts";
import {
  blob,
  busyboxImage,
  descriptor,
  makeImage,
  makeLayer,
  mediaTypes,
  type TestImage,
} from "../image_maker.ts";
import { hostileOutput } from "./turns.ts";
import { type Chance, hostileString, pick } from "./values.ts";

const imagesCount = 12;
const slowMs = 4_000;

export class HostileRegistry implements AsyncDisposable {
  readonly #registry: FakeRegistry;
  readonly #good: TestImage;
  #chance: Chance | undefined;

  private constructor(registry: FakeRegistry) {
    this.#registry = registry;
    this.#good = busyboxImage();
    registry.put("fuzz/good", "1", this.#good);
    registry.intercept = (_, response) => this.#answer(response);
  }

  static async start(): Promise<HostileRegistry> {
    return new HostileRegistry(await FakeRegistry.start());
  }

  get url(): string {
    return this.#registry.url;
  }

  /** References of a good image, of hostile ones, and of none. */
  get references(): string[] {
    const { host } = this.#registry;
    const hostile = Array.from({ length: imagesCount }, (_, i) => `${host}/fuzz/h${i}:1`);
    return [`${host}/fuzz/good:1`, ...hostile, `${host}/fuzz/none:1`, "docker.io/fuzz/good:1"];
  }

  /** Makes new images and misbehaves from now on; without a chance it answers well. */
  shuffle(chance: Chance | undefined): void {
    this.#chance = chance;
    this.#registry.requests.length = 0;
    if (chance === undefined) return;
    for (let i = 0; i < imagesCount; i++) {
      this.#registry.put(`fuzz/h${i}`, "1", hostileImage(chance, this.#good));
    }
  }

  /** Whether it answered. */
  #answer(response: ServerResponse): boolean {
    const chance = this.#chance;
    if (chance === undefined || chance(3) > 0) return false;
    const body = hostileOutput(chance, errorBodies);
    const status = pick(
      chance,
      [200, 206, 301, 307, 400, 401, 401, 403, 404, 416, 429, 500, 503, 599],
    );
    const kind = chance(8);
    if (kind === 0) {
      response.socket?.end(`HTTP/1.1 ${pick(chance, ["abc", "99", "200", "-1"])} x\r\nA\r\n\r\n`);
      return true;
    }
    response.writeHead(status, headersOf(chance, kind === 1 ? body.length + 1_000 : undefined));
    response.write(body.subarray(0, 10));
    if (kind === 2) setTimeout(() => response.end(body.subarray(10)), slowMs).unref();
    else if (kind === 3) setTimeout(() => response.destroy(), 100).unref();
    else response.end(body.subarray(10));
    return true;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#registry[Symbol.asyncDispose]();
  }
}

const errorBodies = [
  { errors: [{ code: "DENIED", message: "no", detail: { a: "b" } }] },
  { errors: [{ code: "TOOMANYREQUESTS", message: `${"x".repeat(295)}😀😀😀` }] },
  { token: "t", access_token: "t", expires_in: 60, issued_at: "2024-01-01T00:00:00Z" },
  { schemaVersion: 2, config: {}, layers: [], manifests: [] },
];

/** Node refuses what HTTP cannot carry; bytes over 0x7f are sent as latin1. */
function headersOf(chance: Chance, length: number | undefined): Record<string, string | number> {
  const text = () =>
    hostileString(chance)
      .replaceAll(/[^\x20-\x7E\x80-\xFF]/g, "?")
      .slice(0, 8_000);
  const headers: Record<string, string | number> = {};
  const values = {
    "content-type": () =>
      pick(chance, [mediaTypes.manifest, mediaTypes.index, "text/html", text()]),
    "docker-content-digest": () =>
      pick(chance, ["sha256:0", "md5:x", `sha256:${"f".repeat(64)}`, text()]),
    "www-authenticate": () =>
      pick(chance, [
        'Bearer realm="http://127.0.0.1:1/token",service="x"',
        'Bearer realm="nowhere.invalid"',
        "Basic",
        `Bearer realm="${text()}`,
      ]),
    location: () =>
      pick(chance, ["/", "//", "http://127.0.0.1:1/x", "http://[::1", "file:///etc/passwd"]),
    "retry-after": () => pick(chance, ["0", "99999999999", "-1", text()]),
    "content-range": () => pick(chance, ["bytes 0-0/1", "bytes */9", text()]),
  };
  for (const [name, make] of Object.entries(values)) if (chance(3) === 0) headers[name] = make();
  if (length !== undefined) headers["content-length"] = length;
  return headers;
}

/** busybox under a configuration, and sometimes a manifest, with hostile values. */
export function hostileImage(chance: Chance, from: TestImage): TestImage {
  const settings = {
    User: pick(chance, ["", "0", "user", "\uD800", "4294967296", "a:b:c", hostileString(chance)]),
    Env: ["PATH=/bin", `A=${hostileString(chance)}`, hostileString(chance)],
    Cmd: pick(chance, [["sleep", "600"], [hostileString(chance)], []]),
    Entrypoint: chance(3) === 0 ? [hostileString(chance)] : [],
    WorkingDir: pick(chance, ["", "/", "/new", "..", hostileString(chance)]),
    StopSignal: pick(chance, ["SIGTERM", "99", "", hostileString(chance)]),
    Labels: { [hostileString(chance)]: hostileString(chance) },
    Volumes: { [pick(chance, ["/v", "/../v", "v", hostileString(chance)])]: {} },
    ExposedPorts: { [hostileString(chance)]: {} },
  };
  const image = makeImage(from.layers, settings);
  if (chance(3) > 0) return image;
  const config = changedJson(chance, JSON.parse(Buffer.from(image.config.bytes).toString()), 0);
  const changed = blob(mediaTypes.config, JSON.stringify(config) ?? "");
  const manifest = {
    schemaVersion: 2,
    mediaType: mediaTypes.manifest,
    config: descriptor(changed),
    layers: image.layers.map(descriptor),
  };
  const listed = chance(2) === 0 ? changedJson(chance, manifest, 0) : manifest;
  return {
    ...image,
    config: changed,
    manifest: blob(mediaTypes.manifest, JSON.stringify(listed) ?? ""),
  };
}

/** A small image for archives. */
export function smallImage(): TestImage {
  return makeImage([makeLayer([{ name: "a", data: "b" }])]);
}
