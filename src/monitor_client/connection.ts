// Models the daemon's connection to its monitor: the states, and the decisions that lead from one to the
// next.
//
//   disconnected ──▶ searching ──▶ connected      the search fails, or the monitor ends ──▶ disconnected
//                                                 the daemon ends ──▶ closed
//
// No I/O and no clock here: client.ts dials and greets, and carries the decisions out. Times are
// performance.now()'s.

/** A process that does not serve yet and may: the latest monitor that was started, or one being upgraded. */
export type Candidate = { sinceMs: number; hasEnded: () => boolean };

/** Dials until a monitor greets, starts one when that is due, and waits for one that is upgraded. */
export type Searching = {
  state: "searching";
  /** When the monitors that do not serve are killed, and, after that, when the search fails. */
  deadlineMs: number;
  hasOusted: boolean;
  candidate: Candidate | undefined;
  /** Delay from one start to the next where the candidate has ended. */
  pauseMs: number;
};
export type Connection<Socket> =
  | { state: "disconnected" }
  | Searching
  | { state: "connected"; socket: Socket; pid: number }
  | { state: "closed" };

/** From the start of a monitor to its first answer; a busy node takes its time. */
const searchMs = 30_000;
/** Another monitor is started when a candidate has neither ended nor answered after this long. */
const candidateMs = 15_000;
/** The pause doubles with each candidate that ends. */
const pauseMinMs = 20;
const pauseMaxMs = 2_000;

/** candidate: a monitor that was started before the search. */
export function search(nowMs: number, candidate?: Candidate): Searching {
  const times = { deadlineMs: nowMs + searchMs, pauseMs: pauseMinMs };
  return { state: "searching", ...times, hasOusted: false, candidate };
}

/**
 * Gives the monitor that is upgraded, which keeps its pid and drops its connections, a whole search's time;
 * another is started only when it ends.
 */
export function upgrade(
  searching: Searching,
  nowMs: number,
  hasEnded: Candidate["hasEnded"],
): Searching {
  const candidate = { sinceMs: nowMs, hasEnded };
  return { ...searching, candidate, deadlineMs: nowMs + searchMs };
}

/** `none`: nobody took the connection, or it closed at once; `silent`: a monitor took it without greeting. */
export type Unanswered = "none" | "silent";
type Verdict =
  | { do: "fail" }
  /** oust: the monitors to kill first; `strangers` are those that this search has not started. */
  | { do: "retry"; next: Searching; oust?: "all" | "strangers" };

/** Judges an attempt that found no serving monitor; once a search, it has monitors killed that block another one. */
export function unanswered(searching: Searching, outcome: Unanswered, nowMs: number): Verdict {
  const isLate = outcome === "silent" || nowMs > searching.deadlineMs;
  if (!isLate) return { do: "retry", next: searching };
  if (searching.hasOusted) return { do: "fail" };
  const next = { ...searching, hasOusted: true, deadlineMs: nowMs + searchMs };
  return { do: "retry", next, oust: outcome === "silent" ? "all" : "strangers" };
}

/** Starts another monitor where the candidate has ended or is late; `start` returns its hasEnded. */
export function startIfDue(
  searching: Searching,
  nowMs: number,
  start: () => Candidate["hasEnded"],
): Searching {
  const { candidate, pauseMs } = searching;
  const hasEnded = candidate?.hasEnded() ?? false;
  const ageMs = nowMs - (candidate?.sinceMs ?? Number.NEGATIVE_INFINITY);
  if (ageMs < (hasEnded ? pauseMs : candidateMs)) return searching;
  return {
    ...searching,
    candidate: { sinceMs: nowMs, hasEnded: start() },
    pauseMs: hasEnded ? Math.min(pauseMs * 2, pauseMaxMs) : pauseMs,
  };
}

/** Ends a search that failed; a connection that is served or closed stays. */
export function searchFailed<Socket>(connection: Connection<Socket>): Connection<Socket> {
  return connection.state === "searching" ? { state: "disconnected" } : connection;
}

/** Returns the connection after a socket has closed; unchanged if the socket was not the serving monitor's. */
export function socketClosed<Socket>(
  connection: Connection<Socket>,
  socket: Socket,
): Connection<Socket> {
  const isServing = connection.state === "connected" && connection.socket === socket;
  return isServing ? { state: "disconnected" } : connection;
}
