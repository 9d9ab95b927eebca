// Tests images over CRI: they are pulled from a real registry, verified, listed, found by each name, and removed.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { failure, testMs } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxEntries, busyboxImage, makeImage, makeLayer } from "../image_maker.ts";
import { type Registry, startRegistry } from "../registry.ts";

let registry: Registry;
let daemon: Daemon;
const verifiers = join(mkdtempSync(join(tmpdir(), "isulad-images-")), "absent-at-first");
const image = busyboxImage({ User: "user", Labels: { a: "b" } });
beforeAll(async () => {
  registry = await startRegistry();
  await registry.push("team/app", "1", image);
  await registry.push("team/app", "2", image);
  const config = { "insecure-registries": [registry.host], "image-verifier-dir": verifiers };
  daemon = await startDaemon({ config, image: false });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
  rmSync(join(verifiers, ".."), { recursive: true });
});

/** Minor page faults of the children that the process has waited for (cminflt of proc_pid_stat(5)). */
function pageFaultsOfChildren(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
  return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[8]);
}

const pull = async (name: string) =>
  (await daemon.client.PullImage({ image: { image: name } })).image_ref;
const find = async (name: string) =>
  (await daemon.client.ImageStatus({ image: { image: name } })).image;

describe("PullImage", () => {
  test("returns the image's id, and a container of it runs", async () => {
    const name = `${registry.host}/team/app:1`;
    expect(await pull(name)).toBe(image.config.digest);
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const spec = { image: { image: image.config.digest, user_specified_image: name } };
    const { text, status } = await daemon.output(podId, pod, "id -un; ls /bin/busybox", spec);
    expect(text).toBe("user\n/bin/busybox\n");
    expect(status.image_ref).toContain("sha256:");
    await daemon.removePod(podId);
  });

  test("of 5 layers of 20 MB takes few new pages, as the helpers free what they have unpacked", async () => {
    const layers = Array.from({ length: 5 }, (_, i) =>
      makeLayer([{ name: `file${i}`, data: randomBytes(20_000_000) }]),
    );
    await registry.push("team/large", "1", makeImage(layers));
    const before = pageFaultsOfChildren(daemon.pid);
    const id = await pull(`${registry.host}/team/large:1`);
    // 17,000 to 20,000; 45,000 to 50,000 where chunks wait for the garbage collector.
    expect(pageFaultsOfChildren(daemon.pid) - before).toBeLessThan(32_000);
    await daemon.client.RemoveImage({ image: { image: id } });
  });

  test("of one image by two tags is one entry with both", async () => {
    await pull(`${registry.host}/team/app:2`);
    const { images } = await daemon.client.ListImages({});
    expect(images).toHaveLength(1);
    expect(images[0]!.repo_tags!.toSorted()).toEqual([
      `${registry.host}/team/app:1`,
      `${registry.host}/team/app:2`,
    ]);
    expect(images[0]!.repo_digests).toEqual([`${registry.host}/team/app@${image.manifest.digest}`]);
    expect(images[0]).toMatchObject({ id: image.config.digest, username: "user" });
    const content = busyboxEntries().map(({ data }) => Buffer.from(data ?? "").length);
    const size = content.reduce((sum, bytes) => sum + bytes, image.config.bytes.length);
    expect(Number(images[0]!.size)).toBe(size);
  });

  test("of a missing image is NOT_FOUND, with the reference", async () => {
    const error = await failure(pull(`${registry.host}/team/nothing:1`));
    expect(error.code).toBe("NOT_FOUND");
    expect(error.message).toContain("team/nothing:1");
  });

  test(
    "of a wrong reference is INVALID_ARGUMENT; from nobody UNAVAILABLE, not a hang",
    async () => {
      expect((await failure(pull("Not A Reference"))).code).toBe("INVALID_ARGUMENT");
      expect((await failure(pull(""))).code).toBe("INVALID_ARGUMENT");
      const start = performance.now();
      const error = await failure(pull("127.0.0.1:1/nobody:1"));
      expect(error.code).toBe("UNAVAILABLE");
      expect(error.message).toContain("127.0.0.1:1");
      expect(performance.now() - start).toBeLessThan(60_000);
    },
    testMs(120_000),
  );

  test("a deadline of the caller is DEADLINE_EXCEEDED", async () => {
    const request = { image: { image: `${registry.host}/team/app:1` } };
    const error = await failure(daemon.client.PullImage(request, { timeoutMs: 1 }));
    expect(error.code).toBe("DEADLINE_EXCEEDED");
  });
});

