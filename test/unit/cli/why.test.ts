// Tests which pod isulad-ts why shows, and its text.
import { expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import type { Client } from "../../../src/cli/client.ts";
import { chosen, timelineText } from "../../../src/cli/why.ts";
import type { TimelineEntry } from "../../../src/proto/types.ts";
import { failureOf } from "../fakes.ts";

type Given = { [Key in keyof TimelineEntry]: TimelineEntry[Key] | number };

/** A time on 2026-11-23 in the zone of this machine. */
const at = (seconds: number) => new Date(2026, 10, 23, 20, 0, seconds).getTime() * 1e6;

function entry(given: Given): TimelineEntry {
  const { took_ms = 0, bytes = 0, times = 1, ...others } = given;
  const first = given.first_at ?? given.at;
  const numbers = { took_ms, bytes, times, at: given.at, first_at: first };
  const longs = Object.entries(numbers).map(([key, value]) => [
    key,
    toLong(BigInt(value as number)),
  ]);
  return { ...others, ...Object.fromEntries(longs) } as TimelineEntry;
}

function text(entries: Given[], columns = 80): string {
  return timelineText({ pod: "default/web", entries: entries.map(entry) }, columns);
}

test("text of a container or registry cannot move the terminal's cursor", () => {
  const detail = "no command \u001b[2Jevil\u009b1m\r\nin it";
  const shown = text([{ at: at(0), what: "StartContainer", code: "INTERNAL", detail }], 200);
  expect(shown).toContain("no command \uFFFD[2Jevil\uFFFD1m in it");
});

test.each([1, 20, 40])("on a terminal of %i columns words stay whole", (columns) => {
  const detail = "a registry that does not answer";
  const shown = text([{ at: at(0), what: "PullImage", code: "UNAVAILABLE", detail }], columns);
  expect(shown).toMatch(/\n +(a )?registry that does\n/);
});

test("each kind of entry is a sentence", () => {
  const app = "app";
  const shown = text([
    { at: at(0), what: "RunPodSandbox", took_ms: 300 },
    { at: at(0), what: "network", detail: "bridge, portmap", took_ms: 120 },
    {
      at: at(1),
      what: "PullImage",
      container: app,
      detail: "busybox",
      bytes: 2_140_000,
      took_ms: 1230,
    },
    { at: at(2), what: "PullImage", detail: "busybox", took_ms: 40 },
    { at: at(3), what: "CreateContainer", container: app, detail: "busybox", took_ms: 90 },
    { at: at(3), what: "nri", container: app, detail: "10-tuner: env" },
    { at: at(4), what: "StartContainer", container: app, took_ms: 110 },
    { at: at(5), what: "exit", container: app, code: "Error", exit_code: 1, took_ms: 2500 },
    { at: at(6), what: "StopPodSandbox", took_ms: 150_000 },
    { at: at(7), what: "network_end", detail: "bridge", took_ms: 20 },
    { at: at(8), what: "not_ready", detail: "its pause container ended" },
    { at: at(9), what: "remove" },
    {
      at: at(10),
      what: "StartContainer",
      container: app,
      is_running: true,
      detail: "cni ADD bridge",
      took_ms: 35_000,
    },
  ]);
  expect(shown).toBe(`2026-11-23
20:00:00  (pod)  pod created in 300 ms
20:00:00  (pod)  network made by bridge, portmap in 120 ms
20:00:01  app    pulled busybox: 2.14MB in 1.2 s
20:00:02  (pod)  pulled busybox: no layer was missing in 40 ms
20:00:03  app    created from busybox in 90 ms
20:00:03  app    changed by NRI plugin 10-tuner: env
20:00:04  app    started in 110 ms
20:00:05  app    exited with code 1 after 2.5 s
20:00:06  (pod)  pod stopped in 3 min
20:00:07  (pod)  network removed by bridge in 20 ms
20:00:08  (pod)  the pod is ready no longer: its pause container ended
20:00:09  (pod)  removed
20:00:10  app    StartContainer has gone on for 35.0 s: cni ADD bridge
`);
});

test("an exit by a signal names it, and whose memory limit it was", () => {
  const detail =
    "the kernel killed a process of the container for memory: the pod's memory limit was reached";
  const killed = { what: "exit", container: "app", exit_code: 137, took_ms: 3200 };
  expect(text([{ at: at(0), ...killed, code: "OOMKilled", detail }])).toBe(`2026-11-23
20:00:00  app  exited with code 137 (SIGKILL) after 3.2 s, OOMKilled: the kernel
               killed a process of the container for memory: the pod's memory
               limit was reached
`);
});

test("failures have call, code and message; a timed-out exec is told in words", () => {
  const id = "4f2a".repeat(16);
  const failed = {
    what: "RunPodSandbox",
    code: "INTERNAL",
    took_ms: 12,
    detail: `${id}: no\naddress`,
  };
  const exec = { what: "ExecSync", container: "app", code: "DEADLINE_EXCEEDED", took_ms: 1000 };
  const shown = text([
    { at: at(0), ...failed, times: 12, first_at: at(-60) },
    { at: at(1), ...exec, detail: "killed" },
  ]);
  expect(shown).toBe(`2026-11-23
20:00:00  (pod)  RunPodSandbox failed after 12 ms with INTERNAL: 4f2a4f2a4f2a4:
                 no address (12 times since 19:59:00)
20:00:01  app    exec (a probe or hook) timed out after 1.0 s: killed
`);
});

test("no line is wider than the screen, whatever the words and names", () => {
  const detail = "registry.example/".repeat(30);
  const wide = { what: "CreateContainer", container: "c".repeat(60), detail };
  const lines = text([
    { at: at(0), ...wide },
    { at: at(1), ...wide, code: "INTERNAL" },
  ]).split("\n");
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(80);
  expect(lines.join("").replaceAll(" ", "")).toContain(detail);
});

test("a day has its line, a pod without entries a sentence, dropped ones a count", () => {
  const removed = { what: "remove" };
  expect(
    text([
      { at: at(-86_400), ...removed },
      { at: at(0), ...removed },
    ]),
  ).toBe("2026-11-22\n20:00:00  (pod)  removed\n2026-11-23\n20:00:00  (pod)  removed\n");
  expect(text([])).toBe("Nothing has happened to default/web since the daemon was started.\n");
  const timeline = {
    pod: "default/web",
    dropped: toLong(3n),
    entries: [entry({ at: at(0), ...removed })],
  };
  expect(timelineText(timeline, 80)).toStartWith("3 older entries are gone\n");
});

test("of a pod that is older than the daemon's start, that start comes first", () => {
  const timeline = { pod: "default/web", entries: [entry({ at: at(5), what: "remove" })] };
  const since = toLong(BigInt(at(1)));
  expect(timelineText(timeline, 50, since)).toBe(`The daemon was started at 2026-11-23 20:00:01; of
the time before, this has what the records tell,
and the log has more.
2026-11-23
20:00:05  (pod)  removed
`);
});

const created_at = toLong(5n);
const livePod = { id: "aa1", metadata: { namespace: "default", name: "web" }, created_at };
const timelines = [
  {
    pod: "default/web",
    objects: [
      { id: "aa1", container: "", created_at },
      { id: "ba1", container: "app", created_at },
    ],
  },
  { pod: "default/gone", objects: [{ id: "aa2", container: "", created_at }] },
  { pod: "default/failed", objects: [], began_at: created_at },
  { pod: "test/gone", objects: [{ id: "cc1", container: "", created_at }] },
];
/** Of a pod that is older than the daemon's start: nothing but a container. */
const old = { id: "dd1", metadata: { namespace: "default", name: "old" }, created_at };
const ofOld = {
  pod: "default/old",
  objects: [{ id: "dd2", container: "app", created_at: toLong(9n) }],
  began_at: toLong(9n),
};
const client = {
  ListPodSandbox: async () => ({ items: [livePod, old] }),
  ListContainers: async () => ({
    containers: [{ id: "bb1", pod_sandbox_id: "aa1", metadata: { name: "side" }, created_at }],
  }),
  ListTimelines: async () => ({ timelines: [...timelines, ofOld] }),
} as unknown as Client;

test.each([
  ["web", "default/web", ""],
  ["aa1", "default/web", ""],
  ["aa2", "default/gone", ""], // removed
  ["failed", "default/failed", ""], // it never had an id
  ["default/web/side", "default/web", "side"],
  ["bb", "default/web", "side"],
  ["default/web/app", "default/web", "app"], // removed
  ["old", "default/old", ""],
])("why %s shows %s %s", async (text, pod, container) => {
  expect(await chosen(client, text)).toEqual({ pod, container, createdNs: 5n });
});

test("a name of several pods, or of none, is refused", async () => {
  expect(await failureOf(chosen(client, "gone"))).toContain('"gone" matches 2 pods');
  expect(await failureOf(chosen(client, "aa"))).toContain("default/gone  removed");
  expect(await failureOf(chosen(client, "wob"))).toStartWith("pod wob not found");
});
