// Bounds what the unpacking helper keeps in memory of one layer, by the entries that a layer may have.
// Everything here costs a hostile layer less than it costs the node.
import { CriError } from "../base/errors.ts";
import { isKept } from "./layer_manifest.ts";
import type { TarHeader } from "./tar.ts";

/** For the names, link targets and attributes of an entry, on average. */
const bytesPerEntry = 512;
const bytesMin = 16 << 20;
/** What one attribute, or one more name of a folder, takes beside its own bytes. */
const objectBytes = 256;
/** Paths of all undescribed folders together: they are handed to the daemon. */
const implicitBytesMax = 8 << 20;
const implicitMax = 100_000;

export class LayerMemory {
  readonly #bytesMax: number;
  #bytes = 0;
  #implicit = 0;
  #implicitBytes = 0;

  constructor(entriesMax: number) {
    this.#bytesMax = Math.max(bytesMin, entriesMax * bytesPerEntry);
  }

  /** @throws CriError RESOURCE_EXHAUSTED, as the others do. */
  entry({ name, link, xattrs }: TarHeader): void {
    let bytes = name.length + link.length;
    for (const [key, value] of xattrs) {
      bytes += key.length + value.length + (isKept(key) ? objectBytes : 0);
    }
    this.#add(bytes);
  }

  /** A folder as an entry calls it; by symlinks one folder has names without end. */
  folderName(name: string): void {
    this.#add(name.length + objectBytes);
  }

  /** A folder that no entry describes. */
  implicitFolder(path: string): void {
    this.#implicitBytes += path.length;
    if (++this.#implicit > implicitMax) throw full(`over ${implicitMax} undescribed folders`);
    if (this.#implicitBytes <= implicitBytesMax) return;
    throw full(`the paths of undescribed folders take over ${implicitBytesMax} bytes`);
  }

  #add(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes <= this.#bytesMax) return;
    const what = `the names and attributes so far take over ${this.#bytesMax} bytes`;
    throw full(`${what} (layer-max-entries)`);
  }
}

function full(message: string): CriError {
  return new CriError("RESOURCE_EXHAUSTED", message);
}
