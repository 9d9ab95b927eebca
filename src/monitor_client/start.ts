// Has the monitor start a container, in one call; or in two, with what NRI plugins do at StartContainer between them.
import type { Crowd } from "../base/crowd.ts";
import { codeOf } from "../base/errors.ts";
import { step } from "../base/failpoints.ts";
import type { Started, StartRequest } from "../monitor/protocol.ts";
import type { MonitorClient } from "./client.ts";

type Monitor = Pick<MonitorClient, "call">;

/**
 * notify: called with the pid of the container's init before the container runs; 0: it is not created yet, because no
 * plugin wants the event or the monitor is of an earlier build.
 * @throws CriError as the start does, or as a plugin refuses it: a removal then undoes what was made.
 */
export async function startContainer(
  { monitor, crowd }: { monitor: Monitor; crowd: Crowd },
  request: StartRequest,
  plugins: { wantStarts: boolean; notify: (pid: number) => Promise<void> },
): Promise<{ result: Started }> {
  const inTurn = <T>(work: () => Promise<T>) => crowd.enter(undefined, work);
  const start = (call: "start" | "startCreated") =>
    step("container-start", () => monitor.call(call, request));
  const created = plugins.wantStarts ? await inTurn(() => create(monitor, request)) : undefined;
  await plugins.notify(created?.pid ?? 0);
  if (created === undefined) return inTurn(() => start("start"));
  // In turn, no container would run before all of them are created.
  return start("startCreated");
}

/** undefined: a monitor of an earlier build has no such call. */
async function create(monitor: Monitor, request: StartRequest): Promise<Started | undefined> {
  try {
    return (await monitor.call("create", request)).result;
  } catch (error) {
    if (codeOf(error) !== "UNIMPLEMENTED") throw error;
    return undefined;
  }
}
