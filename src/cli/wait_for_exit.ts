// Waits for a container's end by asking: its events may be switched off in the daemon.
import { setTimeout } from "node:timers/promises";
import { codeOf } from "../base/errors.ts";
import { runtime } from "../proto/messages.js";
import type { ContainerStatus } from "../proto/types.ts";
import type { Client } from "./client.ts";
import { say } from "./output.ts";

const { CONTAINER_EXITED } = runtime.v1.ContainerState;
const pollMsMin = 5;
const pollMsMax = 250;

/** The status of the container that has ended; undefined once it is removed, or nobody cares. */
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
      // The daemon may be restarting: the container lives on, so we go on asking.
      if (codeOf(error) !== "UNAVAILABLE") throw error;
      if (!warned) say("isulad-ts: the daemon does not answer; the container may run on");
      warned = true;
    }
    await setTimeout(waitMs);
  }
}
