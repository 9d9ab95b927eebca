// Tests image information: source, pinning, runtime handler, and disk usage of images and containers.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import { nowNs } from "../../src/base/clock.ts";
import { toBigInt } from "../../src/base/int64.ts";
import { failure, own, until } from "../expect.ts";
import { type Daemon, ociRuntime, startDaemon } from "../harness.ts";
import { busyboxEntries, busyboxImage, makeImage, makeLayer } from "../image_maker.ts";
import { type Registry, startRegistry } from "../registry.ts";

let registry: Registry;
let daemon: Daemon;
const image = busyboxImage({ User: "1000", Labels: { a: "b" } }, [{ name: "more", data: "more" }]);
beforeAll(async () => {
  registry = await startRegistry();
  await registry.push("team/app", "1", image);
  const config = {
    "insecure-registries": [registry.host],
    "cri-runtimes": { fast: ociRuntime },
    "pinned-images": ["kept", "example.test/base/*", "*/kept-too:1", "library/star*"],
  };
  daemon = await startDaemon({ config, image: false });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  await registry?.[Symbol.asyncDispose]();
});

const name = () => `${registry.host}/team/app:1`;
const find = async (ref: string) =>
  (await daemon.client.ImageStatus({ image: { image: ref } })).image ?? undefined;

describe("ImageStatus, verbose", () => {
  test("shows the original config, the layers, the time and the source", async () => {
    const beforeMs = Date.now();
    await daemon.client.PullImage({ image: { image: name() } });
    const request = { image: { image: image.config.digest }, verbose: true };
    const { info } = await daemon.client.ImageStatus(request);
    const told = JSON.parse(info["info"]!);
    expect(told.imageSpec).toEqual(JSON.parse(Buffer.from(image.config.bytes).toString()));
    expect(told.layers).toHaveLength(2);
    expect(told.layers.map((layer: { diffId: string }) => layer.diffId)).toEqual(
      image.layers.map(({ diffId }) => diffId),
    );
    expect(told.layers[1]).toMatchObject({ sizeBytes: 4, inodes: 2 });
    expect(told.chainID).toBe(told.layers[1].chainId);
    expect(told.source).toEqual({ kind: "registry", name: name(), host: registry.host });
    expect(Date.parse(told.pulledAt)).toBeWithin(beforeMs - 1, Date.now() + 1);
    const plain = await daemon.client.ImageStatus({ image: { image: name() } });
    expect(plain.info).toEqual({});
  });

  test("shows the file of a loaded image, also after a restart", async () => {
    const loaded = await daemon.loadImage(busyboxImage({ User: "7" }), "example.test/file:1");
    await daemon.restart();
    const request = { image: { image: loaded }, verbose: true };
    const { info } = await daemon.client.ImageStatus(request);
    const told = JSON.parse(info["info"]!);
    expect(told.source.kind).toBe("file");
    expect(told.source.path).toStartWith(daemon.dir);
    expect(told.imageSpec.config.User).toBe("7");
    await daemon.client.RemoveImage({ image: { image: loaded } });
  });
});

describe("the runtime handler", () => {
  const spec = (runtime_handler: string) => ({ image: { image: name(), runtime_handler } });

  test("that an image was pulled for is remembered", async () => {
    const remembered = async () => {
      const { info } = await daemon.client.ImageStatus({ ...spec(""), verbose: true });
      return (JSON.parse(info["info"]!) as { runtimeHandler: string }).runtimeHandler;
    };
    await daemon.client.PullImage(spec(""));
    expect(await remembered()).toBe("");
    await daemon.client.PullImage(spec("fast"));
    await daemon.restart();
    expect(await remembered()).toBe("fast");
    expect((await daemon.client.ListImages({})).images).toHaveLength(1);
  });

  // With its gate RuntimeClassInImageCriApi a kubelet's garbage collection compares both lists by id and handler.
  test("is in no list: a container's image is that of the list of images", async () => {
    await daemon.client.PullImage(spec("fast"));
    const { images } = await daemon.client.ListImages({});
    const [listed] = images;
    expect([images.length, listed?.spec?.runtime_handler]).toEqual([1, ""]);
    expect((await find(name()))!.spec).toMatchObject({
      image: image.config.digest,
      runtime_handler: "",
    });
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod, "fast");
    await daemon.create(podId, pod, ["true"], spec("fast"));
    const { containers } = await daemon.client.ListContainers({});
    const used = containers.map((one) => [one.image_id, one.image?.runtime_handler]);
    expect(used).toEqual([[listed!.id, ""]]);
    await daemon.removePod(podId);
  });

  test("that is unknown is refused, but an image can always be removed", async () => {
    for (const call of [
      daemon.client.PullImage(spec("slow")),
      daemon.client.ImageStatus(spec("slow")),
    ]) {
      const error = await failure(call);
      expect(error.code).toBe("INVALID_ARGUMENT");
      expect(error.message).toContain('"slow"');
    }
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const image = { image: name(), runtime_handler: "slow" };
    expect((await failure(daemon.create(podId, pod, ["true"], { image }))).code).toBe(
      "INVALID_ARGUMENT",
    );
    await daemon.removePod(podId);
    await daemon.client.RemoveImage(spec("slow"));
    expect(await find(name())).toBeUndefined();
  });
});

