// Tests a CNI plugin's input: the pod's names, port mappings, bandwidth, DNS and the previous result.
import { describe, expect, test } from "bun:test";
import type { PortMapping } from "../../../src/proto/types.ts";
import {
  cniPodOf,
  extensionArgs,
  pluginInput,
  runtimeConfOf,
  unservedRequests,
} from "../../../src/node/cni_args.ts";

const own = { id: "abc123", netnsPath: "/var/run/netns/abc123", cgroupPath: "/kubepods/podx" };
const config = {
  metadata: { name: "web", namespace: "shop", uid: "u-1", attempt: 2 },
  port_mappings: [
    { protocol: 0, container_port: 80, host_port: 8080, host_ip: "" },
    { protocol: 1, container_port: 53, host_port: 5353, host_ip: "127.0.0.1" },
    { protocol: 0, container_port: 9000, host_port: 0 },
  ],
  annotations: { "kubernetes.io/ingress-bandwidth": "10M", note: "kept" },
  dns_config: { servers: ["10.0.0.10"], searches: ["shop.svc"], options: ["ndots:5"] },
};

describe("runtimeConfOf", () => {
  test("carries the pod's names, host ports, bandwidth, DNS and cgroup", () => {
    expect(runtimeConfOf(cniPodOf(config, own))).toEqual({
      args: [
        ["IgnoreUnknown", "1"],
        ["K8S_POD_NAMESPACE", "shop"],
        ["K8S_POD_NAME", "web"],
        ["K8S_POD_INFRA_CONTAINER_ID", "abc123"],
        ["K8S_POD_UID", "u-1"],
      ],
      capabilityArgs: {
        "io.kubernetes.cri.pod-annotations": config.annotations,
        portMappings: [
          { hostPort: 8080, containerPort: 80, protocol: "tcp", hostIP: "" },
          { hostPort: 5353, containerPort: 53, protocol: "udp", hostIP: "127.0.0.1" },
        ],
        bandwidth: { ingressRate: 10_000_000, ingressBurst: 2147483647 },
        dns: { servers: ["10.0.0.10"], searches: ["shop.svc"], options: ["ndots:5"] },
        cgroupPath: "/kubepods/podx",
      },
    });
  });

  const extension = "extension.network.kubernetes.io";
  const arg = (name: string) => `${extension}/cniargs/${name}`;
  test.each<[string, Record<string, string>, [string, string][], number]>([
    ["a list of networks", { [`${extension}/cni`]: "a,b" }, [["CNI_MUTLINET_EXTENSION", "a,b"]], 0],
    ["one argument", { [arg("ip")]: "IP=10.0.0.9" }, [["IP", "10.0.0.9"]], 0],
    ["an empty value", { [arg("x")]: "X=" }, [["X", ""]], 0],
    [
      "several",
      { [arg("a")]: "A=1", [arg("b")]: "B=2" },
      [
        ["A", "1"],
        ["B", "2"],
      ],
      0,
    ],
    ["no further arguments", { [arg("x")]: "X=1;K8S_POD_NAME=other" }, [], 1],
    ["no semicolon in a list", { [`${extension}/cni`]: "a;IP=1" }, [], 1],
    ["none that name a pod", { [arg("x")]: "K8S_POD_NAME=other" }, [], 1],
    ["none that name a pod, in other letters", { [arg("x")]: "k8s_pod_uid=1" }, [], 1],
    ["no change of IgnoreUnknown", { [arg("x")]: "IgnoreUnknown=0" }, [], 1],
    [
      "none without a key or with two values",
      { [arg("x")]: "=1", [arg("y")]: "A=1=2", [arg("z")]: "A" },
      [],
      3,
    ],
    ["no second one of a name", { [arg("a")]: "A=1", [arg("b")]: "A=2" }, [["A", "1"]], 1],
    ["no line break", { [arg("a")]: "A=1\nB" }, [], 1],
    ["no others", { [`${extension}/other`]: "A=1", [`${extension}/cniargs`]: "A=1" }, [], 0],
  ])("takes from iSulad's annotations: %s", (_, annotations, expected, problems) => {
    const { args } = runtimeConfOf(cniPodOf({ ...config, annotations }, own));
    expect(args.slice(5)).toEqual(expected);
    expect(extensionArgs(annotations).problems).toHaveLength(problems);
  });

  test("refuses a name that would inject arguments", () => {
    const pod = cniPodOf({ metadata: { name: "a;K8S_POD_NAME=b" } }, own);
    expect(() => runtimeConfOf(pod)).toThrow("K8S_POD_NAME");
  });

  test.each([
    ["1k", 1000],
    ["1.5M", 1_500_000],
    ["1Mi", 1_048_576],
    ["1Ki", 1024],
    ["2e6", 2_000_000],
    ["1P", 1e15],
  ])("reads the bandwidth %s", (text, rate) => {
    const pod = cniPodOf({ annotations: { "kubernetes.io/egress-bandwidth": text } }, own);
    expect(runtimeConfOf(pod).capabilityArgs["bandwidth"]).toEqual({
      egressRate: rate,
      egressBurst: 2147483647,
    });
  });

  test.each(["", "10", "fast", "-1M", "2P", "1Mb", "1e"])("refuses the bandwidth %p", (text) => {
    const pod = cniPodOf({ annotations: { "kubernetes.io/egress-bandwidth": text } }, own);
    expect(() => runtimeConfOf(pod)).toThrow("kubernetes.io/egress-bandwidth");
  });

  test.each<PortMapping>([
    JSON.parse('{"protocol":9,"host_port":1,"container_port":1}') as PortMapping,
    { host_port: 65536, container_port: 1 },
    { host_port: 80, container_port: 0 },
  ])("refuses the port mapping %p", (mapping) => {
    expect(() => cniPodOf({ port_mappings: [mapping] }, own)).toThrow("port_mappings");
  });
});

