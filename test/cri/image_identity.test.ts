// Tests the names of one image: how each CRI response names it, and how each name finds and removes it.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage, type TestImage } from "../image_maker.ts";
import { type Registry, startRegistry } from "../registry.ts";

let registry: Registry;
let daemon: Daemon;
const image = busyboxImage({ User: "1000:1000" });
const names = (one: TestImage) => {
  const repository = `${registry.host}/team/app`;
  const { digest } = one.manifest;
  const id = one.config.digest;
  return {
    tag: `${repository}:1`,
    digest: `${repository}@${digest}`,
    both: `${repository}:1@${digest}`,
    id,
    hex: id.slice("sha256:".length),
    prefix: id.slice("sha256:".length, "sha256:".length + 12),
    idPrefix: id.slice(0, 20),
  };
};
beforeAll(async () => {
  registry = await startRegistry();
  await registry.push("team/app", "1", image);
  daemon = await startDaemon({ config: { "insecure-registries": [registry.host] }, image: false });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
});

const pull = async (name: string) =>
  (await daemon.client.PullImage({ image: { image: name } })).image_ref;
const find = async (name: string) =>
  (await daemon.client.ImageStatus({ image: { image: name } })).image ?? undefined;
const ids = async () => (await daemon.client.ListImages({})).images.map(({ id }) => id);
const kinds = ["tag", "digest", "both", "id", "hex", "prefix", "idPrefix"] as const;

describe("identity", () => {
  test("the pull's answer, the image's id and the container's image_id are one", async () => {
    const { tag, digest, id } = names(image);
    expect(await pull(tag)).toBe(id);
    const found = (await find(tag))!;
    expect(found).toMatchObject({ id, repo_tags: [tag], repo_digests: [digest], username: "" });
    expect(found.uid!.value).toEqual(toLong(1000));
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const spec = { image: { image: id, user_specified_image: tag } };
    const container = await daemon.create(podId, pod, ["true"], spec);
    const status = await daemon.status(container);
    expect(status.image_id).toBe(id);
    expect(status.image).toMatchObject({ image: tag, user_specified_image: tag });
    expect(status.image_ref).toBe(digest);
    const { containers } = await daemon.client.ListContainers({});
    expect(containers[0]).toMatchObject({ image_id: id, image_ref: id });
    await daemon.loadImage(busyboxImage({ Labels: { newer: "yes" } }), tag);
    expect((await find(tag))!.id).not.toBe(id);
    expect((await find(containers[0]!.image!.image!))!.id).toBe(id); // by which `crictl rmi --prune` keeps it
    expect(containers[0]!.image!.user_specified_image).toBe(tag);
    await daemon.client.RemoveImage({ image: { image: tag } });
    expect(await pull(tag)).toBe(id);
    await daemon.removePod(podId);
  });

  test.each(kinds)("by %s it is found, and listed alone", async (kind) => {
    const name = names(image)[kind];
    const expected = await find(image.config.digest);
    expect(await find(name)).toEqual(expected);
    const filter = { image: { image: name } };
    const { images } = await daemon.client.ListImages({ filter });
    expect(images).toEqual([expected!]);
  });
});

describe("names as people write them", () => {
  test("of Docker Hub's images, short and long", async () => {
    await daemon.loadImage(busyboxImage(), "docker.io/library/busybox:latest");
    const expected = (await find("docker.io/library/busybox:latest"))!;
    expect(expected.repo_tags).toEqual(["docker.io/library/busybox:latest"]);
    for (const name of ["busybox", "busybox:latest", "library/busybox", "docker.io/busybox"]) {
      expect(await find(name)).toEqual(expected);
    }
    for (const name of ["busybox:1", "other/busybox", "localhost/busybox", "BUSYBOX", "beef"]) {
      expect(await find(name)).toBeUndefined();
    }
    await daemon.client.RemoveImage({ image: { image: "busybox" } });
    expect(await ids()).not.toContain(expected.id);
  });

  test("an image pulled by digest has no tag", async () => {
    const { tag, digest, both, id } = names(image);
    for (const name of [digest, both]) {
      await daemon.client.RemoveImage({ image: { image: id } });
      expect(await pull(name)).toBe(id);
      expect(await find(id)).toMatchObject({ repo_tags: [], repo_digests: [digest] });
    }
    expect(await find(tag)).toBeUndefined();
  });
});

test.each(kinds)("RemoveImage by %s removes it with all its names", async (kind) => {
  const all = names(image);
  await pull(all.tag);
  await daemon.client.RemoveImage({ image: { image: all[kind] } });
  for (const name of Object.values(all)) expect(await find(name)).toBeUndefined();
  expect(await ids()).toEqual([]);
});

test.each([
  ["", undefined, ""],
  ["0", 0, ""],
  ["1000:users", 1000, ""],
  ["www", undefined, "www"],
  ["www:1000", undefined, "www"],
])("USER %j: uid %j, username %j", async (User, uid, username) => {
  const name = await daemon.loadImage(busyboxImage({ User }), "example.test/user:1");
  const found = (await find(name))!;
  expect(found.uid?.value).toEqual(uid === undefined ? undefined : toLong(uid));
  expect(found.username).toBe(username);
  await daemon.client.RemoveImage({ image: { image: name } });
});