test("pinned-images pins images against GC; RemoveImage still removes them", async () => {
  const names = [
    "docker.io/library/kept:latest",
    "example.test/base/a:1",
    "example.test/kept-too:1",
    "docker.io/library/star-ship:2",
  ];
  const free = ["docker.io/library/kept:2", "example.test/kept-too:2", "docker.io/other/star:1"];
  for (const [index, one] of [...names, ...free].entries()) {
    await daemon.loadImage(busyboxImage({ User: String(index) }), one);
  }
  const { images } = await daemon.client.ListImages({});
  const pinned = images.filter((one) => one.pinned).flatMap((one) => one.repo_tags ?? []);
  expect(pinned.toSorted()).toEqual(names.toSorted());
  const pins = async () => {
    const { images: listed } = await daemon.client.ListImages({});
    const streamed = await Array.fromAsync(daemon.client.StreamImages({}));
    const all = streamed.flatMap((batch) => batch.images);
    expect(all.map(own)).toEqual(listed.map(own));
    return listed.filter((one) => one.pinned).flatMap((one) => one.repo_tags ?? []);
  };
  const reloaded = { "pinned-images": [free[0]] };
  expect(await daemon.configured(reloaded, pins)).toEqual([free[0]!]);
  expect((await pins()).toSorted()).toEqual(names.toSorted());
  for (const one of [...names, ...free]) await daemon.client.RemoveImage({ image: { image: one } });
  expect((await daemon.client.ListImages({})).images).toEqual([]);
});

test("StreamImages sends the items of ListImages", async () => {
  for (let i = 0; i < 3; i++) await daemon.loadImage(busyboxImage({ User: `${i}` }), `x/y:${i}`);
  const { images } = await daemon.client.ListImages({});
  const streamed = await Array.fromAsync(daemon.client.StreamImages({}));
  expect(streamed.flatMap((batch) => batch.images).map(own)).toEqual(images.map(own));
  expect(images).toHaveLength(3);
  const filter = { image: { image: "x/y:1" } };
  const one = await Array.fromAsync(daemon.client.StreamImages({ filter }));
  expect(one.flatMap((batch) => batch.images)).toHaveLength(1);
  for (const { id } of images) await daemon.client.RemoveImage({ image: { image: id! } });
});

test("an ambiguous id prefix is refused with the ids that match", async () => {
  // With 3 hex digits of 4096, some two of 200 configs start alike.
  const seen = new Map<string, ReturnType<typeof makeImage>>();
  const layers = [makeLayer([{ name: "f", data: "f" }])];
  for (let i = 0; ; i++) {
    const next = makeImage(layers, { Env: [`I=${i}`] });
    const start = next.config.digest.slice(7, 10);
    const other = seen.get(start);
    seen.set(start, next);
    if (other === undefined) continue;
    await daemon.loadImage(other, "one/x:1");
    await daemon.loadImage(next, "two/x:1");
    for (const call of [
      daemon.client.ImageStatus({ image: { image: start } }),
      daemon.client.RemoveImage({ image: { image: start } }),
      daemon.client.ListImages({ filter: { image: { image: `sha256:${start}` } } }),
    ]) {
      const error = await failure(call);
      expect(error.code).toBe("INVALID_ARGUMENT");
      expect(error.message).toContain(other.config.digest);
      expect(error.message).toContain(next.config.digest);
    }
    await daemon.client.RemoveImage({ image: { image: "one/x:1" } });
    expect((await find(start))!.id).toBe(next.config.digest);
    await daemon.client.RemoveImage({ image: { image: start } });
    break;
  }
});

