// An image store in a scratch folder, with our own program as its helpers.
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../src/base/log.ts";
import type { RegistryOptions } from "../../src/image/hosts.ts";
import { openImageStore, type ImageStore } from "../../src/image/store.ts";
import { unmountOverlay } from "../../src/image/rootfs.ts";

export const self = [process.execPath, join(import.meta.dirname, "../../src/main.ts")];

export const registryOptions: RegistryOptions = {
  mirrors: [],
  insecure: [],
  configPath: "",
  progressTimeoutMs: 2000,
};

export type Fixture = AsyncDisposable & {
  graph: string;
  store: ImageStore;
  /** Layer trees and scratch folders that lie there. */
  remains(): string[];
  reopen(): Promise<ImageStore>;
};

export async function openFixture(registry: Partial<RegistryOptions> = {}): Promise<Fixture> {
  const graph = mkdtempSync(join(tmpdir(), "isulad-image-"));
  const options = {
    graph,
    log: silentLog(),
    registry: { ...registryOptions, ...registry },
    self,
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
        await unmountOverlay(join(containers, name));
      }
      rmSync(graph, { recursive: true, force: true });
    },
  };
  return fixture;
}

export function within(ms = 20_000): AbortSignal {
  return AbortSignal.timeout(ms);
}
