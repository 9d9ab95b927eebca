// Opens an image store in a scratch folder.
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../src/base/log.ts";
import type { RegistryOptions } from "../../src/registry/resolve_endpoints.ts";
import { openImageStore, type ImageStore, type ImageStoreOptions } from "../../src/image/store.ts";
import { makeImage, makeLayer, ociArchive, type Layer, type TarEntry } from "../image_maker.ts";
import { unmountRootfs } from "../../src/layer/rootfs.ts";
import { registryOptions } from "../unit/fakes.ts";

type LayerOptions = ImageStoreOptions["layers"];

const layerOptions: LayerOptions = {
  limits: { bytesMax: 2 ** 33, entriesMax: 500_000, depthMax: 256, ratioMax: 200 },
  downloadsMax: 3,
  keepsBlobs: false,
  decoding: { processors: {}, timeoutMs: 30_000 },
};

export function storeOptions(graph: string): ImageStoreOptions {
  return {
    graph,
    log: silentLog(),
    registry: registryOptions,
    layers: layerOptions,
    storage: { driver: "auto", containerBytes: 0, overlayOptions: [] },
  };
}

export type Fixture = AsyncDisposable & {
  graph: string;
  store: ImageStore;
  /** Lists leftover layer trees, scratch folders and image records. */
  remains(): string[];
  reopen(): Promise<ImageStore>;
};

export async function openFixture(
  registry: Partial<RegistryOptions> = {},
  layers: Partial<LayerOptions> = {},
  log = silentLog(),
): Promise<Fixture> {
  const graph = mkdtempSync(join(tmpdir(), "isulad-image-"));
  const plain = storeOptions(graph);
  const options = {
    ...plain,
    log,
    registry: { ...plain.registry, ...registry },
    layers: { ...plain.layers, ...layers },
  };
  const fixture: Fixture = {
    graph,
    store: await openImageStore(options),
    remains: () => [
      ...readdirSync(join(graph, "layers/l")).filter((name) => name !== "empty"),
      ...readdirSync(join(graph, "layers/scratch")),
      ...readdirSync(join(graph, "images")),
    ],
    reopen: async () => {
      await fixture.store[Symbol.asyncDispose]();
      fixture.store = await openImageStore(options);
      return fixture.store;
    },
    [Symbol.asyncDispose]: async () => {
      await fixture.store[Symbol.asyncDispose]();
      const containers = join(graph, "containers");
      for (const name of existsSync(containers) ? readdirSync(containers) : []) {
        await unmountRootfs(join(containers, name));
      }
      rmSync(graph, { recursive: true, force: true });
    },
  };
  return fixture;
}

export function within(ms = 60_000): AbortSignal {
  return AbortSignal.timeout(ms);
}

/** Loads an image of new layers and returns their trees, lowest first. */
export async function loadLayers(
  fixture: Fixture,
  layers: (TarEntry[] | Layer)[],
): Promise<string[]> {
  const made = layers.map((layer) => (Array.isArray(layer) ? makeLayer(layer) : layer));
  const file = join(mkdtempSync(join(fixture.graph, "load-")), "image.tar");
  writeFileSync(file, ociArchive([{ image: makeImage(made), name: "test/layers" }]));
  const [image] = await fixture.store.load(file, { signal: within() });
  rmSync(file);
  return image!.layers.map((id) => join(fixture.graph, "layers/l", id.slice(7, 19)));
}
