// Opens the image store with the values of the configuration, and loads the archives of images-dir.
import { join } from "node:path";
import type { Config } from "./base/config.ts";
import { liveFields } from "./base/live_fields.ts";
import type { Log } from "./base/log.ts";
import type { Context } from "./cri/context.ts";
import { loadImagesDir } from "./image/images_dir.ts";
import { pinnedPatterns } from "./image/pinned.ts";
import { type ImageStore, openImageStore } from "./image/store.ts";
import type { Verification } from "./image/verifiers.ts";

/** Opens the image store; values that a reload changes are read at each use. */
export function openImages({ config, log }: { config: Config; log: Log }): Promise<ImageStore> {
  return openImageStore({
    graph: config.graph,
    log: log.child("image"),
    registry: liveFields(config, {
      mirrors: "registryMirrors",
      insecure: "insecureRegistries",
      configPath: "registryConfigPath",
      authFile: "registryAuthFile",
      progressTimeoutMs: "pullProgressTimeoutMs",
    }),
    layers: {
      limits: {
        bytesMax: config.layerMaxMib * 2 ** 20,
        entriesMax: config.layerMaxEntries,
        depthMax: config.layerMaxDepth,
        ratioMax: config.layerMaxRatio,
      },
      downloadsMax: config.maxConcurrentDownloads,
      keepsBlobs: config.keepBlobs,
      decoding: liveFields(config, {
        processors: "streamProcessors",
        timeoutMs: "pullProgressTimeoutMs",
      }),
    },
    storage: {
      driver: config.storageDriver,
      containerBytes: config.containerBytes,
      overlayOptions: config.overlayOptions,
    },
    get verification() {
      return verificationOf(config, log); // a reload changes it
    },
    pinned: pinnedPatterns(config),
  });
}

function verificationOf(config: Config, log: Log): Verification | undefined {
  if (config.imageVerifierDir === "") return undefined;
  return {
    folder: config.imageVerifierDir,
    isRequired: config.imageVerifierRequired,
    verifiersMax: config.maxVerifiers,
    timeoutMs: config.perVerifierTimeoutMs,
    log: log.child("verifier"),
  };
}

/** Loads the archives of images-dir in the background. */
export function loadImages({ images, config, log }: Context): AsyncDisposable {
  const memory = join(config.graph, "images-dir.json");
  return loadImagesDir(images, { folder: config.imagesDir, memory, log });
}
