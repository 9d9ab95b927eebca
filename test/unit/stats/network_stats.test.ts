// Tests the parsing of /proc/net/dev.
import { expect, test } from "bun:test";
import { parseNetDev } from "../../../src/stats/network_stats.ts";

test("parseNetDev() reads every interface but lo", () => {
  const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    1000       10    0    0    0     0          0         0     1000       10    0    0    0     0       0          0
  eth0: 18446744073709551615       9    3    1    0     0          0         0     4126       42    2    4    0     0       0          0
eth0.5:12       1    0    0    0     0          0         0     13       2    0    0    0     0       0          0
`;
  expect(parseNetDev(text)).toMatchObject([
    {
      name: "eth0",
      rxBytes: 18_446_744_073_709_551_615n,
      rxPackets: 9n,
      rxErrors: 3n,
      rxDropped: 1n,
      txBytes: 4126n,
      txPackets: 42n,
      txErrors: 2n,
      txDropped: 4n,
    },
    { name: "eth0.5", rxBytes: 12n, txBytes: 13n },
  ]);
  expect(parseNetDev("")).toEqual([]);
});
