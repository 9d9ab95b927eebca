// Whether the monitor still answers. One that is stopped or stuck keeps its socket open, and would let
// everybody's calls wait for ever.

const beatMs = 5_000;
/** Beats are counted and not their time: while the whole node slept, none was missed. */
const missedMax = 3;

/** Asks at each beat, once at a time; `onSilence`, at most once, when several beats had no answer. */
export function heartbeat(ask: () => Promise<unknown>, onSilence: () => void): Disposable {
  let asked = false;
  let missed = 0;
  const answered = () => {
    asked = false;
    missed = 0;
  };
  const timer = setInterval(() => {
    if (asked && ++missed < missedMax) return;
    if (asked) {
      clearInterval(timer);
      onSilence();
      return;
    }
    asked = true;
    ask().then(answered, answered); // a refusal, as of an older monitor, is an answer
  }, beatMs);
  timer.unref();
  return { [Symbol.dispose]: () => clearInterval(timer) };
}
