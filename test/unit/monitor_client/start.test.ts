// Tests which calls start a container, and when NRI plugins hear of it.
import { expect, test } from "bun:test";
import { Crowd } from "../../../src/base/crowd.ts";
import { CriError } from "../../../src/base/errors.ts";
import type { StartRequest } from "../../../src/monitor/protocol.ts";
import type { MonitorClient } from "../../../src/monitor_client/client.ts";
import { startContainer } from "../../../src/monitor_client/start.ts";

type Setting = { wantStarts: boolean; refuses?: boolean; isOldMonitor?: boolean };

/** Returns the calls of one start, in order, and its outcome. */
async function callsOf({ wantStarts, refuses, isOldMonitor }: Setting): Promise<string[]> {
  const calls: string[] = [];
  const notify = async (pid: number) => {
    calls.push(`plugins hear of process ${pid}`);
    if (refuses) throw new CriError("ABORTED", "refused");
  };
  const call = async (name: string) => {
    calls.push(name);
    if (name === "create" && isOldMonitor) throw new CriError("UNIMPLEMENTED", "no call create");
    return { result: { pid: 7, startedAtNs: "1" } };
  };
  const monitor = { call } as unknown as MonitorClient;
  const parts = { monitor, crowd: new Crowd("containers") };
  const started = startContainer(parts, {} as StartRequest, { wantStarts, notify });
  await started.catch((error: Error) => calls.push(error.message));
  return calls;
}

test.each<[string, Setting, string[]]>([
  [
    "without a plugin that wants the event",
    { wantStarts: false },
    ["plugins hear of process 0", "start"],
  ],
  [
    "with such a plugin",
    { wantStarts: true },
    ["create", "plugins hear of process 7", "startCreated"],
  ],
  [
    "with a monitor of an earlier build",
    { wantStarts: true, isOldMonitor: true },
    ["create", "plugins hear of process 0", "start"],
  ],
  [
    "with a plugin that refuses",
    { wantStarts: true, refuses: true },
    ["create", "plugins hear of process 7", "refused"],
  ],
])("%s the calls are these", async (_, setting, calls) => {
  expect(await callsOf(setting)).toEqual(calls);
});
