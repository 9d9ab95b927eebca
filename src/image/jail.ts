// What keeps a helper that deals with hostile trees inside of one: chroot, and the way back out.
import * as fs from "node:fs";
import { chroot, leaveChroot } from "../sys/path.ts";

/** Confines this process to a folder, and lets it out again. */
export class Jail {
  readonly #rootFd = fs.openSync("/", fs.constants.O_RDONLY | fs.constants.O_DIRECTORY);
  #isInside = false;

  enter(folder: string): void {
    chroot(folder);
    this.#isInside = true;
  }

  leave(): void {
    if (!this.#isInside) return;
    this.#isInside = false;
    leaveChroot(this.#rootFd);
  }

  assertInside(): void {
    if (!this.#isInside) throw new Error("unpacking outside of the layer's folder");
  }
}
