// Tests image verifiers with shell scripts: what they get, and one clear error for each way to fail.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../../src/base/log.ts";
import { fetchImage } from "../../../src/image/pull.ts";
import {
  type ResolvedImage,
  type Verification,
  verifyImage,
} from "../../../src/image/verifiers.ts";
import { parseReference } from "../../../src/registry/reference.ts";
import { failure, until } from "../../expect.ts";
import { makeImage, makeLayer, mediaTypes } from "../../image_maker.ts";
import { FakeRegistry } from "../../registry/fake_registry.ts";
import { pullSession, registryOptions, upstream } from "../fakes.ts";

const image = makeImage([makeLayer([{ name: "f", data: "x" }])]);
const { manifest } = image;
const top = { bytes: manifest.bytes, digest: manifest.digest };

let folder: string;
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), "isulad-verifiers-"))));
afterEach(() => rmSync(folder, { recursive: true }));

/** Writes a program whose output goes to the folder beside it. */
function install(name: string, script: string, mode = 0o755): void {
  mkdirSync(join(folder, "bin"), { recursive: true });
  const path = join(folder, "bin", name);
  writeFileSync(path, `#!/bin/sh\nout=${folder}\n${script}\n`);
  chmodSync(path, mode);
}

const seen = (name: string) => readFileSync(join(folder, name), "utf8");

function verification(o: Partial<Verification> = {}): Verification {
  const plain = { isRequired: false, verifiersMax: 10, timeoutMs: 10_000, log: silentLog() };
  return { folder: join(folder, "bin"), ...plain, ...o };
}

function verify(o: Partial<Verification> = {}, other: Partial<ResolvedImage> = {}) {
  const session = pullSession([upstream("https://registry.test/v2")]);
  const resolved = { name: "registry.test/a/b:1", top, session, ...other };
  return verifyImage(resolved, verification(o), AbortSignal.timeout(20_000));
}

async function refusal(o: Partial<Verification> = {}): Promise<string> {
  const { code, message } = await failure(verify(o));
  expect(code).toBe("UNKNOWN"); // else a kubelet does not see the word that follows
  const begin = `SignatureValidationFailed: registry.test/a/b:1 with the digest ${top.digest} is not pulled: `;
  expect(message).toStartWith(begin);
  return message.slice(begin.length).replaceAll(folder, "F");
}

