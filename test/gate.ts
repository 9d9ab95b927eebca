// Provides a gate at which a container's script waits until the test opens it.
import type { Daemon } from "./harness.ts";

/** A shell's wait for the gate. */
export const gate = "until [ -e /go ]; do sleep 0.1; done";

/** The container may end before this exec does, which then fails or is killed. */
export async function openGate(daemon: Daemon, containerId: string): Promise<void> {
  await daemon.exec(containerId, ["touch", "/go"]).catch(() => {});
}
