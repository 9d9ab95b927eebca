// What keeps a helper that deals with hostile trees inside of one: chroot, and the way back out.
import { constants } from "node:fs";
import { Descriptor } from "../sys/descriptor.ts";
import { chroot, leaveChroot } from "../sys/path.ts";

/** Confines this process to a folder, and lets it out again. */
export class Jail {
  readonly #root = Descriptor.open("/", constants.O_RDONLY | constants.O_DIRECTORY);
  #isInside = false;

  enter(folder: string): void {
    chroot(folder);
    this.#isInside = true;
  }

  leave(): void {
    if (!this.#isInside) return;
    this.#isInside = false;
    leaveChroot(this.#root);
  }

  assertInside(): void {
    if (!this.#isInside) throw new Error("unpacking outside of the layer's folder");
  }
}
