// Checks the results of a kubelet run: each attempt of each container exists once, nothing is stuck, no name
// is refused. It is pure, so that kubelet.test.ts can test it with planted faults.

/** A container as CRI reported it. */
export type Seen = {
  id: string;
  pod: string;
  podUid: string;
  name: string;
  attempt: number;
  createdMs: number;
  /** By the last report. */
  running: boolean;
  exitCode: number;
  /** It existed at the end of the run. */
  isThere: boolean;
};

/**
 * Expected outcome of a container: it restarts until the end, stays running from its first attempt, completes
 * with exit code 0 after some failed attempts, or is removed with its pod.
 */
export type Expected = {
  pod: string;
  name: string;
  must: "restart" | "steady" | "complete" | "go";
  /** Number of attempts before it completes. */
  attempts?: number;
  /** It restarts by a single call of the kubelet, which does not retry it when the runtime is killed meanwhile. */
  byOneCall?: boolean;
};

export type KubeletRun = {
  seen: Seen[];
  expected: Expected[];
  /** The kubelet's log. */
  lines: string[];
  endMs: number;
  /** A container without a new attempt for longer is stuck. */
  stuckMs: number;
  /** Daemon and kubelet were killed meanwhile, so that calls may fail as unavailable, and sandboxes be made again. */
  hasKills?: boolean;
};

const refused =
  /is reserved|CreateContainerError|CreateContainer in sandbox from runtime service failed/;
/**
 * The kubelet's Evented PLEG calls its cache current before the first relist (v1.36.3, pleg/evented.go Start): a
 * kubelet that has just started may make the sandbox of a running pod again, and is refused.
 */
const expectedByKills =
  /code = Unavailable|error while dialing|error reading from server|sandbox name \S+ is reserved/i;
const linesShown = 5;

export function check(run: KubeletRun): string[] {
  const problems = run.expected.flatMap((one) => judge(run, one));
  for (const attempts of Map.groupBy(run.seen, keyOf).values()) {
    const ids = new Set(attempts.map(({ id }) => id));
    if (ids.size > 1)
      problems.push(`${keyOf(attempts[0]!)} exists ${ids.size} times: ${[...ids].join(", ")}`);
  }
  const failed = run.lines.filter(
    (line) => refused.test(line) && !(run.hasKills === true && expectedByKills.test(line)),
  );
  if (failed.length > 0) {
    problems.push(`the kubelet could not create a container, in ${failed.length} lines of its log`);
    problems.push(...failed.slice(0, linesShown).map((line) => `  ${line}`));
  }
  return problems;
}

function keyOf({ pod, podUid, name, attempt }: Seen): string {
  return `attempt ${attempt} of ${pod}/${name} (pod ${podUid})`;
}

function judge(run: KubeletRun, expected: Expected): string[] {
  const { pod, name, must, attempts = 1 } = expected;
  const what = `${pod}/${name}`;
  const found = run.seen
    .filter((one) => one.pod === pod && one.name === name)
    .sort((a, b) => a.createdMs - b.createdMs);
  const last = found.at(-1);
  if (last === undefined) return [`${what} was never created`];
  const missing = Array.from({ length: last.attempt }, (_, attempt) => attempt).filter(
    (attempt) => !found.some((one) => one.attempt === attempt),
  );
  const problems = missing.map((attempt) => `attempt ${attempt} of ${what} was never seen`);
  const restarts = `has restarted ${last.attempt} times`;
  const mayStay = run.hasKills === true && expected.byOneCall === true;
  if (must === "restart" && !mayStay) problems.push(...stuck(run, what, found));
  if (must === "steady" && last.attempt > 0) problems.push(`${what} ${restarts}, must not`);
  if (must === "steady" && !last.running) problems.push(`${what} does not run`);
  if (must === "complete" && (last.running || last.exitCode !== 0)) {
    problems.push(`${what} has not completed`);
  }
  if (must === "complete" && last.attempt !== attempts - 1) {
    problems.push(`${what} ${restarts}, must ${attempts - 1} times`);
  }
  const left = found.filter(({ isThere }) => isThere).length;
  if (must === "go" && left > 0) problems.push(`${left} containers of ${what} were not removed`);
  return problems;
}

/** Finds the spans without a new attempt, including the one up to the end. */
function stuck({ endMs, stuckMs }: KubeletRun, what: string, found: Seen[]): string[] {
  const times = [...found.map(({ createdMs }) => createdMs), endMs];
  return found.flatMap(({ attempt }, index) => {
    const ms = times[index + 1]! - times[index]!;
    if (ms <= stuckMs) return [];
    return [`${what} was stuck after attempt ${attempt}: no other for ${Math.round(ms / 1000)} s`];
  });
}
