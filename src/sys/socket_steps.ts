// Takes a socket's chunks step by step, and gives way to other calls between the steps: a chunk may have 30,000 messages.
import type { Duplex } from "node:stream";
import { PeerTurn } from "../base/time_slices.ts";

/**
 * Runs the steps of each chunk, one chunk after another; the socket is paused while they wait for their turn. Calls onEnd
 * with what a step threw, and, when all that the peer sent is taken, after the peer has closed the socket.
 */
export function takeInSteps(
  socket: Duplex,
  steps: (chunk: Buffer) => Iterable<unknown>,
  onEnd: (error?: unknown) => void,
): void {
  const turn = new PeerTurn();
  const chunks: Buffer[] = [];
  let isRunning = false;
  let hasEnded = false;
  const takeAll = async () => {
    for (let chunk = chunks.shift(); chunk !== undefined; chunk = chunks.shift()) {
      for (const _ of steps(chunk)) {
        if (!turn.isOver) continue;
        socket.pause();
        await turn.next();
      }
    }
  };
  const run = async () => {
    isRunning = true;
    try {
      await takeAll();
    } catch (error) {
      onEnd(error);
    }
    isRunning = false;
    if (chunks.length > 0) return await run();
    if (hasEnded) onEnd();
    else if (socket.isPaused()) socket.resume();
  };
  socket.on("data", (chunk: Buffer) => {
    chunks.push(chunk);
    if (!isRunning) run().catch(onEnd);
  });
  for (const event of ["end", "close"]) {
    socket.on(event, () => {
      hasEnded = true;
      if (!isRunning) onEnd();
    });
  }
}
