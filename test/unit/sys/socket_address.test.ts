// Tests the encoding of addresses for the kernel.
import { expect, test } from "bun:test";
import { hostPort, socketAddress } from "../../../src/sys/socket_address.ts";

const inet6 = (...groups: number[]) => [10, 0, 0x1f, 0x90, 0, 0, 0, 0, ...groups, 0, 0, 0, 0];
const zeros = (count: number) => Array<number>(count).fill(0);

test.each<[string, number[]]>([
  ["10.1.2.255", [2, 0, 0x1f, 0x90, 10, 1, 2, 255, ...zeros(8)]],
  ["::1", inet6(...zeros(15), 1)],
  ["::", inet6(...zeros(16))],
  ["fd00:12::abcd", inet6(0xfd, 0, 0, 0x12, ...zeros(10), 0xab, 0xcd)],
  ["fd00::", inet6(0xfd, 0, ...zeros(14))],
  ["1:2:3:4:5:6:7:8", inet6(0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8)],
  ["::ffff:10.0.0.1", inet6(...zeros(10), 255, 255, 10, 0, 0, 1)],
])("%s is encoded for the kernel", (address, bytes) => {
  expect([...socketAddress(address, 8080)]).toEqual(bytes);
});

test("a text that is no address is refused", () => {
  expect(() => socketAddress("pod", 80)).toThrow(TypeError);
});

test("an address is shown with its port as in a URL", () => {
  expect([hostPort("10.0.0.1", 80), hostPort("fd00::1", 80)]).toEqual([
    "10.0.0.1:80",
    "[fd00::1]:80",
  ]);
});
