// A container that the monitor looks after, from its create or adoption until its exit is recorded.
import type { End } from "./init_process.ts";
import type { ExitRecord, RunRecord } from "./record_schemas.ts";
import type { Stdio } from "./stdio.ts";

export class Container {
  readonly record: RunRecord;
  readonly stdio: Stdio;
  readonly exit: Promise<ExitRecord>;
  /** A SIGCHLD announces the init's end. False for a shim's container, and for one that an earlier monitor started. */
  isChild: boolean;
  #ended = false;
  readonly #end = Promise.withResolvers<End>();

  constructor(
    record: RunRecord,
    stdio: Stdio,
    finish: (container: Container, end: End) => Promise<ExitRecord>,
  ) {
    this.record = record;
    this.stdio = stdio;
    this.isChild = record.runtime.shim === undefined;
    this.exit = this.#end.promise.then((end) => finish(this, end));
  }

  get ended(): boolean {
    return this.#ended;
  }

  onExit(end: End): void {
    this.#ended = true;
    this.#end.resolve(end);
  }
}
