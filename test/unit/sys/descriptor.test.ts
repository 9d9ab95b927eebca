// Tests a descriptor's owner: it closes once, and nothing is reached through it afterwards.
import { expect, test } from "bun:test";
import { constants, fstatSync } from "node:fs";
import { Descriptor, pipe, readNow } from "../../../src/sys/descriptor.ts";
import { Epoll, Tags, wakeTag } from "../../../src/sys/epoll.ts";

const open = () => Descriptor.open("/dev/null", constants.O_RDWR);

test("a second close leaves alone who has the number now", () => {
  const first = open();
  const { fd } = first;
  first.close();
  using next = open();
  expect(next.fd).toBe(fd);
  first.close();
  expect(() => fstatSync(next.fd)).not.toThrow();
});

test("a descriptor that was closed, or released, cannot be used", () => {
  const [closed, released] = [open(), open()];
  closed.close();
  const number = released.release();
  expect(() => readNow(closed, Buffer.alloc(1))).toThrow("after it was closed");
  expect(() => released.fd).toThrow("after it was closed");
  released.close();
  using adopted = Descriptor.adopt(number);
  expect(() => fstatSync(adopted.fd)).not.toThrow();
});

test("epoll tells of a watch by its tag, not by a number that has another owner now", () => {
  using epoll = new Epoll();
  const tags = new Tags<string>();
  const first = pipe();
  using other = first.reader.duplicate(); // keeps the pipe in epoll when its watch is forgotten
  epoll.add(first.reader, tags.add("first"));
  first.writer.close();
  const { fd } = first.reader;
  first.reader.close();
  tags.delete(wakeTag + 1);
  using second = pipe();
  expect([second.reader.fd, second.writer.fd, other.fd]).toContain(fd);
  expect(epoll.wait(0).map(({ tag }) => tags.get(tag))).toEqual([undefined]);
});

test("tags skip the wake-up and those in use when they start again", () => {
  const tags = new Tags<number>();
  const given = Array.from({ length: 3 }, (_, index) => tags.add(index));
  expect(given).not.toContain(wakeTag);
  expect(new Set(given).size).toBe(3);
  tags.delete(given[1]!);
  expect([tags.get(given[0]!), tags.get(given[1]!)]).toEqual([0, undefined]);
});
