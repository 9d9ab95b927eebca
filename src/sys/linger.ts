// Ends a connection so that its peer gets all that was sent to it.
import type { ByteStream } from "./byte_stream.ts";
import { unsentBytes } from "./descriptor.ts";

/** Time, in ms, in which a peer must take more of what is left for it, or close its side. */
const stuckMsDefault = 10_000;

/** Calls `giveUp` at the end of each period of stuckMs in which the bytes left did not become fewer. */
export function whenStuck(
  left: () => number,
  giveUp: () => void,
  stuckMs = stuckMsDefault,
): Disposable {
  let before = Infinity;
  const timer = setInterval(() => {
    const now = left();
    if (now >= before) giveUp();
    before = now;
  }, stuckMs);
  return { [Symbol.dispose]: () => clearInterval(timer) };
}

/**
 * Half-closes a socket and discards what its peer still sends, until the peer has closed, too: the kernel answers
 * a close with unread input, and input after a close, with a reset, which discards what the peer has not got yet.
 * Returns earlier, and closes the socket, if the peer takes nothing for stuckMs.
 */
export async function linger(stream: ByteStream, stuckMs?: number): Promise<void> {
  await stream.endWrite();
  const buffer = new Uint8Array(16 << 10);
  const left = () => (stream.closed ? 0 : unsentBytes(stream.descriptor));
  using _ = whenStuck(left, () => stream.close(), stuckMs);
  while ((await stream.read(buffer)) > 0);
}
