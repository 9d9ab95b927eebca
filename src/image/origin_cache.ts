// Reads the origins of images and keeps them, bounded, until their files change: a mirror needs them for each request.
import { open, type FileHandle } from "node:fs/promises";
import { errnoOf, messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { parseOrigins, type ImageOrigin } from "./image_origin.ts";

/** Of all kept files together; parsed, they take about as much. */
const bytesMaxDefault = 8 << 20;

type Kept = { version: string; bytes: number; origins: ImageOrigin[] };

export class OriginCache {
  readonly #log: Log;
  readonly #bytesMax: number;
  /** By path, the one read last at the end. */
  readonly #kept = new Map<string, Kept>();
  #bytes = 0;

  constructor(log: Log, bytesMax = bytesMaxDefault) {
    this.#log = log;
    this.#bytesMax = bytesMax;
  }

  /** Returns the origins in a file; none for a missing file, and for a damaged one, which is logged once. */
  async read(path: string): Promise<ImageOrigin[]> {
    try {
      await using file = await open(path);
      const { ino, size, mtimeNs, ctimeNs } = await file.stat({ bigint: true });
      const version = [ino, size, mtimeNs, ctimeNs].join(" ");
      const kept = this.#kept.get(path);
      const origins = kept?.version === version ? kept.origins : await this.#originsIn(file, path);
      this.forget(path);
      this.#keep(path, { version, bytes: Number(size), origins });
      return origins;
    } catch (error) {
      this.forget(path);
      if (errnoOf(error) !== "ENOENT") this.#warn(path, error);
      return [];
    }
  }

  forget(path: string): void {
    this.#bytes -= this.#kept.get(path)?.bytes ?? 0;
    this.#kept.delete(path);
  }

  async #originsIn(file: FileHandle, path: string): Promise<ImageOrigin[]> {
    const text = await file.readFile("utf8");
    try {
      return parseOrigins(text);
    } catch (error) {
      this.#warn(path, error);
      return [];
    }
  }

  #keep(path: string, kept: Kept): void {
    this.#kept.set(path, kept);
    this.#bytes += kept.bytes;
    for (const oldest of this.#kept.keys()) {
      if (this.#bytes <= this.#bytesMax) return;
      this.forget(oldest);
    }
  }

  #warn(file: string, error: unknown): void {
    const message = "cannot read where an image was pulled from, not serving it";
    this.#log.warn(message, { file, error: messageOf(error) });
  }
}