describe("pluginInput", () => {
  const list = { name: "pods", cniVersion: "0.4.0", plugins: [] };
  const capabilityArgs = { portMappings: [1], dns: { servers: [] } };

  test("passes the capabilities that a plugin declares, with the list's name and version", () => {
    const plugin = {
      type: "portmap",
      name: "other",
      snat: true,
      capabilities: { portMappings: true, dns: false, bandwidth: true },
    };
    expect(pluginInput(list, plugin, { capabilityArgs })).toEqual({
      type: "portmap",
      name: "pods",
      cniVersion: "0.4.0",
      snat: true,
      runtimeConfig: { portMappings: [1] },
    });
  });

  test("passes the previous result in the list's version", () => {
    const prevResult = { cniVersion: "1.0.0", ips: [{ address: "10.0.0.2/8" }] };
    expect(pluginInput(list, { type: "x" }, { capabilityArgs: {}, prevResult })).toEqual({
      type: "x",
      name: "pods",
      cniVersion: "0.4.0",
      prevResult: { cniVersion: "0.4.0", ips: [{ version: "4", address: "10.0.0.2/8" }] },
    });
  });
});

describe("unservedRequests", () => {
  const network = (name: string, has: string[], asked: string[]) => {
    const capabilities = Object.fromEntries(has.map((one) => [one, true]));
    const plugins = [{ type: "bridge" }, { type: "x", capabilities }];
    const capabilityArgs = Object.fromEntries(asked.map((one) => [one, {}]));
    return { confList: { name, cniVersion: "1.0.0", plugins }, capabilityArgs };
  };
  const lacks = (what: string, names: string, capability: string) =>
    `${what} may have no effect: no plugin of ${names} has the capability "${capability}"`;

  test("names host ports and bandwidth that no plugin handles", () => {
    expect(unservedRequests([network("n", ["dns"], ["portMappings", "bandwidth", "dns"])])).toEqual(
      [lacks("its host ports", "n", "portMappings"), lacks("its bandwidth", "n", "bandwidth")],
    );
    expect(
      unservedRequests([network("n", ["portMappings"], ["portMappings", "bandwidth"])]),
    ).toEqual([lacks("its bandwidth", "n", "bandwidth")]);
  });

  test("is content with a pod that requests nothing, or with one network that handles it", () => {
    expect(unservedRequests([network("n", [], ["dns"])])).toEqual([]);
    const both = [network("a", [], ["bandwidth"]), network("b", ["bandwidth"], ["bandwidth"])];
    expect(unservedRequests(both)).toEqual([]);
    expect(unservedRequests([both[0]!, network("b", [], ["bandwidth"])])).toEqual([
      lacks("its bandwidth", "a, b", "bandwidth"),
    ]);
  });

  test("a capability that is declared false is none", () => {
    const one = network("n", [], ["bandwidth"]);
    const plugins = [{ type: "x", capabilities: { bandwidth: false } }];
    expect(unservedRequests([{ ...one, confList: { ...one.confList, plugins } }])).toHaveLength(1);
  });
});
