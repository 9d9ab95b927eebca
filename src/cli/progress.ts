// Shows the progress of a Pull, Load or Save on standard error: on a terminal as lines that are redrawn in
// place and cleared at the end, elsewhere as a line for each layer that starts or finishes.
import { toBigInt } from "../base/int64.ts";
import { isulad } from "../proto/messages.js";
import type { ImageProgress, LayerProgress } from "../proto/types.ts";
import { beginning, cellsOf, ending } from "./cells.ts";
import { say } from "./output.ts";
import { size } from "./text.ts";

const { LayerState } = isulad.v1;

const drawMs = 100;
const barWidth = 25;
/** Window of the transfer rate. */
const rateMs = 5_000;
/** For terminals that do not report their size. */
const columnsDefault = 80;
const rowsDefault = 24;

/** Shows a stream of progress under a title ("Pulling busybox"); returns the images in its last message. */
export async function follow(
  steps: AsyncIterable<ImageProgress>,
  { title, quiet }: { title: string; quiet: boolean },
): Promise<string[]> {
  let images: string[] = [];
  using display = quiet ? undefined : process.stderr.isTTY ? new Screen(title) : new Lines(title);
  for await (const step of steps) {
    images = step.images ?? [];
    display?.show(step);
  }
  return images;
}

/** Prints a line for each change of a layer. */
class Lines implements Disposable {
  readonly #before = new Map<string, number>();

  constructor(title: string) {
    say(title);
  }

  show({ image, layers }: ImageProgress): void {
    for (const layer of layers ?? []) {
      const key = `${image} ${layer.digest}`;
      const state = layer.state ?? LayerState.LAYER_WAITING;
      if (this.#before.get(key) === state) continue;
      this.#before.set(key, state);
      if (state !== LayerState.LAYER_WAITING) say(plainLine(layer));
    }
  }

  [Symbol.dispose](): void {}
}

export function plainLine({ digest, state, total_bytes }: LayerProgress): string {
  const name = shortDigest(digest);
  if (state === LayerState.LAYER_PRESENT) return `${name}: already present`;
  const done = state === LayerState.LAYER_DONE ? ", done" : "";
  return `${name}: ${size(total_bytes)}${done}`;
}

/** Draws lines in place on a terminal. */
class Screen implements Disposable {
  readonly #title: string;
  readonly #rates = new Map<string, Rate>();
  #drawn = 0;
  #drawnMs = -Infinity;

  constructor(title: string) {
    this.#title = title;
    this.#draw([]);
  }