describe("verifyImage", () => {
  test("gives each program name and digest as arguments and the descriptor on standard input", async () => {
    install("a", 'echo "$@" > $out/args; cat > $out/descriptor; echo fine');
    await verify();
    const type = "application/vnd.oci.descriptor.v1+json";
    expect(seen("args")).toBe(
      `-name registry.test/a/b:1 -digest ${top.digest} -stdin-media-type ${type}\n`,
    );
    const { mediaType, digest, size } = manifest;
    expect(JSON.parse(seen("descriptor"))).toEqual({ mediaType, digest, size });
  });

  test("derives the media type of a document that states none", async () => {
    install("a", "cat > $out/descriptor");
    for (const [text, mediaType] of [
      ['{"schemaVersion": 2, "manifests": []}', mediaTypes.index],
      [
        JSON.stringify({
          ...JSON.parse(Buffer.from(manifest.bytes).toString()),
          mediaType: undefined,
        }),
        mediaTypes.manifest,
      ],
    ] as const) {
      await verify({}, { top: { bytes: Buffer.from(text), digest: top.digest } });
      expect(JSON.parse(seen("descriptor"))).toEqual({
        mediaType,
        digest: top.digest,
        size: text.length,
      });
    }
  });

  test("asks all in the order of their names, and none after the first that refuses", async () => {
    for (const name of ["c", "a"]) install(name, `echo ${name} >> $out/order`);
    install("b", "echo b >> $out/order; echo not signed; echo noise >&2; exit 3");
    expect(await refusal()).toBe("F/bin/b refuses it (exit code 3): not signed");
    expect(seen("order")).toBe("a\nb\n");
  });

  test("accepts every image while the folder is absent or empty, unless one is required", async () => {
    const hint = "install a verifier there, or unset image-verifier-required";
    const told = `image-verifier-dir F/bin is absent or empty: ${hint}`;
    for (const isThere of [false, true]) {
      if (isThere) mkdirSync(join(folder, "bin"));
      await verify();
      expect(await refusal({ isRequired: true })).toBe(told);
    }
    install("a", "exit 0");
    await verify({ isRequired: true });
  });

  test("refuses where more programs than the limit could not all be asked", async () => {
    for (const name of ["a", "b"]) install(name, "exit 0");
    await verify({ verifiersMax: 2 });
    expect(await refusal({ verifiersMax: 1 })).toBe(
      "F/bin has 2 files, over 1: remove some, or raise max-verifiers",
    );
  });

  test.each([
    [
      "is killed by a signal",
      "kill -9 $$",
      0o755,
      /^F\/bin\/a refuses it \(killed by a signal\): without a reason$/,
    ],
    [
      "says something on standard error only",
      "echo why >&2; exit 1",
      0o755,
      /\(exit code 1\): why$/,
    ],
    [
      "is not executable",
      "exit 0",
      0o644,
      /^cannot run F\/bin\/a: .*EACCES.*; each file of image-verifier-dir must be executable, /,
    ],
    [
      "floods",
      "cat /dev/zero",
      0o755,
      /^F\/bin\/a \(pid \d+\): ended after \d+ ms: it wrote more than 1048576 bytes; its standard output is for the reason$/,
    ],
    ["floods standard error", "cat /dev/zero >&2", 0o755, /it wrote more than 1048576 bytes/],
  ])("refuses where a program %s", async (_, script, mode, told) => {
    install("a", script, mode);
    expect(await refusal()).toMatch(told);
  });

  test("refuses where a program is a folder, or its interpreter is missing", async () => {
    mkdirSync(join(folder, "bin/a"), { recursive: true });
    expect(await refusal()).toMatch(
      /^cannot run F\/bin\/a: .*; each file of image-verifier-dir must be executable, /,
    );
    rmSync(join(folder, "bin/a"), { recursive: true });
    writeFileSync(join(folder, "bin/a"), "#!/no/such/shell\n", { mode: 0o755 });
    expect(await refusal()).toMatch(/^cannot run F\/bin\/a: .* its interpreter is missing$/);
    rmSync(join(folder, "bin/a"));
    symlinkSync("/no/such/program", join(folder, "bin/a"));
    expect(await refusal()).toMatch(/^cannot run F\/bin\/a: .*; it is a link to nowhere, or/);
  });

  test("refuses where every user of the node could change a program", async () => {
    const told = (path: string) =>
      `every user of this node may write to ${path}: chmod o-w ${path}`;
    install("a", "touch $out/ran", 0o757);
    expect(await refusal()).toBe(told("F/bin/a"));
    install("target", "touch $out/ran", 0o757);
    renameSync(join(folder, "bin/target"), join(folder, "target"));
    rmSync(join(folder, "bin/a"));
    symlinkSync("../target", join(folder, "bin/a"));
    expect(await refusal()).toBe(told("F/bin/a"));
    rmSync(join(folder, "bin/a"));
    install("a", "touch $out/ran", 0o775);
    chmodSync(join(folder, "bin"), 0o1777);
    expect(await refusal()).toBe(told("F/bin"));
    expect(existsSync(join(folder, "ran"))).toBe(false);
  });

  test("lets a script open its streams by path, as containerd's pipes do", async () => {
    install("a", "cat /dev/stdin >$out/descriptor; echo no >/dev/stderr; exit 1");
    expect(await refusal()).toBe("F/bin/a refuses it (exit code 1): no");
    expect(JSON.parse(seen("descriptor")).digest).toBe(top.digest);
  });

  test("bounds the reason, and accepts a longer one", async () => {
    install("a", "head -c 100000 /dev/zero | tr '\\0' x; exit $(cat $out/code)");
    writeFileSync(join(folder, "code"), "0");
    await verify();
    writeFileSync(join(folder, "code"), "1");
    expect((await refusal()).length).toBeLessThan(1_200);
  });

  const ended = (pid: string) => {
    try {
      return readFileSync(`/proc/${pid.trim()}/stat`, "utf8").includes(") Z ");
    } catch {
      return true;
    }
  };

  test("kills a program that hangs, with its children", async () => {
    install("a", "sleep 100 & echo $! > $out/child; wait");
    expect(await refusal({ timeoutMs: 3_000 })).toMatch(
      /^F\/bin\/a \(pid \d+\): deadline exceeded after \d+ ms; per-verifier-timeout is its limit$/,
    );
    await until("its child has ended", () => ended(seen("child")));
  });

  test("kills what a program leaves behind", async () => {
    install("a", "sleep 100 & echo $! > $out/child");
    await verify();
    await until("its child has ended", () => ended(seen("child")));
  });

  test("a cancelled pull is no refusal", async () => {
    install("a", "sleep 100");
    const abort = new AbortController();
    const resolved = { name: "n", top, session: pullSession([]) };
    const call = failure(verifyImage(resolved, verification(), abort.signal));
    setTimeout(() => abort.abort(), 50);
    expect(await call).toMatchObject({
      code: "CANCELLED",
      message: "verification of n: cancelled",
    });
  });
});

