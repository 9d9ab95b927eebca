// Tests the checker of kubelet runs with planted faults. The run itself is long: `bun test/kubelet.ts`.
import { expect, test } from "bun:test";
import { check, type Expected, type KubeletRun, type Seen } from "./kubelet_check.ts";

let serial = 0;

function seen(pod: string, name: string, attempt: number, more: Partial<Seen> = {}): Seen {
  const ended = { running: false, exitCode: 1, isThere: true };
  const id = `id${serial++}`;
  return { id, pod, podUid: "uid", name, attempt, createdMs: attempt * 1000, ...ended, ...more };
}

/** A passing run with one container of each kind. */
function clean(): KubeletRun {
  const expected: Expected[] = [
    { pod: "crash", name: "fails", must: "restart" },
    { pod: "crash", name: "stays", must: "steady" },
    { pod: "job", name: "fails", must: "complete", attempts: 2 },
    { pod: "visitor", name: "fails", must: "go" },
  ];
  const found = [
    ...[0, 1, 2, 3].map((attempt) => seen("crash", "fails", attempt)),
    seen("crash", "stays", 0, { running: true, exitCode: 0 }),
    seen("job", "fails", 0),
    seen("job", "fails", 1, { exitCode: 0 }),
    seen("visitor", "fails", 0, { isThere: false }),
  ];
  const lines = ["I1122 kubelet.go: Starting kubelet", "E1122 pod_workers.go: CrashLoopBackOff"];
  return { seen: found, expected, lines, endMs: 4000, stuckMs: 2000 };
}

/** The passing run with one container changed. */
function but(pod: string, name: string, attempt: number, change: Partial<Seen>): KubeletRun {
  const run = clean();
  const one = run.seen.find((c) => c.pod === pod && c.name === name && c.attempt === attempt)!;
  Object.assign(one, change);
  return run;
}

test("a run with each attempt once passes", () => {
  expect(check(clean())).toEqual([]);
});

const withTwo = clean();
withTwo.seen.push(seen("crash", "fails", 2, { id: "other" }));
const refused = clean();
refused.lines.push(
  'E1122 "Failed to create container" err="name crash_fails_2 is reserved by id9"',
);
const unavailable = 'CreateContainerError: "error while dialing: connect: connection refused"';
const withoutOne = clean();
withoutOne.seen.splice(1, 1);
const withoutAll = clean();
withoutAll.seen = withoutAll.seen.filter(({ pod }) => pod !== "job");

test("a call that fails while the daemon is killed is no fault, unless nobody killed it", () => {
  const run = clean();
  run.lines.push(unavailable);
  expect(check({ ...run, hasKills: true })).toEqual([]);
  expect(check(run)[0]).toMatch(/could not create a container, in 1 lines/);
  expect(check({ ...refused, hasKills: true })[0]).toMatch(/in 1 lines/);
  const twice = clean();
  twice.lines.push(
    'CreateContainerError: "sandbox name crash-1_default_uid_0 is reserved for id9"',
  );
  expect(check({ ...twice, hasKills: true })).toEqual([]);
  expect(check(twice)[0]).toMatch(/in 1 lines/);
});

test("a container that restarts by one call may stay, if that call may have been killed", () => {
  const stuck = { ...clean(), endMs: 9000 };
  stuck.expected = stuck.expected.map((one) => ({ ...one, byOneCall: one.must === "restart" }));
  expect(check({ ...stuck, hasKills: true })).toEqual([]);
  expect(check(stuck)[0]).toMatch(/stuck/);
});

test.each([
  ["an attempt made twice", withTwo, /attempt 2 of crash\/fails \(pod uid\) exists 2 times/],
  ["a name that is reserved", refused, /could not create a container, in 1 lines/],
  ["an attempt left out", withoutOne, /attempt 1 of crash\/fails was never seen/],
  ["a container never made", withoutAll, /job\/fails was never created/],
  [
    "a pod stuck at the end",
    { ...clean(), endMs: 9000 },
    /stuck after attempt 3: no other for 6 s/,
  ],
  [
    "a pod stuck amid the run",
    but("crash", "fails", 0, { createdMs: -3000 }),
    /stuck after attempt/,
  ],
  [
    "a steady one that restarted",
    but("crash", "stays", 0, { attempt: 1 }),
    /has restarted 1 times/,
  ],
  ["a steady one that ended", but("crash", "stays", 0, { running: false }), /stays does not run/],
  ["a job that goes on", but("job", "fails", 1, { running: true }), /fails has not completed/],
  [
    "a job restarted too often",
    but("job", "fails", 1, { attempt: 2 }),
    /restarted 2 times, must 1/,
  ],
  ["a pod that does not go", but("visitor", "fails", 0, { isThere: true }), /were not removed/],
])("%s is found", (_, run, problem) => {
  expect(check(run).join("\n")).toMatch(problem);
});
