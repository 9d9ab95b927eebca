// Tests the results of CNI ADD in containerd's form.
import { expect, test } from "bun:test";
import type { CniAttachment } from "../../../src/node/cni.ts";
import { containerdResult } from "../../../src/node/containerd_result.ts";

function attachment(ifName: string, result: object | undefined): CniAttachment {
  return { ifName, result } as unknown as CniAttachment;
}

test("interfaces are listed by name, of all networks, each with its addresses", () => {
  const bridge = {
    cniVersion: "1.0.0",
    interfaces: [
      { name: "veth1", mac: "aa:01" },
      { name: "eth0", mac: "aa:02", sandbox: "/run/netns/x" },
    ],
    ips: [
      { address: "10.0.0.2/24", gateway: "10.0.0.1", interface: 1 },
      { address: "fd00::2/64", interface: 1 },
    ],
    routes: [{ dst: "0.0.0.0/0" }],
    dns: { nameservers: ["10.0.0.10"] },
  };
  // Calico lists no interfaces.
  const bare = { cniVersion: "0.3.1", ips: [{ version: "4", address: "10.1.0.2/32" }] };
  expect(containerdResult([attachment("eth0", bridge), attachment("net1", bare)])).toEqual({
    Interfaces: {
      veth1: { IPConfigs: [], Mac: "aa:01", Sandbox: "" },
      eth0: {
        IPConfigs: [
          { IP: "10.0.0.2", Gateway: "10.0.0.1" },
          { IP: "fd00::2", Gateway: "" },
        ],
        Mac: "aa:02",
        Sandbox: "/run/netns/x",
      },
      net1: { IPConfigs: [{ IP: "10.1.0.2", Gateway: "" }], Mac: "", Sandbox: "" },
    },
    DNS: [{ nameservers: ["10.0.0.10"] }, {}],
    Routes: [{ dst: "0.0.0.0/0" }],
  });
});

test("a result of CNI 0.2.0 has its addresses at the requested interface", () => {
  const old = { cniVersion: "0.2.0", ip4: { ip: "10.0.0.2/24", gateway: "10.0.0.1", routes: [] } };
  expect(containerdResult([attachment("eth0", old)])?.Interfaces).toEqual({
    eth0: { IPConfigs: [{ IP: "10.0.0.2", Gateway: "10.0.0.1" }], Mac: "", Sandbox: "" },
  });
});

test("without a result it is null", () => {
  expect(containerdResult([])).toBeNull();
  expect(containerdResult([attachment("eth0", undefined)])).toBeNull();
});
