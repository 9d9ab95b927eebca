// Waits for a container's exit by polling: the daemon's events may be disabled.
import { setTimeout } from "node:timers/promises";
import { codeOf } from "../base/errors.ts";
import { runtime } from "../proto/messages.js";
import type { ContainerStatus } from "../proto/types.ts";
import type { Client } from "./client.ts";
import { say } from "./output.ts";

const { CONTAINER_EXITED } = runtime.v1.ContainerState;
const pollMsMin = 5;
const pollMsMax = 250;

/** Returns the exited container's status; undefined if it was removed or `unwanted` is aborted. */
export async function waitForExit(
  client: Client,
  id: string,
  unwanted?: AbortSignal,
): Promise<ContainerStatus | undefined> {
  let warned = false;
  for (let waitMs = pollMsMin; ; waitMs = Math.min(waitMs * 1.5, pollMsMax)) {
    if (unwanted?.aborted) return undefined;
    try {
      const { status } = await client.ContainerStatus({ container_id: id });
      if (status?.state === CONTAINER_EXITED) return status;
      warned = false;
    } catch (error) {
      if (codeOf(error) === "NOT_FOUND") return undefined;
      // The daemon may be restarting while the container runs on: keep polling.
      if (codeOf(error) !== "UNAVAILABLE") throw error;
      if (!warned)
        say("isulad-ts: the daemon does not answer, retrying; the container may still run");
      warned = true;
    }
    await setTimeout(waitMs);
  }
}
