// Loads the archives of images-dir at the start, for nodes without a registry.
import { readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { errnoOf, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { checked, mapOf } from "../base/schema.ts";
import { writeFileAtomic } from "../sys/file.ts";
import type { ImageStore } from "./store.ts";

/** The files loaded so far: an unchanged file is skipped while all its images exist. */
const Loaded = v.object({
  version: v.literal(1),
  files: mapOf(v.string(), v.object({ mark: v.string(), images: v.array(v.string()) })),
});
type Loaded = v.InferOutput<typeof Loaded>;

/** memory: the file that records which files were loaded. */
type ImagesDirOptions = { folder: string; memory: string; log: Log };

/**
 * Loads archives and OCI layout folders in the background, one after another in order of their names. Logs and
 * skips those that fail. Disposal ends the loading early.
 */
export function loadImagesDir(store: ImageStore, options: ImagesDirOptions): AsyncDisposable {
  const ending = new AbortController();
  const done = loadAll(store, { ...options, signal: ending.signal });
  return {
    [Symbol.asyncDispose]: async () => {
      ending.abort();
      await done;
    },
  };
}

type Work = ImagesDirOptions & { signal: AbortSignal };

async function loadAll(store: ImageStore, work: Work): Promise<void> {
  const { folder, log, signal } = work;
  const before = await readMemory(work);
  const files: Loaded["files"] = {};
  const counts = { loaded: 0, unchanged: 0, failed: 0 };
  const earlier = new Set<string>();
  // A file that is loaded again takes only tags that the files before it have given.
  const leavesTagsOf = (id: string) => !earlier.has(id);
  for (const name of await namesIn(folder, log)) {
    if (signal.aborted) return;
    const path = join(folder, name);
    try {
      const mark = await markOf(path);
      const known = before[name]?.mark === mark ? before[name] : undefined;
      const isThere = known?.images.every((id) => store.find(id)) === true;
      const options = known === undefined ? { signal } : { signal, leavesTagsOf };
      const images = isThere ? known.images : (await store.load(path, options)).map(({ id }) => id);
      for (const id of images) earlier.add(id);
      counts[isThere ? "unchanged" : "loaded"]++;
      files[name] = { mark, images };
      // After each load, so that an interrupted start does not reload all of them.
      if (!isThere) await writeMemory(work, { ...before, ...files });
    } catch (error) {
      if (signal.aborted) return;
      counts.failed++;
      const reason = { path, error: messageOf(error) };
      log.error("loading a file of images-dir failed, skipping it", reason);
    }
  }
  await writeMemory(work, files);
  log.info("images-dir processed", { folder, ...counts });
}

/** Skips hidden files, such as rsync's partial ones. */
async function namesIn(folder: string, log: Log): Promise<string[]> {
  try {
    return (await readdir(folder)).filter((name) => !name.startsWith(".")).sort();
  } catch (error) {
    const reason = { folder, error: messageOf(error) };
    log.error("cannot read images-dir, loading nothing from it", reason);
    return [];
  }
}

/** Identifies a version of the file, or of the layout's index. */
async function markOf(path: string): Promise<string> {
  const found = await stat(path, { bigint: true });
  const { ino, size, mtimeNs, ctimeNs } = found.isDirectory()
    ? await stat(join(path, "index.json"), { bigint: true })
    : found;
  return [ino, size, mtimeNs, ctimeNs].join(" ");
}

async function readMemory({ memory, log }: Work): Promise<Loaded["files"]> {
  try {
    return checked(Loaded, trustedJsonValue(await readFile(memory, "utf8"))).files;
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return {};
    const reason = { file: memory, error: messageOf(error) };
    log.warn("cannot read the list of files loaded from images-dir, loading all again", reason);
    return {};
  }
}

async function writeMemory({ memory, log }: Work, files: Loaded["files"]): Promise<void> {
  try {
    await writeFileAtomic(memory, jsonText({ version: 1, files } satisfies Loaded));
  } catch (error) {
    log.warn("cannot write the list of files loaded from images-dir", { error: messageOf(error) });
  }
}
