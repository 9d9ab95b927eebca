// Makes a wrapper around the OCI runtime whose verbs a test can delay.
import { existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ociRuntime } from "../harness.ts";

export type Verb = "create" | "start" | "exec" | "delete";

export class SlowRuntime {
  readonly path: string;
  readonly #folder: string;

  /** Makes the wrapper in a folder of the daemon's. */
  constructor(dir: string) {
    this.#folder = join(dir, "held");
    this.path = join(dir, "runtime");
    mkdirSync(this.#folder);
    const verbs = `for word; do case $word in create|start|exec|delete) verb=$word; break;; esac; done`;
    const wait = `while [ -e ${this.#folder}/\${verb-none} ]; do touch ${this.#folder}/met-$verb; sleep 0.1; done`;
    const script = `#!/bin/sh\n${verbs}\n${wait}\nexec ${ociRuntime} "$@"\n`;
    writeFileSync(this.path, script, { mode: 0o755 });
  }

  /** Calls of the verb wait until the disposal. */
  hold(verb: Verb): Disposable {
    rmSync(join(this.#folder, `met-${verb}`), { force: true });
    writeFileSync(join(this.#folder, verb), "");
    return { [Symbol.dispose]: () => rmSync(join(this.#folder, verb), { force: true }) };
  }

  /** Whether a call waits, or has waited since the last hold. */
  met(verb: Verb): boolean {
    return existsSync(join(this.#folder, `met-${verb}`));
  }
}