describe("ImageFsInfo", () => {
  const usage = async () => {
    const { image_filesystems, container_filesystems } = await daemon.client.ImageFsInfo({});
    const [images, containers] = [image_filesystems, container_filesystems].map((all) => {
      expect(all).toHaveLength(1);
      const { fs_id, timestamp, used_bytes, inodes_used } = all[0]!;
      expect(fs_id!.mountpoint).toBe(`${daemon.dir}/graph`);
      const agoMs = Number((nowNs() - toBigInt(timestamp)) / 1_000_000n);
      expect(agoMs).toBeWithin(0, 60_000);
      const [bytes, inodes] = [used_bytes!, inodes_used!].map(({ value }) => toBigInt(value));
      return { bytes: Number(bytes), inodes: Number(inodes) };
    });
    return { images: images!, containers: containers! };
  };

  test("counts bytes and inodes of the layers, each layer once", async () => {
    expect((await usage()).images).toEqual({ bytes: 0, inodes: 0 });
    const entries = busyboxEntries();
    const content = entries.reduce((sum, { data }) => sum + Buffer.from(data ?? "").length, 0);
    // Links to the same file are one inode; one more is the layer's own folder.
    const inodes = entries.filter(({ type }) => type !== "1").length + 1;
    await daemon.loadImage(busyboxImage(), "docker.io/library/busybox:latest");
    expect((await usage()).images).toEqual({ bytes: content, inodes });
    await daemon.loadImage(busyboxImage({}, [{ name: "f", data: "1234" }]), "x/more:1");
    expect((await usage()).images).toEqual({ bytes: content + 4, inodes: inodes + 2 });
    await daemon.restart();
    expect((await usage()).images).toEqual({ bytes: content + 4, inodes: inodes + 2 });
    await daemon.client.RemoveImage({ image: { image: "x/more:1" } });
    expect((await usage()).images).toEqual({ bytes: content, inodes });
  });

  test("counts the writable layers of containers, including exited ones", async () => {
    const pod = daemon.hostPodConfig();
    const podId = await daemon.runPod(pod);
    const write = "for i in 1 2 3; do head -c 1000000 /dev/urandom > /f$i; done";
    await daemon.exited(await daemon.run(podId, pod, write));
    let { containers } = await usage();
    await until("the files are counted", async () => {
      await sleep(200);
      ({ containers } = await usage());
      return containers.bytes >= 3_000_000;
    });
    expect(containers.bytes).toBeWithin(3_000_000, 4_000_000);
    expect(containers.inodes).toBeWithin(4, 20);
    await daemon.removePod(podId);
    expect((await usage()).containers).toEqual({ bytes: 0, inodes: 0 });
  });
});

test("RemoveImage while a container runs: it keeps running, and the space is freed when it ends", async () => {
  const unique = busyboxImage({ User: "0" }, [{ name: "big", data: "x".repeat(500_000) }]);
  const ref = await daemon.loadImage(unique, "x/removed:1");
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"], { image: { image: ref } });
  const used = async () => {
    const { image_filesystems } = await daemon.client.ImageFsInfo({});
    return Number(toBigInt(image_filesystems[0]!.used_bytes!.value));
  };
  const before = await used();
  await daemon.client.RemoveImage({ image: { image: ref } });
  await daemon.restart(); // the next daemon knows what is mounted, too
  expect((await daemon.client.ListImages({ filter: { image: { image: ref } } })).images).toEqual(
    [],
  );
  expect(await used()).toBe(before);
  expect((await daemon.exec(id, "head -c 3 /big")).stdout).toBe("xxx");
  expect((await daemon.status(id)).image_id).toBe(unique.config.digest);
  await daemon.removePod(podId);
  expect(await used()).toBeLessThanOrEqual(before - 500_000);
});

test("a container to whose user the image's / is closed says so when it ends, and when it does not start", async () => {
  const top = makeLayer([{ name: "./", type: "5", mode: 0o700 }]);
  const layers = [...busyboxImage().layers, top];
  const closed = makeImage(layers, { Env: ["PATH=/bin"], User: "1000" });
  await daemon.loadImage(closed, "example.test/closed:1");
  const more = { image: { image: "example.test/closed:1" } };
  const pod = daemon.hostPodConfig();
  const id = await daemon.runPod(pod);
  const said = "the image's / has the mode 0700, so that user 1000 can open nothing";
  const { status } = await daemon.output(id, pod, "ls /", more);
  expect([status.exit_code, status.message]).toEqual([1, expect.stringContaining(said)]);
  const security_context = { capabilities: { drop_capabilities: ["ALL"] } };
  const refused = daemon.run(id, pod, "ls /", { ...more, linux: { security_context } });
  expect((await failure(refused)).message).toContain(said);
  await daemon.removePod(id);
});
