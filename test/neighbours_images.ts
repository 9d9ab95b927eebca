// Provides the bad neighbours of test/neighbours.ts that are images and registries: documents that are long or full of
// errors, volumes behind chains of links, an environment of 5 MiB, and answers that come byte by byte.
import { setTimeout as sleep } from "node:timers/promises";
import { messageOf } from "../src/base/errors.ts";
import { cpuMs } from "./cpu_time.ts";
import {
  type Blob,
  blob,
  busyboxImage,
  descriptor,
  hostPlatform,
  makeImage,
  makeLayer,
  mediaTypes,
  type TarEntry,
} from "./image_maker.ts";
import type { Attack, Attacker, Stage } from "./neighbours_stage.ts";

const nothing = { [Symbol.asyncDispose]: async () => {} };
const repository = "bad";
const pullMs = 60_000;

/** Makes a list or map of as many items as the bytes take: "{},{},…". */
function items(bytes: number, item: (index: number) => string): string {
  const parts: string[] = [];
  for (let [index, length] = [0, 0]; length < bytes; index++) {
    const text = item(index);
    parts.push(text);
    length += text.length + 1;
  }
  return parts.join(",");
}

/** Serves the documents and pulls the image again and again; each pull is of a new digest, and removed. */
function pulling(
  name: string,
  about: string,
  make: (serial: number) => { top: Blob; parts: Blob[] },
): Attack {
  const prepare = async ({ daemon, registry }: Stage): Promise<Attacker> => {
    let pulls = 0;
    let last = "";
    const attack = async (seconds: number) => {
      for (const end = performance.now() + seconds * 1000; performance.now() < end;) {
        const { top, parts } = make(++pulls);
        registry.putManifest(repository, String(pulls), top);
        for (const part of parts) {
          registry.putBlob(repository, part.digest, part);
          if (part.mediaType === mediaTypes.manifest)
            registry.putManifest(repository, part.digest, part);
        }
        const image = { image: `${registry.host}/${repository}:${pulls}` };
        try {
          await daemon.client.PullImage({ image }, { timeoutMs: pullMs });
          last = "it was pulled";
        } catch (error) {
          last = messageOf(error).slice(0, 120);
        }
        await daemon.client.RemoveImage({ image }).catch(() => {});
      }
    };
    const check = async () => ({ faults: [], notes: [`${pulls} pulls, the last: ${last}`] });
    return { attack, check, ...nothing };
  };
  return { name, item: "A3", about, prepare };
}

const layers = [makeLayer([{ name: "a", data: "a" }])];

/** An image whose config is this text, with the usual layer. */
function withConfig(text: string, platform = hostPlatform()): { top: Blob; parts: Blob[] } {
  const config = blob(mediaTypes.config, text);
  const manifest = {
    schemaVersion: 2,
    mediaType: mediaTypes.manifest,
    config: descriptor(config),
    layers: layers.map(descriptor),
  };
  const top = { ...blob(mediaTypes.manifest, JSON.stringify(manifest)), platform };
  return { top, parts: [config, ...layers] };
}

/** Around the settings: all that a config needs; serial: makes it another one. */
function configText(serial: number, settings: string): string {
  const rootfs = JSON.stringify({ type: "layers", diff_ids: layers.map(({ diffId }) => diffId) });
  const head = JSON.stringify({
    ...hostPlatform(),
    created: "2024-01-01T00:00:00Z",
    author: `${serial}`,
  });
  return `${head.slice(0, -1)},"config":{${settings}},"rootfs":${rootfs}}`;
}

const badLayers = (serial: number) => {
  const config = blob(mediaTypes.config, configText(serial, ""));
  const head = JSON.stringify({
    schemaVersion: 2,
    mediaType: mediaTypes.manifest,
    config: descriptor(config),
  });
  const text = `${head.slice(0, -1)},"layers":[${items((4 << 20) - 2_000, () => "{}")}]}`;
  return { top: blob(mediaTypes.manifest, text), parts: [config, ...layers] };
};

const badConfig = (serial: number, bytes = (8 << 20) - 2_000) =>
  withConfig(configText(serial, `"Env":[${items(bytes, () => "0")}]`));

/** An index whose entries, all for this platform, are images with bad configs. */
const badIndex = (serial: number) => {
  const images = Array.from({ length: 32 }, (_, index) => badConfig(serial * 100 + index, 2 << 20));
  const manifests = images.map(({ top }) => ({ ...descriptor(top), platform: hostPlatform() }));
  const index = { schemaVersion: 2, mediaType: mediaTypes.index, manifests };
  const parts = images.flatMap(({ top, parts }) => [top, ...parts]);
  return { top: blob(mediaTypes.index, JSON.stringify(index)), parts };
};

const longBytes = 7 << 20;

const badManifestIndex = (serial: number) => {
  const index = {
    schemaVersion: 2,
    mediaType: mediaTypes.index,
    annotations: { serial: `${serial}` },
  };
  const manifests = items((4 << 20) - 2_000, () => "{}");
  const text = `${JSON.stringify(index).slice(0, -1)},"manifests":[${manifests}]}`;
  return { top: blob(mediaTypes.index, text), parts: [] };
};

/** Links in a chain, each of which costs 2,040 look-ups, and the folder at its end. */
function chain(links: number): TarEntry[] {
  const link = (index: number) => ({
    name: `l${index}`,
    type: "2",
    link: `${"./".repeat(2_040)}${index + 1 < links ? `l${index + 1}` : "end"}`,
  });
  return [{ name: "end/", type: "5" }, ...Array.from({ length: links }, (_, index) => link(index))];
}

