// Tests the check of the addresses on which the daemon serves.
import { expect, test } from "bun:test";
import type { Config } from "../../../src/base/config.ts";
import type { Node } from "../../../src/doctor/node.ts";
import { checkAddresses } from "../../../src/doctor/pods.ts";

const unset = { metricsPort: 0, metricsAddress: "", serveBlobs: "", streamServerAddress: "" };

function check(config: Partial<Config>) {
  const node = { addresses: () => ["127.0.0.1", "192.0.2.5"] } as unknown as Node;
  return checkAddresses(node, { ...unset, ...config } as Config);
}

test("addresses of the node, of all its networks and of loopback are no finding", () => {
  expect(check({ metricsPort: 9100, metricsAddress: "192.0.2.5" })).toEqual([]);
  expect(check({ serveBlobs: "[::]:5010", streamServerAddress: "127.0.0.2" })).toEqual([]);
  expect(check({ metricsPort: 0, metricsAddress: "192.0.2.6" })).toEqual([]);
});

test("addresses that the node does not have are a warning, each with its key", () => {
  const found = check({
    metricsPort: 9100,
    metricsAddress: "192.0.2.6",
    serveBlobs: "[2001:db8::6]:5010",
  });
  expect(found).toMatchObject([{ state: "warn" }, { state: "warn" }]);
  expect(found.map(({ detail }) => detail.split(" now;")[0])).toEqual([
    "metrics-address: this node does not have 192.0.2.6",
    "serve-blobs: this node does not have 2001:db8::6",
  ]);
});

test("an address for plain streams that the node does not have stops the daemon's start", () => {
  const streamServerAddress = "192.0.2.6";
  expect(check({ streamServerAddress, streamTlsCert: "" })).toMatchObject([{ state: "fail" }]);
  expect(check({ streamServerAddress, streamTlsCert: "/c" })).toMatchObject([{ state: "warn" }]);
});