describe("the credentials of a pull", () => {
  const read =
    'echo "$@" > $out/args; env > $out/env; cat $REGISTRY_AUTH_FILE > $out/first; cat <&3 > $out/second';
  const given = (credentials?: object) => ({ from: "test", ...(credentials && { credentials }) });

  test("reach a program in an inherited file, and are in no argument", async () => {
    install("a", read);
    install("b", "cat <&3 > $out/third");
    const origin = upstream("https://registry.test/v2", {
      auth: given({ username: "me", password: "s3:cret" }),
    });
    const mirror = upstream("https://mirror.test/v2", {
      isOrigin: false,
      auth: given({ registryToken: "t0ken" }),
    });
    await verify({}, { session: pullSession([mirror, origin]) });
    const auth = Buffer.from("me:s3:cret").toString("base64");
    const auths = {
      "registry.test": { username: "me", password: "s3:cret", auth },
      "mirror.test": { registrytoken: "t0ken" },
    };
    for (const file of ["first", "second", "third"])
      expect(JSON.parse(seen(file))).toEqual({ auths });
    for (const file of ["args", "env"]) expect(seen(file)).not.toMatch(/s3:cret|t0ken/);
  });

  test("of Docker Hub are under its old address; an identity token is one", async () => {
    install("a", read);
    const origin = upstream("https://registry-1.docker.io/v2", {
      auth: given({ username: "me", identityToken: "id" }),
    });
    const cache = upstream("https://registry-1.docker.io/v2/cache", {
      ...origin,
      isOrigin: false,
    });
    await verify({}, { session: pullSession([cache, origin], { domain: "docker.io" }) });
    const entry = { username: "me", identitytoken: "id" };
    expect(JSON.parse(seen("first"))).toEqual({ auths: { "https://index.docker.io/v1/": entry } });
  });

  test("are absent where the pull has none", async () => {
    install("a", 'echo "[$REGISTRY_AUTH_FILE]" > $out/name; test ! -e /proc/self/fd/3');
    await verify();
    expect(seen("name")).toBe("[]\n");
  });
});

test("fetchImage() asks the verifiers before it fetches a blob", async () => {
  install("a", 'test "$4" = $(cat $out/good)');
  await using fake = await FakeRegistry.start();
  fake.put("a/b", "1", image);
  const fetched = () => {
    const options = {
      registry: registryOptions,
      auth: undefined,
      signal: AbortSignal.timeout(20_000),
    };
    return fetchImage(parseReference(`${fake.host}/a/b:1`), {
      ...options,
      verification: verification(),
    });
  };
  writeFileSync(join(folder, "good"), "sha256:0");
  expect((await failure(fetched())).message).toStartWith("SignatureValidationFailed: ");
  expect(fake.paths().join()).not.toContain("/blobs/");
  writeFileSync(join(folder, "good"), image.manifest.digest);
  expect((await fetched()).id).toBe(image.config.digest);
});
