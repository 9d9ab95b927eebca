// Tests network settings: the addresses of CNI results by family, and the one that becomes the pod's ip.
import { expect, test } from "bun:test";
import { attachedSettings, preferred } from "../../../src/node/network_settings.ts";
import type { CniAttachments } from "../../../src/node/cni.ts";
import { noNetworkYet } from "../../../src/state/sandbox.ts";

const ips = ["10.0.0.2", "fd00::2", "10.0.0.3"];

test.each([
  ["cni", ips],
  ["ipv4", ips],
  ["ipv6", ["fd00::2", "10.0.0.2", "10.0.0.3"]],
] as const)("preference %s orders the addresses %j", (preference, expected) => {
  expect(preferred([...ips], preference)).toEqual([...expected]);
});

test("a preferred family without an address changes nothing", () => {
  expect(preferred(["10.0.0.2"], "ipv6")).toEqual(["10.0.0.2"]);
  expect(preferred([], "ipv4")).toEqual([]);
});

test("the pod's own settings are the first network's; each network is listed by name", () => {
  const interfaces = [{ name: "eth0", mac: "aa:bb", sandbox: "/ns" }];
  const address = (ip: string) => ({ address: `${ip}/24`, gateway: "10.0.0.1", interface: 0 });
  const result = { cniVersion: "1.0.0", interfaces, ips: [address("10.0.0.2")] };
  const attachments = [
    {
      confList: { name: "default", plugins: [{ type: "bridge", bridge: "br1" }] },
      result,
      ifName: "eth0",
      ips: ["10.0.0.2"],
    },
    {
      confList: { name: "storage", plugins: [{ type: "macvlan" }] },
      result: undefined,
      ifName: "net1",
      ips: [],
    },
  ] as unknown as CniAttachments;
  const portMappings = [
    { hostPort: 80, containerPort: 8080, protocol: "tcp" as const, hostIP: "" },
  ];
  const settings = attachedSettings(noNetworkYet("p", "/ns"), attachments, {
    portMappings,
    preference: "cni",
  });
  expect(settings).toMatchObject({
    SandboxKey: "/ns",
    Activation: true,
    IPAddress: "10.0.0.2",
    IPPrefixLen: 24,
    MacAddress: "aa:bb",
    IPs: ["10.0.0.2"],
    CNIPorts: portMappings,
    Ports: { "8080/tcp": [{ HostIp: "", HostPort: "80" }] },
    Bridge: "br1",
    EndpointID: "default-p-eth0",
  });
  expect(settings.Networks["default"]).toMatchObject({
    InterfaceName: "eth0",
    IPAddress: "10.0.0.2",
  });
  expect(settings.Networks["storage"]).toMatchObject({
    InterfaceName: "net1",
    IPAddress: "",
    Bridge: "",
    EndpointID: "storage-p-net1",
    MacAddress: "",
  });
  expect("InterfaceName" in settings).toBe(false);
});

test("a link-local address is not the global one; the bridge plugin's default name is cni0", () => {
  const ips = ["fe80::5/64", "fd00::2/48", "febf::1/10"].map((address) => ({ address }));
  const plugins = [{ type: "tuning" }, { type: "bridge" }];
  const result = { cniVersion: "1.0.0", ips };
  const attachments = [
    { confList: { name: "n", plugins }, result, ifName: "eth0", ips: [] },
  ] as unknown as CniAttachments;
  const options = { portMappings: [], preference: "cni" as const };
  expect(attachedSettings(noNetworkYet("p", "/ns"), attachments, options)).toMatchObject({
    GlobalIPv6Address: "fd00::2",
    GlobalIPv6PrefixLen: 48,
    LinkLocalIPv6Address: "fe80::5",
    LinkLocalIPv6PrefixLen: 64,
    Bridge: "cni0",
    Ports: {},
  });
});

test("several host ports of one port of the pod are one entry", () => {
  const mapping = (hostPort: number, hostIP: string, protocol: "tcp" | "udp") => {
    return { hostPort, containerPort: 53, protocol, hostIP };
  };
  const portMappings = [
    mapping(53, "", "udp"),
    mapping(5353, "10.0.0.1", "udp"),
    mapping(53, "", "tcp"),
  ];
  const attachments = [
    { confList: { name: "n", plugins: [] }, ifName: "eth0", ips: [] },
  ] as unknown as CniAttachments;
  const settings = attachedSettings(noNetworkYet("p", "/ns"), attachments, {
    portMappings,
    preference: "cni",
  });
  expect(settings.Ports).toEqual({
    "53/udp": [
      { HostIp: "", HostPort: "53" },
      { HostIp: "10.0.0.1", HostPort: "5353" },
    ],
    "53/tcp": [{ HostIp: "", HostPort: "53" }],
  });
});
