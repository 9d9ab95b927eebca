// Confines an unpack helper to one folder with chroot(2) while it handles a hostile tree, and releases it.
import { Descriptor } from "../sys/descriptor.ts";
import { chroot, leaveChroot } from "../sys/path.ts";

export class ChrootJail {
  readonly #root = Descriptor.openFolder("/");
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
    if (!this.#isInside) throw new Error("the unpack helper is not confined to the layer's folder");
  }
}
