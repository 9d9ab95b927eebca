// Tests CNI results: parsing, conversion between versions, and the addresses of a pod.
import { describe, expect, test } from "bun:test";
import { convertResult, parseResult, podIps } from "../../../src/node/cni_result.ts";

const modern = {
  cniVersion: "1.0.0",
  interfaces: [
    { name: "cni0", mac: "aa:aa:aa:aa:aa:aa" },
    { name: "eth0", mac: "bb:bb:bb:bb:bb:bb", sandbox: "/var/run/netns/x" },
  ],
  ips: [
    { address: "10.1.0.5/16", gateway: "10.1.0.1", interface: 1 },
    { address: "fd00::5/64", interface: 1 },
  ],
  routes: [{ dst: "0.0.0.0/0" }],
  dns: { nameservers: ["10.1.0.1"] },
};
const parse = (value: unknown, version = "1.0.0") =>
  parseResult(JSON.stringify(value), "bridge", version);

describe("parseResult", () => {
  test("keeps unknown keys", () => {
    const value = { ...modern, "x-more": { a: [1] } };
    expect(parse(value)).toEqual(value);
  });

  test("gives a result without a version that of the list", () => {
    expect(parse({ ips: [] }, "0.4.0").cniVersion).toBe("0.4.0");
  });

  test("takes null as absent, as Go programs do", () => {
    expect(podIps(parse({ cniVersion: "0.3.1", interfaces: null, ips: null }), "eth0")).toEqual([]);
    const nulls = {
      cniVersion: null,
      interfaces: [{ name: "eth0", mac: null, sandbox: null }],
      ips: [{ address: "10.1.0.5/16", gateway: null, interface: null }],
      routes: [{ dst: null }],
    };
    expect(parse(nulls)).toEqual({
      cniVersion: "1.0.0",
      interfaces: [{ name: "eth0" }],
      ips: [{ address: "10.1.0.5/16" }],
      routes: [{ dst: "" }],
    });
  });

  test.each([
    ["nothing", "", "printed no result"],
    ["text", "hello", "printed a result that is not JSON"],
    ["a list", "[]", "printed an invalid result"],
    ["a bad address", '{"ips":[{"address":"10.0.0/8"}]}', "ips.0.address: is not an IP address"],
    ["a missing address", '{"ips":[{}]}', "ips.0.address"],
    ["a bad index", '{"ips":[{"address":"10.0.0.1/8","interface":"x"}]}', "ips.0.interface"],
  ])("refuses %s and names the plugin", (_, text, message) => {
    expect(() => parseResult(text, "bridge", "1.0.0")).toThrow(
      expect.objectContaining({ message: expect.stringContaining(message), code: "INTERNAL" }),
    );
    expect(() => parseResult(text, "bridge", "1.0.0")).toThrow("CNI plugin bridge");
  });

  test("fails only with a CriError, whatever bytes a plugin prints", () => {
    const text = JSON.stringify(modern);
    let seed = 20261121;
    const next = (below: number) => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return seed % below;
    };
    for (let round = 0; round < 3000; round++) {
      const at = next(text.length);
      const noise = ["", "null", "-1", '"', "[]", "{}", "1e99", "\0"][next(8)]!;
      const mutant = text.slice(0, at) + noise + text.slice(at + next(6));
      try {
        const result = parseResult(mutant, "p", "1.0.0");
        for (const version of ["0.2.0", "0.4.0", "1.1.0"]) convertResult(result, version);
        podIps(result, "eth0");
      } catch (error) {
        expect({ mutant, error }).toMatchObject({ error: { name: "CriError" } });
      }
    }
  });
});

describe("convertResult", () => {
  test("converts 1.0.0 to 0.4.0 with the family of each address", () => {
    const old = convertResult(parse(modern), "0.4.0");
    expect(old.cniVersion).toBe("0.4.0");
    expect(old.ips).toEqual([
      { version: "4", address: "10.1.0.5/16", gateway: "10.1.0.1", interface: 1 },
      { version: "6", address: "fd00::5/64", interface: 1 },
    ]);
    expect(convertResult(old, "1.0.0")).toEqual(modern);
  });

  test("converts from and to 0.2.0", () => {
    const legacy = {
      cniVersion: "0.2.0",
      ip4: { ip: "10.1.0.5/16", gateway: "10.1.0.1", routes: [{ dst: "0.0.0.0/0" }] },
      dns: {},
    };
    const converted = convertResult(parse(legacy), "1.0.0");
    expect(converted).toEqual({
      cniVersion: "1.0.0",
      ips: [{ address: "10.1.0.5/16", gateway: "10.1.0.1" }],
      routes: [{ dst: "0.0.0.0/0" }],
      dns: {},
    });
    expect(convertResult(converted, "0.2.0")).toEqual(legacy);
  });

  test("returns a result of the same version unchanged", () => {
    const result = parse(modern);
    expect(convertResult(result, "1.0.0")).toBe(result);
  });
});

describe("podIps", () => {
  test("returns the addresses of the pod's interface in the plugin's order", () => {
    expect(podIps(parse(modern), "eth0")).toEqual(["10.1.0.5", "fd00::5"]);
  });

  test("leaves out addresses of host interfaces", () => {
    const ips = [{ address: "10.1.0.1/16", interface: 0 }, ...modern.ips];
    expect(podIps(parse({ ...modern, ips }), "eth0")).toEqual(["10.1.0.5", "fd00::5"]);
  });

  test("includes addresses without an interface", () => {
    expect(podIps(parse({ ips: [{ address: "10.1.0.5/16" }] }), "eth0")).toEqual(["10.1.0.5"]);
  });

  test("falls back to a sandbox interface of another name", () => {
    const interfaces = [modern.interfaces[0], { name: "net1", sandbox: "/x" }];
    expect(podIps(parse({ ...modern, interfaces }), "eth0")).toEqual(["10.1.0.5", "fd00::5"]);
  });
});
