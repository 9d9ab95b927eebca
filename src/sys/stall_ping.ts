// A peer that has gone while nothing is read from it, and whose end therefore waits behind what it sent.
// What is sent to such a one is answered by a reset, which epoll tells of.

const stalledMs = 2_000;

/** Until its disposal, pings now and then; only one that is taken is followed by another. */
export function pingWhileStalled(ping: () => Promise<void>): Disposable {
  let waiting = false;
  const timer = setInterval(() => {
    if (waiting) return;
    waiting = true;
    ping().then(
      () => (waiting = false),
      () => {}, // it has gone: whoever reads learns of it
    );
  }, stalledMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