describe("ImageStatus", () => {
  test("returns the same by id, tag and digest, and nothing for a missing image", async () => {
    const byId = await find(image.config.digest);
    expect(byId?.id).toBe(image.config.digest);
    for (const name of [
      image.config.digest.slice("sha256:".length),
      `${registry.host}/team/app:2`,
      `${registry.host}/team/app@${image.manifest.digest}`,
    ]) {
      expect(await find(name)).toEqual(byId);
    }
    expect((await find("nothing:1")) ?? undefined).toBeUndefined();
  });
});

test("a verifier refuses an image with the word of the kubelet's reason, or accepts by its credentials", async () => {
  const install = (script: string) =>
    writeFileSync(join(verifiers, "check"), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  const again = (auth?: { username: string; password: string }) =>
    daemon.client.PullImage({ image: { image: `${registry.host}/team/app:2` }, auth });
  mkdirSync(verifiers);
  install("echo unsigned; exit 1");
  const error = await failure(again());
  expect(error.code).toBe("UNKNOWN");
  expect(error.message).toMatch(/^SignatureValidationFailed: .*: unsigned$/);
  install('grep -q \'"password":"s3cret"\' $REGISTRY_AUTH_FILE');
  const { image_ref } = await again({ username: "me", password: "s3cret" });
  expect(image_ref).toBe(image.config.digest);
  expect((await failure(again())).code).toBe("UNKNOWN");
  expect(daemon.log).not.toContain("s3cret");
  rmSync(verifiers, { recursive: true });
});

test("max-verifiers, per-verifier-timeout and image-verifier-required are those of daemon.json", async () => {
  const keys = { "insecure-registries": [registry.host], "image-verifier-dir": verifiers };
  const reasonWith = async (more: object) => {
    daemon.writeConfig({ ...keys, ...more });
    await daemon.client.Reload({});
    return (await failure(pull(`${registry.host}/team/app:2`))).message;
  };
  expect(await reasonWith({ "image-verifier-required": true })).toContain("is absent or empty");
  mkdirSync(verifiers);
  for (const name of ["a", "b"]) {
    writeFileSync(join(verifiers, name), "#!/bin/sh\nsleep 600\n", { mode: 0o755 });
  }
  expect(await reasonWith({ "max-verifiers": 1 })).toContain("has 2 files, over 1");
  const hung = await reasonWith({ "per-verifier-timeout": "1s" });
  expect(hung).toMatch(/a \(pid \d+\): deadline exceeded after \d{3,6} ms/);
  rmSync(verifiers, { recursive: true });
  daemon.writeConfig(keys);
  await daemon.client.Reload({});
});

describe("RemoveImage", () => {
  test("removes all names; a running container keeps its files; repeating it succeeds", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const spec = { image: { image: image.config.digest } };
    const id = await daemon.run(podId, pod, ["sleep", "600"], spec);
    const request = { image: { image: `${registry.host}/team/app:1` } };
    await Promise.all([daemon.client.RemoveImage(request), daemon.client.RemoveImage(request)]);
    await daemon.client.RemoveImage(request);
    expect((await daemon.client.ListImages({})).images).toEqual([]);
    expect((await daemon.exec(id, "ls /bin/sh")).stdout).toBe("/bin/sh\n");
    await daemon.removePod(podId);
    await pull(`${registry.host}/team/app:1`);
    expect((await daemon.client.ListImages({})).images).toHaveLength(1);
  });
});