const volumeLinks: Attack = {
  name: "volume-links",
  item: "A4",
  about: "an image with 256 volumes behind chains of 40 links",
  async prepare({ daemon, pod }) {
    const Volumes = Object.fromEntries(
      Array.from({ length: 256 }, (_, index) => [`/l0/v${index}`, {}]),
    );
    const name = "docker.io/library/volume-links:latest";
    await daemon.loadImage(busyboxImage({ Volumes }, chain(40)), name);
    const image = { image: name, user_specified_image: name };
    let [serial, last] = [0, ""];
    return {
      /** The caller gives up after this time. */
      async attack(seconds) {
        const metadata = { name: `links-${++serial}`, attempt: 0 };
        const config = { metadata, image, command: ["sleep", "1000"] };
        const request = { pod_sandbox_id: pod.id, config, sandbox_config: pod.config };
        const start = performance.now();
        last = await daemon.client.CreateContainer(request, { timeoutMs: seconds * 1000 }).then(
          () => "it was created",
          (error: unknown) => messageOf(error).slice(0, 120),
        );
        await sleep(Math.max(0, start + seconds * 1000 - performance.now()));
      },
      async check() {
        await sleep(afterCallMs);
        const share = await cpuShare([daemon.pid]);
        const words = `the daemon takes ${(share * 100).toFixed(0)} % of a core after the call has ended`;
        return { faults: share > restShareMax ? [words] : [], notes: [words, last] };
      },
      ...nothing,
    };
  },
};

/** In which the daemon may notice that a call has ended. */
const afterCallMs = 1_000;
const watchMs = 2_000;
/** What the quiet pod and the calls of Version take is below this share of a core. */
const restShareMax = 0.5;

async function cpuShare(pids: number[]): Promise<number> {
  const [start, before] = [performance.now(), cpuMs(pids)];
  await sleep(watchMs);
  return (cpuMs(pids) - before) / (performance.now() - start);
}

const bigEnvironment: Attack = {
  name: "big-environment",
  item: "A5",
  about: "a container with 5 MiB of environment, and its verbose status",
  prepare: async ({ daemon, pod }) => ({
    async attack(seconds) {
      const envs = Array.from({ length: 50_000 }, (_, index) => ({
        key: `KEY_${index}`,
        value: Buffer.alloc(90, "x"),
      }));
      for (const end = performance.now() + seconds * 1000; performance.now() < end;) {
        const id = await daemon
          .create(pod.id, pod.config, ["true"], { envs })
          .catch(() => undefined);
        if (id === undefined) {
          await sleep(100); // refused
          continue;
        }
        for (let count = 0; count < 3; count++)
          await daemon.client.ContainerStatus({ container_id: id, verbose: true });
        await daemon.client.RemoveContainer({ container_id: id });
      }
    },
    ...nothing,
  }),
};

/** A registry whose answers come byte by byte: other pulls go on. */
const slowRegistry: Attack = {
  name: "slow-registry",
  item: "A5",
  about: "a registry that sends a byte each half second, beside good pulls",
  async prepare({ daemon, registry }) {
    registry.put("good", "1", makeImage(layers));
    registry.intercept = (_, response, url) => {
      if (!url.pathname.startsWith("/v2/slow/")) return false;
      response.writeHead(200, { "content-type": mediaTypes.manifest, "content-length": 1_000 });
      const timer = setInterval(() => response.write(" "), 500);
      response.once("close", () => clearInterval(timer));
      return true;
    };
    const cut = new AbortController();
    const faults: string[] = [];
    const slow = Array.from({ length: 8 }, (_, index) => ({
      image: `${registry.host}/slow:${index}`,
    }));
    return {
      async attack(seconds) {
        for (const image of slow)
          daemon.client
            .PullImage({ image }, { signal: cut.signal, timeoutMs: 600_000 })
            .catch(() => {});
        for (const end = performance.now() + seconds * 1000; performance.now() < end;) {
          const image = { image: `${registry.host}/good:1` };
          await daemon.client
            .PullImage({ image }, { timeoutMs: 10_000 })
            .catch((error: unknown) => faults.push(`a good pull: ${messageOf(error)}`));
          await daemon.client.RemoveImage({ image }).catch(() => {});
          await sleep(500);
        }
      },
      check: async () => ({ faults: faults.slice(0, 3) }),
      [Symbol.asyncDispose]: async () => cut.abort(),
    };
  },
};

export const imageAttacks: Attack[] = [
  pulling("manifest-layers", "a manifest of 4 MiB of {} as layers", badLayers),
  pulling("config-env", "a config of 8 MiB whose environment is 0, 0, …", badConfig),
  pulling("index-of-bad-configs", "an index of 32 images with bad configs", badIndex),
  pulling("index-manifests", "an index of 4 MiB of {} as manifests", badManifestIndex),
  pulling("config-labels", "a valid config of 7 MiB of labels", (serial) =>
    withConfig(configText(serial, `"Labels":{${items(longBytes, (index) => `"${index}":""`)}}`)),
  ),
  pulling("config-volumes", "a valid config of 7 MiB of volumes", (serial) =>
    withConfig(configText(serial, `"Volumes":{${items(longBytes, (index) => `"/${index}":{}`)}}`)),
  ),
  volumeLinks,
  bigEnvironment,
  slowRegistry,
];
