// Tests the inputs of a log thread: an input that has ended never touches the one that has its number now.
import { expect, test } from "bun:test";
import { fstatSync } from "node:fs";
import { Inputs, type Input } from "../../../src/monitor_log/inputs.ts";
import { eventfd, pipe, readNow, signalEventfd } from "../../../src/sys/descriptor.ts";

const buffer = Buffer.alloc(64);

function reader() {
  const ends = pipe();
  let text = "";
  const input: Input = {
    descriptor: ends.reader,
    turn: () => {
      const count = readNow(ends.reader, buffer);
      text += buffer.toString("utf8", 0, Math.max(0, count));
      return count < 0 ? "empty" : count === 0 ? "end" : "more";
    },
  };
  const { writer } = ends;
  const write = (bytes: string) => Bun.write(`/proc/self/fd/${writer.fd}`, bytes);
  return { input, writer, write, text: () => text };
}

test("an input that ended is not closed again under the same number", () => {
  using wake = eventfd();
  using inputs = new Inputs(wake);
  const first = reader();
  inputs.add(first.input);
  const { fd } = first.input.descriptor;
  first.writer.close();
  inputs.wait(0);
  expect(inputs.turns()).toEqual(["end"]);
  const second = reader();
  expect([second.input.descriptor.fd, second.writer.fd]).toContain(fd);
  inputs.add(second.input);
  inputs.close(first.input);
  expect(inputs.drain(first.input)).toBe(true);
  expect(inputs.isOpen(second.input)).toBe(true);
  expect(() => fstatSync(second.input.descriptor.fd)).not.toThrow();
  second.writer.close();
});

test("the wake-up is told apart from inputs", () => {
  using wake = eventfd();
  using inputs = new Inputs(wake);
  expect(inputs.wait(0)).toEqual({ wakened: false, any: false });
  signalEventfd(wake);
  expect(inputs.wait(0)).toEqual({ wakened: true, any: true });
  expect(inputs.anyReady).toBe(false);
});
