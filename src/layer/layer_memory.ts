// Limits the memory that an unpack helper spends on one layer's metadata, in proportion to the maximum number
// of entries: a hostile layer states in few bytes what costs the node many.
import { CriError } from "../base/errors.ts";
import { isKept } from "./layer_manifest.ts";
import type { TarHeader } from "./tar_reader.ts";

/** For the names, link targets and attributes of an entry, on average. */
const bytesPerEntry = 512;
const bytesMin = 16 << 20;
/** Overhead of one attribute, or of one more name of a folder. */
const objectBytes = 256;
/** Paths of all implicit folders together, which are sent to the daemon. */
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

  /** Counts an entry. @throws CriError RESOURCE_EXHAUSTED, like the other methods. */
  addEntry({ name, link, xattrs }: TarHeader): void {
    let bytes = name.length + link.length;
    for (const [key, value] of xattrs) {
      bytes += key.length + value.length + (isKept(key) ? objectBytes : 0);
    }
    this.#add(bytes);
  }

  /** Counts a folder's name; through symlinks one folder can have any number of them. */
  addFolderName(name: string): void {
    this.#add(name.length + objectBytes);
  }

  /** Counts a folder without an entry of its own. */
  addImplicitFolder(path: string): void {
    this.#implicitBytes += path.length;
    if (++this.#implicit > implicitMax)
      throw exhausted(`over ${implicitMax} folders without an entry`);
    if (this.#implicitBytes <= implicitBytesMax) return;
    throw exhausted(`the paths of folders without an entry take over ${implicitBytesMax} bytes`);
  }

  #add(bytes: number): void {
    this.#bytes += bytes;
    if (this.#bytes <= this.#bytesMax) return;
    const limit = `${this.#bytesMax} bytes (layer-max-entries)`;
    throw exhausted(`its names and attributes take over ${limit}`);
  }
}

function exhausted(message: string): CriError {
  return new CriError("RESOURCE_EXHAUSTED", message);
}
