// Ends a connection so that its peer gets all that was sent to it.
import { setImmediate as nextTurn } from "node:timers/promises";
import type { ByteStream } from "./byte_stream.ts";
import { unsentBytes } from "./descriptor.ts";

/**
 * Half-closes a socket and discards what its peer still sends, until the peer has closed, too: the kernel answers
 * a close with unread input, and input after a close, with a reset, which discards what the peer has not got yet.
 * Returns earlier, and closes the socket, if the peer takes nothing for stuckMs.
 */
export async function linger(stream: ByteStream, stuckMs: number): Promise<void> {
  await stream.endWrite();
  const buffer = new Uint8Array(16 << 10);
  let unsent = Infinity;
  const timer = setInterval(() => {
    if (stream.closed) return;
    const left = unsentBytes(stream.descriptor);
    if (left >= unsent) stream.close();
    unsent = left;
  }, stuckMs);
  try {
    while ((await stream.read(buffer)) > 0) await nextTurn(); // a flood must not hold up other calls
  } finally {
    clearInterval(timer);
  }
}
