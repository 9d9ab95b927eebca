// What of host, image and configuration a container's spec depends on, looked up at its creation.
import { CriError } from "../base/errors.ts";
import type { ImageRecord, RootfsOwner } from "../image/store.ts";
import { resolveCdi } from "../node/cdi.ts";
import { lookupContainer } from "../node/container_lookup.ts";
import { makeVolumes } from "../node/image_volumes.ts";
import type { ContainerConfig } from "../proto/types.ts";
import { cdiNames } from "../spec/cdi.ts";
import type { CdiEdits, ResolvedInputs } from "../spec/spec_inputs.ts";
import type { Container } from "../state/container.ts";
import { stepSignal, type Call, type Context } from "./context.ts";
import { labelFiles } from "./selinux.ts";

/** imageMounts: where mounts with an image are mounted, by index in config.mounts. */
export type MountedImages = { rootfsPath: string; imageMounts: ReadonlyMap<number, string> };

type Parts = MountedImages & { image: ImageRecord; owner?: RootfsOwner; call: Call };

/** Makes what is missing: mount sources, and folders for the image's volumes. */
export async function containerFacts(
  context: Context,
  container: Container,
  { image, owner, call, ...mounted }: Parts,
): Promise<ResolvedInputs> {
  const { id, config } = container;
  const { rejectMissingMountSources: rejectMissing } = context.config;
  const cdi = await cdiEdits(context, config);
  const signal = stepSignal(context, call);
  const facts = await lookupContainer(config, { ...mounted, rejectMissing, signal });
  const volumes = await makeVolumes({
    folder: context.containers.folderOf(id),
    rootfs: mounted.rootfsPath,
    paths: Object.keys(image.config.Volumes ?? {}),
    destinations: (config.mounts ?? []).map((mount) => mount.container_path ?? ""),
    owner,
    signal: stepSignal(context, call),
  });
  await labelFiles(context, container, { mounts: facts.mounts, volumes, call });
  return { ...facts, cdi, volumes };
}

/** Annotations are anybody's, so they count only where CDI is wanted; the field says what is wanted. */
async function cdiEdits(context: Context, config: ContainerConfig): Promise<CdiEdits | undefined> {
  const { enableCdi, cdiSpecDirs } = context.config;
  if (enableCdi) return await resolveCdi(cdiNames(config), cdiSpecDirs);
  const [first] = config.CDI_devices ?? [];
  if (first === undefined) return undefined;
  throw new CriError(
    "FAILED_PRECONDITION",
    `CDI_devices: ${first.name}: CDI is off (set enable-cdi in daemon.json)`,
  );
}