  show({ layers }: ImageProgress): void {
    const nowMs = performance.now();
    for (const layer of layers ?? []) this.#rateOf(layer).add(nowMs, bytesOf(layer).done);
    if (nowMs - this.#drawnMs < drawMs) return;
    this.#drawnMs = nowMs;
    const views = (layers ?? []).map((layer): LayerView => {
      return { ...layer, bytesPerSecond: this.#rateOf(layer).bytesPerSecond };
    });
    const { columns, rows } = process.stderr;
    const room = { columns: columns || columnsDefault, rows: (rows || rowsDefault) - 2 };
    this.#draw(layerLines(views, room), room.columns);
  }

  #rateOf({ digest }: LayerProgress): Rate {
    const rate = this.#rates.get(digest ?? "") ?? new Rate();
    this.#rates.set(digest ?? "", rate);
    return rate;
  }

  #draw(layers: string[], columns = process.stderr.columns || columnsDefault): void {
    const lines = [titleLine(this.#title, columns), ...layers];
    // One write, and nothing is cleared before it is replaced: no flicker.
    const text = lines.map((line) => `${line}\x1b[K\n`).join("");
    process.stderr.write(`${this.#home()}${text}\x1b[J`);
    this.#drawn = lines.length;
  }

  #home(): string {
    return `${this.#drawn > 0 ? `\x1b[${this.#drawn}A` : ""}\r`;
  }

  [Symbol.dispose](): void {
    process.stderr.write(`${this.#home()}\x1b[J`);
  }
}

/** Cuts the beginning of the image's name in "Pulling NAME": names differ at their ends. */
export function titleLine(title: string, columns: number): string {
  const room = columns - 1;
  const start = title.indexOf(" ") + 1;
  if (cellsOf(title) <= room) return title;
  const name = ending(title.slice(start), room - start - 1);
  return beginning(`${title.slice(0, start)}…${name}`, room);
}

/** Computes the transfer rate over the last rateMs. */
class Rate {
  readonly #samples: { ms: number; bytes: number }[] = [];

  add(ms: number, bytes: number): void {
    this.#samples.push({ ms, bytes });
    while (this.#samples.length > 2 && this.#samples[1]!.ms < ms - rateMs) this.#samples.shift();
  }

  get bytesPerSecond(): number {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    if (first === undefined || last === undefined || last.ms === first.ms) return 0;
    return ((last.bytes - first.bytes) * 1000) / (last.ms - first.ms);
  }
}

export type LayerView = LayerProgress & { bytesPerSecond: number };

/** Formats a line for each layer; if they exceed the terminal, for the moving layers, and counts the others. */
export function layerLines(
  layers: readonly LayerView[],
  { columns, rows }: { columns: number; rows: number },
): string[] {
  if (layers.length <= rows) return layers.map((layer) => layerLine(layer, columns));
  const moving = layers.filter(({ state }) => state === LayerState.LAYER_MOVING);
  const shown = moving.slice(0, Math.max(0, rows - 1));
  const count = (...wanted: isulad.v1.LayerState[]) =>
    layers.filter(({ state }) => wanted.includes(state ?? LayerState.LAYER_WAITING)).length;
  const done = count(LayerState.LAYER_DONE, LayerState.LAYER_PRESENT);
  const rest = `${done} of ${layers.length} layers done, ${count(LayerState.LAYER_WAITING)} waiting`;
  return [...shown.map((layer) => layerLine(layer, columns)), rest.slice(0, columns - 1)];
}

/** Formats a layer to fit into `columns`: drops the bar first, then the time, then all but the name. */
export function layerLine(layer: LayerView, columns: number): string {
  const name = shortDigest(layer.digest);
  const { done, total } = bytesOf(layer);
  const fit = (parts: string[]) =>
    parts.find((part) => part.length < columns) ?? name.slice(0, columns - 1);
  switch (layer.state) {
    case LayerState.LAYER_DONE:
      return fit([`${name} done ${size(total)}`]);
    case LayerState.LAYER_PRESENT:
      return fit([`${name} already present`]);
    case LayerState.LAYER_MOVING: {
      const filled = total > 0 ? Math.min(barWidth, Math.round((done / total) * barWidth)) : 0;
      const bar = `[${"=".repeat(filled)}${" ".repeat(barWidth - filled)}]`;
      const rate = Math.round(layer.bytesPerSecond);
      const [is, of, speed] = [size(done), size(total), `${size(rate)}/s`];
      const aligned = `${is.padStart(6)}/${of.padEnd(6)} ${speed.padStart(8)}`;
      const figures = `${is}/${of} ${speed}`;
      const left = rate > 0 ? ` ${duration((total - done) / rate)} left` : "";
      return fit([
        `${name} ${bar} ${aligned}${left}`,
        `${name} ${figures}${left}`,
        `${name} ${figures}`,
      ]);
    }
    default:
      return fit([`${name} waiting ${size(total)}`]);
  }
}

function bytesOf({ done_bytes, total_bytes }: LayerProgress): { done: number; total: number } {
  return { done: Number(toBigInt(done_bytes)), total: Number(toBigInt(total_bytes)) };
}

function shortDigest(digest: string | null | undefined): string {
  return (digest ?? "").replace(/^sha\d+:/, "").slice(0, 12);
}

/** Formats seconds as 5s, 2m5s or 1h2m. */
function duration(seconds: number): string {
  const whole = Math.ceil(seconds);
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${whole % 60}s`;
  return `${Math.floor(whole / 3600)}h${Math.floor((whole % 3600) / 60)}m`;
}
