// Detects a peer that has disconnected while nothing is read from it: its end is queued behind its data, but
// a ping provokes a reset, which epoll reports.

const stalledMs = 2_000;

/** Pings at intervals until its disposal, one ping at a time. */
export function pingWhileStalled(ping: () => Promise<void>): Disposable {
  let isPinging = false;
  const timer = setInterval(() => {
    if (isPinging) return;
    isPinging = true;
    ping().then(
      () => (isPinging = false),
      () => {}, // the reader gets the error
    );
  }, stalledMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
