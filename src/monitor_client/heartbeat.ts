// Pings the monitor: one that is stopped or stuck keeps its socket open, and calls would wait for ever.

const beatMs = 5_000;
/** Counts beats instead of time, so that a node in standby misses none. */
const missedMax = 3;

/** Pings at each beat, one ping at a time; calls onSilence once when several beats had no answer. */
export function heartbeat(ping: () => Promise<unknown>, onSilence: () => void): Disposable {
  let isWaiting = false;
  let missed = 0;
  const answered = () => {
    isWaiting = false;
    missed = 0;
  };
  const timer = setInterval(() => {
    if (!isWaiting) {
      isWaiting = true;
      ping().then(answered, answered); // an error is an answer: older monitors have no ping
    } else if (++missed >= missedMax) {
      clearInterval(timer);
      onSilence();
    }
  }, beatMs);
  timer.unref();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
