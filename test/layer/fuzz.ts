// Fuzzes layers, compressed streams, manifests and configs: `bun test/layer/fuzz.ts [--rounds 2000] [--seed
// N]`. Any input must give a CriError or a layer that matches its stream; nothing outside of the layer's
// folder may change, and nothing may stay of refused input.
import * as fs from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";
import { CriError, messageOf } from "../../src/base/errors.ts";
import { Inflate } from "../../src/layer/inflate.ts";
import { parseConfig, parseManifest } from "../../src/image/manifest.ts";
import { TarReader } from "../../src/layer/tar_reader.ts";
import { makeImage, makeLayer, sha256, tar, type TarEntry } from "../image_maker.ts";
import { random } from "../random.ts";
import { loadLayers, openFixture, within, type Fixture } from "../image/fixture.ts";

type Chance = (below: number) => number;

const codes = ["INVALID_ARGUMENT", "DATA_LOSS", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"];

function chanceOf(seed: number): Chance {
  const next = random(seed);
  return (below) => Math.floor(next() * below);
}

function pick<T>(chance: Chance, from: readonly T[]): T {
  return from[chance(from.length)]!;
}

/** @throws Error when the error is not a CriError with one of the expected codes. */
function assertExpected(error: unknown): void {
  if (error instanceof CriError && codes.includes(error.code)) return;
  throw new Error(`an unexpected error: ${messageOf(error)}`, { cause: error });
}

// -- input ---------------------------------------------------------------------------------

const parts = ["a", "b", "c", "..", ".", "", ".wh.a", ".wh..wh..opq", ".wh.", "é", "n".repeat(120)];
const numbers = ["0", "5", "-1", "4294967296", "x", "1e9", "99999999999999999999", ""];

/** Lone surrogates, and a character across the limit at which texts are clipped. */
const broken = ["\uD800", "a\uDFFFb", `${"x".repeat(299)}😀`];

function nameOf(chance: Chance): string {
  const count = 1 + chance(4);
  const name = Array.from({ length: count }, () => pick(chance, parts)).join("/");
  return (chance(8) === 0 ? "/" : "") + name + (chance(6) === 0 ? "/" : "");
}

function entryOf(chance: Chance): TarEntry {
  const type = pick(chance, [
    "0",
    "0",
    "0",
    "1",
    "2",
    "2",
    "3",
    "5",
    "5",
    "6",
    "7",
    "S",
    "V",
    "\0",
  ]);
  const entry: TarEntry = {
    name: nameOf(chance),
    type,
    mode: chance(0o10000),
    uid: chance(70_000),
  };
  if (chance(2) === 0) entry.data = "d".repeat(chance(2000));
  if (type === "1" || type === "2")
    entry.link = pick(chance, [nameOf(chance), "/etc/passwd", "../.."]);
  if (type === "3") entry.minor = chance(3);
  if (chance(4) === 0) entry.pax = paxOf(chance);
  if (chance(12) === 0) entry.patch = (header) => header.fill(chance(256), chance(500), 512);
  return entry;
}

function paxOf(chance: Chance): Record<string, string> {
  const keys = {
    "SCHILY.xattr.user.k": "v",
    "SCHILY.xattr.trusted.k": "v",
    "SCHILY.xattr.security.capability": "bad",
    path: nameOf(chance),
    linkpath: nameOf(chance),
    size: pick(chance, numbers),
    uid: pick(chance, numbers),
    mtime: pick(chance, [...numbers, "1.5", "-3.25"]),
    "GNU.sparse.map": pick(chance, ["0,1", "5,5,20,3", "9", "x,y"]),
    "GNU.sparse.size": pick(chance, numbers),
    "GNU.sparse.major": pick(chance, ["0", "1"]),
  };
  const chosen = Object.entries(keys).filter(() => chance(5) === 0);
  return Object.fromEntries(chosen);
}

/** A valid entry, which may still conflict with others. */
function niceEntryOf(chance: Chance): TarEntry {
  const name = Array.from({ length: 1 + chance(3) }, () => pick(chance, ["a", "b", "é"])).join("/");
  const type = pick(chance, ["0", "0", "2", "5", "6", "0"]);
  const entry: TarEntry = { name, type, mode: chance(0o10000), uid: chance(70_000) };
  if (type === "0") entry.data = "d".repeat(chance(2000));
  if (type === "2") entry.link = pick(chance, ["a", "/b", "../é", "nowhere"]);
  if (chance(4) === 0) entry.pax = { "SCHILY.xattr.user.k": "v", mtime: "-3.25" };
  if (chance(8) === 0)
    return { name: `${name.slice(0, -1)}.wh.${pick(chance, ["a", ".wh..opq"])}` };
  return entry;
}

export function streamOf(chance: Chance): Buffer {
  const isNice = chance(2) === 0;
  const count = 1 + chance(isNice ? 8 : 25);
  const entries = Array.from({ length: count }, () =>
    isNice ? niceEntryOf(chance) : entryOf(chance),
  );
  const bytes = tar(entries);
  if (isNice) return bytes;
  return chance(3) === 0 ? damaged(chance, bytes) : bytes;
}

/** Changes, truncates, duplicates or removes bytes. */
function damaged(chance: Chance, bytes: Uint8Array): Buffer {
  let result: Buffer = Buffer.from(bytes);
  for (let left = 1 + chance(6); left > 0 && result.length > 0; left--) {
    const at = chance(result.length);
    switch (chance(5)) {
      case 0:
        result = result.subarray(0, at);
        break;
      case 1:
        result = Buffer.concat([result.subarray(0, at), result.subarray(at + chance(1000))]);
        break;
      case 2:
        result = Buffer.concat([result.subarray(0, at), result.subarray(chance(at + 1))]);
        break;
      default:
        result[at] = chance(256);
    }
  }
  return result;
}

// -- runs -------------------------------------------------------------------------

/** Fuzzes the tar reader and the decompressors in chunks of random sizes, without a disk. */
export async function fuzzStreams(seed: number): Promise<void> {
  const chance = chanceOf(seed);
  const plain = streamOf(chance);
  let packed: Buffer = plain;
  if (chance(3) === 0) packed = gzipSync(plain, { level: chance(10) });
  else if (chance(2) === 0) packed = Buffer.from(Bun.zstdCompressSync(plain));
  if (chance(2) === 0) packed = damaged(chance, packed);
  try {
    const nothing = { entry: () => {}, data: () => {}, entryEnd: () => {} };
    const reader = new TarReader(nothing, { entriesMax: 1000 });
    const inflate = new Inflate((chunk) => reader.push(chunk));
    for (let at = 0; at < packed.length;) {
      const count = 1 + chance(5000);
      await inflate.push(packed.subarray(at, at + count));
      at += count;
    }
    await inflate.end();
    reader.end();
  } catch (error) {
    assertExpected(error);
  }
}

const sample = makeImage([makeLayer([{ name: "a" }])], {
  Env: ["A=b"],
  User: "u",
  Labels: { a: "b" },
  Volumes: { "/v": {} },
});
const json = [`{"schemaVersion":2,"manifests":[{"digest":"${sha256("x")}","size":1}]}`].map(
  (text) => Buffer.from(text),
);

/** Fuzzes the parsers of manifests, indexes and configs. */
export async function fuzzJson(seed: number): Promise<void> {
  const chance = chanceOf(seed);
  const from = pick(chance, [sample.manifest.bytes, sample.config.bytes, ...json]);
  let bytes: Buffer = Buffer.from(from);
  if (chance(2) === 0) bytes = damaged(chance, bytes);
  else bytes = Buffer.from(JSON.stringify(changedJson(chance, JSON.parse(bytes.toString()), 0)));
  for (const parse of [parseManifest, parseConfig]) {
    try {
      await parse(bytes, "it");
    } catch (error) {
      assertExpected(error);
    }
  }
}

/** Replaces random parts of a JSON value by unexpected ones. */
export function changedJson(chance: Chance, value: unknown, depth: number): unknown {
  if (chance(8) === 0) {
    const others = [
      null,
      [],
      {},
      "",
      "../../x",
      -1,
      1e300,
      true,
      "a\0b",
      "x".repeat(5000),
      ...broken,
    ];
    return pick<unknown>(chance, others);
  }
  if (depth > 8 || typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map((one) => changedJson(chance, one, depth + 1));
  const entries = Object.entries(value).map(([key, one]) => [
    chance(20) === 0 ? pick(chance, ["__proto__", "constructor", "manifests", key]) : key,
    changedJson(chance, one, depth + 1),
  ]);
  return Object.fromEntries(entries) as unknown;
}

/** Fuzzes whole layers with a real helper process; accepted layers must verify intact. */
export class LayerFuzz implements AsyncDisposable {
  readonly #fixture: Fixture;
  readonly #outside: string;
  accepted = 0;
  refused = 0;

  private constructor(fixture: Fixture) {
    this.#fixture = fixture;
    this.#outside = join(fixture.graph, "outside");
    fs.mkdirSync(this.#outside);
    fs.writeFileSync(join(this.#outside, "victim"), "untouched");
  }

  static async open(): Promise<LayerFuzz> {
    const limits = { bytesMax: 1 << 24, entriesMax: 1000, depthMax: 50, ratioMax: 100 };
    return new LayerFuzz(await openFixture({}, { limits }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#fixture[Symbol.asyncDispose]();
  }

  async round(seed: number): Promise<void> {
    const chance = chanceOf(seed);
    const { store } = this.#fixture;
    const layer = makeLayer(streamOf(chance), pick(chance, ["gzip", "none"]));
    const kept = chance(4) > 0;
    const bytes = kept ? layer.bytes : damaged(chance, layer.bytes);
    const sent = kept ? layer : { ...makeLayer(bytes, "none"), diffId: layer.diffId };
    try {
      await loadLayers(this.#fixture, [sent]);
    } catch (error) {
      assertExpected(error);
      this.refused++;
      this.#assertEmpty();
      return;
    }
    this.accepted++;
    for await (const { state, differences } of store.verify("", {
      repair: false,
      signal: within(),
    })) {
      if (state !== "intact") throw new Error(`a layer is ${state}: ${differences.join("; ")}`);
    }
    await store.remove(store.list()[0]!.id);
    this.#assertEmpty();
  }

  #assertEmpty(): void {
    const remains = this.#fixture.remains();
    if (remains.length > 0) throw new Error(`left: ${remains.join(", ")}`);
    const names = fs.readdirSync(this.#outside).join();
    const victim = fs.readFileSync(join(this.#outside, "victim"), "utf8");
    if (names !== "victim" || victim !== "untouched") throw new Error("something outside changed");
  }
}

/** Runs each kind of round. @throws Error with the seed that reproduces the failure. */
export async function fuzz(o: {
  seed: number;
  rounds: number;
  layers: number;
}): Promise<LayerFuzz> {
  const attempt = async (kind: string, seed: number, run: () => Promise<void> | void) => {
    try {
      await run();
    } catch (cause) {
      const command = `bun test/layer/fuzz.ts --rounds 1 --seed ${seed}`;
      throw new Error(`${kind}: ${messageOf(cause)}: ${command}`, { cause });
    }
  };
  await using layers = await LayerFuzz.open();
  for (let round = 0; round < o.rounds; round++) {
    const seed = o.seed + round;
    await attempt("stream", seed, () => fuzzStreams(seed));
    await attempt("json", seed, () => fuzzJson(seed));
    if (round < o.layers) await attempt("layer", seed, () => layers.round(seed));
  }
  return layers;
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      rounds: { type: "string", default: "2000" },
      seed: { type: "string", default: String(Date.now() % 1_000_000) },
    },
  });
  const rounds = Number(values.rounds);
  console.log(`seed ${values.seed}`);
  const { accepted, refused } = await fuzz({ seed: Number(values.seed), rounds, layers: rounds });
  console.log(`${rounds} rounds; ${accepted} layers were accepted and ${refused} refused`);
  process.exitCode = 0;
}
