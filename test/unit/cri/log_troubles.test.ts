// Tests what the daemon tells of logs that cannot be written: a line for each file system, and entries of each container.
import { expect, test } from "bun:test";
import type { Log } from "../../../src/base/log.ts";
import { LogTroubles } from "../../../src/cri/log_troubles.ts";
import type { LogTrouble } from "../../../src/monitor/protocol.ts";

function told() {
  const lines: unknown[] = [];
  const changes: unknown[] = [];
  const say = (level: string) => (message: string, fields: object) =>
    lines.push([level, message.split(":")[0], fields]);
  const log = { warn: say("warn"), info: say("info") } as unknown as Log;
  const troubles = new LogTroubles({
    log,
    onChange: (id, { errno, end }) => changes.push([id, errno, end]),
  });
  const update = (logs: LogTrouble[], nowMs: number) => {
    lines.length = changes.length = 0;
    troubles.update({ troubles: logs, droppedBytes: 0 }, nowMs);
    return { lines: [...lines], changes: [...changes] };
  };
  return { update };
}

const trouble = (id: string, more: Partial<LogTrouble> = {}): LogTrouble => ({
  id,
  path: `/var/log/pods/${id}/0.log`,
  device: "8:1",
  droppedBytes: 0,
  sinceMs: 1_000,
  errno: "ENOSPC",
  ...more,
});

test("one line when a file system begins to fail, one when it has recovered, and each container's entries", () => {
  const { update } = told();
  const path = "/var/log/pods/a/0.log";
  expect(update([trouble("a")], 2_000)).toEqual({
    lines: [
      [
        "warn",
        "logs of containers cannot be written",
        { error: "ENOSPC", path, device: "8:1", container: "a" },
      ],
    ],
    changes: [["a", "ENOSPC", undefined]],
  });
  expect(update([trouble("a", { droppedBytes: 5 }), trouble("b")], 3_000)).toEqual({
    lines: [],
    changes: [["b", "ENOSPC", undefined]],
  });
  const { errno: _, ...written } = trouble("a", { droppedBytes: 70, sinceMs: 0 });
  expect(update([written, trouble("b")], 8_000)).toEqual({
    lines: [],
    changes: [["a", "ENOSPC", { droppedBytes: 70, tookMs: 7_000 }]],
  });
  const fields = { error: "ENOSPC", folder: "/var/log/pods/a", device: "8:1", seconds: 8 };
  expect(update([written], 9_000)).toEqual({
    lines: [
      [
        "info",
        "logs of containers can be written again",
        { ...fields, containers: 2, droppedBytes: 70 },
      ],
    ],
    changes: [["b", "ENOSPC", { droppedBytes: 0, tookMs: 8_000 }]],
  });
  expect(update([written], 10_000)).toEqual({ lines: [], changes: [] });
});

test("each file system has its own lines", () => {
  const { update } = told();
  const { lines } = update([trouble("a"), trouble("b", { device: "8:2", errno: "EROFS" })], 2_000);
  expect(lines).toHaveLength(2);
  expect(update([trouble("a")], 3_000).lines).toHaveLength(1);
});
