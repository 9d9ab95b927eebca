// Tests encrypted images over CRI from a real registry, decrypted by fake stream processors and by ocicrypt.
// Also tests the errors without a processor, with a failing one, and with one that hangs.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { execFileSync, spawnSync } from "node:child_process";
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { failure, testMs, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { blob, busyboxEntries, makeImage, makeLayer, type Layer } from "../image_maker.ts";
import { hasGo } from "../go.ts";
import { buildOcicrypt } from "../image/ocicrypt.ts";
import { type Registry, startRegistry } from "../registry.ts";

const plainType = "application/vnd.oci.image.layer.v1.tar+gzip";
const base = makeLayer(busyboxEntries());
let dir: string;
let registry: Registry;
let daemon: Daemon;

/** A program as a stream processor. */
function script(name: string, text: string): string {
  const path = join(dir, name);
  fs.writeFileSync(path, `#!/bin/sh\n${text}\n`, { mode: 0o755 });
  return path;
}

beforeAll(async () => {
  dir = fs.mkdtempSync(join(tmpdir(), "isulad-crypt-"));
  registry = await startRegistry();
  const plus = (by: string) => `application/x.${by}+encrypted`;
  const processor = (by: string, text: string, more: object = {}) => [
    by,
    { accepts: [plus(by)], returns: plainType, path: script(by, text), ...more },
  ];
  // Each byte is one more than it should be; one less is what `tr` makes of it.
  const minusOne = "LC_ALL=C tr '\\001-\\377\\000' '\\000-\\376\\377'";
  const processors = Object.fromEntries([
    processor(
      "shift",
      `cat <&3 >${dir}/payload; echo "$STREAM_PROCESSOR_MEDIATYPE $KEY $1" >${dir}/told; ${minusOne}`,
      {
        args: ["an argument"],
        env: ["KEY=of=the node"],
      },
    ),
    processor("twice", `cat /dev/stdin | ${minusOne} >/dev/stdout`, { returns: plus("shift") }),
    processor("ring", "cat", { returns: plus("ring") }),
    processor(
      "fails",
      "head -c 100000 /dev/zero | tr '\\0' x >&2; echo no key fits >/dev/stderr; exit 7",
    ),
    processor("wrong", "cat >/dev/null; gzip -c /dev/null"),
    processor("hangs", `sleep 987654 & echo $! $$ >${dir}/pids; wait`),
    ["missing", { accepts: [plus("missing")], returns: plainType, path: "/nowhere/decoder" }],
  ]);
  if (hasGo) {
    const key = join(dir, "key.pem");
    execFileSync("openssl", ["genrsa", "-out", key, "2048"], { stdio: "ignore" });
    execFileSync("openssl", ["rsa", "-in", key, "-pubout", "-out", `${key}.pub`], {
      stdio: "ignore",
    });
    processors["ocicrypt"] = {
      accepts: [`${plainType}+encrypted`],
      returns: plainType,
      path: buildOcicrypt(),
      args: ["decode", key],
    };
  }
  daemon = await startDaemon({
    config: {
      "insecure-registries": [registry.host],
      "stream-processors": processors,
    },
    image: false,
  });
}, testMs(180_000));
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
  fs.rmSync(dir, { recursive: true, force: true });
});

/** A layer under another media type, each byte `by` more. */
function shifted(layer: Layer, mediaType: string, by = 1): Layer {
  const bytes = layer.bytes.map((byte) => byte + by);
  return { ...blob(mediaType, bytes), diffId: layer.diffId, annotations: { hint: "a key's name" } };
}

/** An image whose upper layer is as given, and holds what no other one does. */
function imageWith(file: string, encrypted: (layer: Layer) => Layer) {
  const layer = makeLayer([{ name: file, data: `secret ${file}\n` }]);
  return makeImage([base, encrypted(layer)], { Env: ["PATH=/bin"] });
}

async function pull(by: string, options?: Pick<AbortController, "signal">): Promise<string> {
  const image = { image: `${registry.host}/secret/${by}:1` };
  return (await daemon.client.PullImage({ image }, options)).image_ref;
}

async function pushed(by: string, shift = 1): Promise<void> {
  const mediaType = `application/x.${by}+encrypted`;
  await registry.push(
    `secret/${by}`,
    "1",
    imageWith(by, (layer) => shifted(layer, mediaType, shift)),
  );
}

async function contentOf(image: string, file: string): Promise<string> {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const { text } = await daemon.output(podId, pod, `cat /${file}`, { image: { image } });
  await daemon.removePod(podId);
  return text;
}

/** Places where pulls could leave files. */
const remains = () => fs.readdirSync(join(daemon.dir, "graph/layers/scratch"));

