// Has the OCI runtime or the shim delete containers that have ended, and retries what failed: in the pid namespace
// of a pod or of the node, only the delete ends the processes that outlive a container's init.
import { Backoff } from "../base/backoff.ts";
import { messageOf } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { RemoveRequest } from "./protocol.ts";
import type { Runtimes } from "./runtimes.ts";

type Deletion = {
  request: RemoveRequest;
  onDeleted: (() => Promise<void>) | undefined;
};

export class Deletions {
  readonly #runtimes: Runtimes;
  readonly #log: Log;
  /** By id. */
  readonly #underWay = new Map<string, Promise<void>>();
  /** By id. */
  readonly #failed = new Map<string, Deletion>();
  readonly #backoff = new Backoff({ firstMs: 1_000, maxMs: 60_000 });

  constructor(runtimes: Runtimes, log: Log) {
    this.#runtimes = runtimes;
    this.#log = log;
  }

  /** Deletes a container in the background. after: what the delete waits for; never rejects. */
  begin(
    request: RemoveRequest,
    { after, onDeleted }: { after?: Promise<unknown>; onDeleted?: () => Promise<void> } = {},
  ): void {
    const { id } = request;
    const attempt = Promise.resolve(after).then(() => this.#attempt({ request, onDeleted }));
    this.#underWay.set(
      id,
      attempt.finally(() => this.#underWay.delete(id)),
    );
  }

  /** Deletes a container that has ended if an earlier monitor has left it. */
  resume(request: RemoveRequest): void {
    if (this.#runtimes.isLeft(request)) this.begin(request);
  }

  async #attempt(deletion: Deletion): Promise<void> {
    const { id } = deletion.request;
    try {
      await this.#runtimes.delete(deletion.request);
      await deletion.onDeleted?.();
      this.#drop(id);
    } catch (error) {
      this.#failed.set(id, deletion);
      const fields = { container: id, error: messageOf(error), retryMs: this.#backoff.failed(id) };
      this.#log.warn("runtime delete of a container failed, retrying", fields);
    }
  }

  /** Repeats the failed deletes that are due: called at intervals. */
  retry(): void {
    for (const [id, { request, onDeleted }] of this.#failed) {
      if (this.#underWay.has(id) || !this.#backoff.isDue(id)) continue;
      this.begin(request, { onDeleted });
    }
  }

  /** Waits for the attempts under way. */
  async settled(): Promise<void> {
    await Promise.all(this.#underWay.values());
  }

  /** Waits for an attempt under way, and retries none. */
  async forget(id: string): Promise<void> {
    await this.#underWay.get(id);
    this.#drop(id);
  }

  #drop(id: string): void {
    this.#failed.delete(id);
    this.#backoff.succeeded(id);
  }
}
