// Progress of a pull on a terminal: one line, redrawn.
import { toBigInt } from "../base/int64.ts";
import type { Client } from "./client.ts";
import { say } from "./output.ts";
import { size } from "./text.ts";

const drawMs = 100;
const barWidth = 30;

/** Pulls by way of our own service, draws on standard error if that is a terminal; the image's id. */
export async function pullWithProgress(
  client: Client,
  image: string,
  signal?: AbortSignal,
): Promise<string> {
  const terminal = process.stderr.isTTY;
  const startMs = Date.now();
  let drawnMs = 0;
  let imageRef = "";
  if (!terminal) say(`Pulling ${image}`);
  try {
    for await (const step of client.Pull({ image }, { signal })) {
      if (step.image_ref) imageRef = step.image_ref;
      if (!terminal || (Date.now() - drawnMs < drawMs && !imageRef)) continue;
      drawnMs = Date.now();
      const progress = {
        doneBytes: Number(toBigInt(step.done_bytes)),
        totalBytes: Number(toBigInt(step.total_bytes)),
        elapsedMs: drawnMs - startMs,
      };
      const columns = process.stderr.columns || undefined; // 0 where nobody set the terminal's size.
      process.stderr.write(`\r\x1b[K${progressLine(image, progress, columns)}`);
    }
  } finally {
    if (terminal) process.stderr.write("\r\x1b[K");
  }
  return imageRef;
}

export type Progress = { doneBytes: number; totalBytes: number; elapsedMs: number };

/** Fits into `columns`: the name gives way first, then the bar. */
export function progressLine(image: string, progress: Progress, columns = 80): string {
  const { doneBytes, totalBytes, elapsedMs } = progress;
  const share = totalBytes > 0 ? Math.min(1, doneBytes / totalBytes) : 0;
  const filled = Math.round(share * barWidth);
  const bar = `[${"=".repeat(filled)}${" ".repeat(barWidth - filled)}]`;
  const bytesPerSecond = elapsedMs > 0 ? (doneBytes * 1000) / elapsedMs : 0;
  const total = totalBytes > 0 ? size(BigInt(totalBytes)) : "?";
  const figures = `${size(BigInt(doneBytes))}/${total} ${size(BigInt(Math.round(bytesPerSecond)))}/s`;
  const rest = columns - 1 - figures.length;
  if (rest < bar.length + 4) return figures;
  return `${image.slice(-(rest - bar.length - 2))} ${bar} ${figures}`;
}