describe("PullImage of an encrypted image", () => {
  test("runs it through the processor that accepts it, which gets everything that containerd passes", async () => {
    await pushed("shift");
    expect(await contentOf(await pull("shift"), "shift")).toBe("secret shift\n");
    const told = fs.readFileSync(join(dir, "told"), "utf8");
    expect(told).toBe("application/x.shift+encrypted of=the node an argument\n");
    const payload = fs.readFileSync(join(dir, "payload"));
    expect(payload.subarray(2, 35).toString()).toBe("io.containerd.ocicrypt.v1.Payload");
    const { Descriptor } = JSON.parse(payload.subarray(payload.indexOf("{")).toString()) as {
      Descriptor: object;
    };
    expect(Descriptor).toMatchObject({
      mediaType: "application/x.shift+encrypted",
      annotations: { hint: "a key's name" },
    });
  });

  test("runs it through a chain of them, joined by pipes that can be opened", async () => {
    await pushed("twice", 2);
    expect(await contentOf(await pull("twice"), "twice")).toBe("secret twice\n");
  });

  test("streams more than a pipe buffers", async () => {
    const noise = Buffer.alloc(40 << 20, "0123456789abcdefghijklm");
    const layer = makeLayer([{ name: "much", data: noise }], "none");
    const image = makeImage([base, shifted(layer, "application/x.twice+encrypted", 2)]);
    await registry.push("secret/much", "1", image);
    expect(await pull("much")).toBe(image.config.digest);
  });

  test.each([
    ["nobody", "FAILED_PRECONDITION", /x\.nobody\+encrypted.*stream-processors/],
    ["missing", "FAILED_PRECONDITION", /missing \(\/nowhere\/decoder\)/],
    ["ring", "FAILED_PRECONDITION", /more than 8 stream processors/],
    ["fails", "FAILED_PRECONDITION", /stream processor fails failed \(7\): …x+no key fits$/],
    ["wrong", "DATA_LOSS", /unpacks to sha256:e3b0c44.*config says/],
    ["hangs", "DEADLINE_EXCEEDED", /stream processor hangs: no output for 8000 ms/],
  ])("by %s is %s and leaves nothing", async (by, code, message) => {
    const before = daemon.snapshot();
    await pushed(by);
    const limit = { "pull-progress-timeout": by === "hangs" ? "8s" : "60s" };
    const error = await daemon.configured(limit, () => failure(pull(by)));
    expect(error.message).toMatch(message);
    expect(error.message.length).toBeLessThan(3000);
    expect(error.code).toBe(code as typeof error.code);
    expect(remains()).toEqual([]);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  const textOf = (file: string): string => {
    try {
      return fs.readFileSync(file, "utf8");
    } catch {
      return "";
    }
  };

  test.each(["its caller", "the daemon"])(
    "ends with %s, and all that it has started",
    async (who) => {
      fs.rmSync(join(dir, "pids"), { force: true });
      await pushed("hangs");
      const caller = new AbortController();
      const pulled = failure(pull("hangs", caller));
      const told = () => textOf(join(dir, "pids"));
      await until("the processor runs", () => /^\d+ \d+\n$/.test(told()));
      const pids = told().trim().split(" ");
      // One that has ended and was not reaped yet has no command line; another one may get its pid.
      const runs = (pid: string) => /987654|hangs/.test(textOf(`/proc/${pid}/cmdline`));
      expect(pids.some(runs)).toBe(true);
      if (who === "the daemon") await daemon.stop("SIGKILL");
      else caller.abort();
      await pulled;
      await until("both are gone", () => !pids.some(runs));
      if (who === "the daemon") await daemon.start();
      await until("nothing remains", () => remains().length === 0);
    },
  );

  test.skipIf(!hasGo)(
    "of ocicrypt's needs its key alone; a damaged layer is told as such",
    async () => {
      const ocicrypt = (layer: Layer): Layer => {
        const notes = join(dir, "annotations");
        const run = spawnSync(buildOcicrypt(), ["encrypt", join(dir, "key.pem.pub"), notes], {
          input: layer.bytes,
          maxBuffer: 64 << 20,
        });
        expect(run.stderr.toString()).toBe("");
        const annotations = JSON.parse(fs.readFileSync(notes, "utf8")) as Record<string, string>;
        const mediaType = `${plainType}+encrypted`;
        return { ...blob(mediaType, run.stdout), diffId: layer.diffId, annotations };
      };
      await registry.push("secret/oci", "1", imageWith("oci", ocicrypt));
      expect(await contentOf(await pull("oci"), "oci")).toBe("secret oci\n");
      const other = imageWith("other", (layer) => {
        const right = ocicrypt(layer);
        const bytes = right.bytes.with(right.size >> 1, right.bytes[right.size >> 1]! ^ 1);
        return { ...right, ...blob(right.mediaType, bytes) };
      });
      await registry.push("secret/other", "1", other);
      const error = await failure(pull("other"));
      expect(error.code).toBe("FAILED_PRECONDITION");
      expect(error.message).toMatch(/stream processor ocicrypt failed \(1\): .*hmac/);
    },
  );
});

test("Load decrypts as a pull does", async () => {
  const image = imageWith("loaded", (layer) => shifted(layer, "application/x.shift+encrypted"));
  const loaded = await daemon.loadImage(image, "docker.io/secret/loaded:1");
  expect(await contentOf(loaded, "loaded")).toBe("secret loaded\n");
});
