// Tests pod networks: address families and their order, several networks, host ports, traffic between pods.
import { describe, expect, test } from "bun:test";
import { execFileSync, spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { createServer, Server, type AddressInfo } from "node:net";
import process from "node:process";
import { refuseOccupiedPorts } from "../../src/base/annotations.ts";
import { runtime } from "../../src/proto/messages.js";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure, until } from "../expect.ts";
import { freePort } from "../registry.ts";
import {
  addresses,
  bridge,
  configure,
  daemon,
  leases,
  portmap,
  settings,
  useNetworks,
  writeList,
} from "./network_fixture.ts";

const { Protocol } = runtime.v1;
const networksAnnotation = "network.alpha.kubernetes.io/network";
const isV6 = (ip: string) => ip.includes(":");
useNetworks();

describe("addresses", () => {
  test.each([
    ["ipv4", false],
    ["ipv6", true],
    ["cni", true],
  ])("ip-preference %s: of both families, is the first one IPv6: %p", async (preference, first) => {
    writeList("both", [bridge(["6", "4"])]);
    await configure({ "ip-preference": preference });
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const ips = await addresses(podId);
    expect(ips.map(isV6)).toEqual([first, !first]);
    const seen = (await daemon.output(podId, pod, "ip addr show eth0")).text;
    for (const ip of ips) expect(seen).toContain(`${ip}/`);
    await daemon.removePod(podId);
    expect(leases()).toEqual([]);
  });

  test("the settings have iSulad's names, and are the same after kill -9", async () => {
    writeList("both", [bridge(), portmap]);
    await configure({});
    const port_mappings = [{ container_port: 80, host_port: 0 }];
    const podId = await daemon.runPod(daemon.podConfig({ port_mappings }));
    const before = await settings(podId);
    const [v4, v6] = await addresses(podId);
    expect(before).toMatchObject({
      SandboxID: podId,
      SandboxKey: expect.stringMatching(/^\/var\/run\/netns\//),
      IPAddress: v4,
      IPPrefixLen: 24,
      Gateway: `${daemon.subnet}.1`,
      GlobalIPv6Address: v6,
      GlobalIPv6PrefixLen: 64,
      IPv6Gateway: expect.stringMatching(/^fd00:.*::1$/),
      MacAddress: expect.stringMatching(/^([\da-f]{2}:){5}[\da-f]{2}$/),
      Activation: true,
      CNIPorts: [],
    });
    expect(before.Networks[`${daemon.token}-both`]).toMatchObject({ InterfaceName: "eth0" });
    await daemon.restart("SIGKILL");
    expect(await settings(podId)).toEqual(before);
    await daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
    expect(await settings(podId)).toMatchObject({ Activation: false, SandboxID: podId });
    expect(await addresses(podId)).toEqual([""]);
    await daemon.removePod(podId);
  });
});

test("host ports without a plugin for them are in the log and the pod's verbose status", async () => {
  writeList("plain", [bridge(["4"])]);
  await configure({});
  const port_mappings = [{ container_port: 80, host_port: 40_080 }];
  const warning = `its host ports may have no effect: no plugin of ${daemon.token}-plain`;
  const before = daemon.log.length;
  for (const [config, count] of [
    [{ port_mappings }, 1],
    [{}, 0],
  ] as const) {
    const podId = await daemon.runPod(daemon.podConfig(config));
    const { info } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId, verbose: true });
    expect(info["info"]!.split(warning)).toHaveLength(count + 1);
    await daemon.removePod(podId);
  }
  expect(daemon.log.slice(before).split(warning)).toHaveLength(2);
});

describe("several networks", () => {
  test("by annotation: further interfaces; CRI's addresses stay the default network's", async () => {
    writeList("first", [bridge(["4"])], { file: "10" });
    writeList("storage", [bridge(["4"], "two")], { file: "20" });
    await configure({});
    const asked = [{ name: `${daemon.token}-storage`, interface: "net1" }];
    const pod = daemon.podConfig({ annotations: { [networksAnnotation]: JSON.stringify(asked) } });
    const podId = await daemon.runPod(pod);
    expect(await addresses(podId)).toHaveLength(1);
    const { Networks } = await settings(podId);
    const storage = Networks[`${daemon.token}-storage`]!;
    expect(storage).toMatchObject({ InterfaceName: "net1", IPPrefixLen: 24 });
    const { text } = await daemon.output(podId, pod, "ip addr");
    expect(text).toContain(`${String(storage["IPAddress"])}/24`);
    expect(text).toMatch(/eth0[^]*net1/);
    await daemon.removePod(podId);
    expect(leases()).toEqual([]);
  });

  test.each([
    ["nonsense", "not json", /must be a list such as/],
    [
      "an unknown network",
      '[{"name":"no-such","interface":"net1"}]',
      /no network "no-such" that pods may ask for/,
    ],
    ["a bad interface", '[{"name":"x","interface":"a/b"}]', /must be a list such as/],
    ["the default network again", '[{"name":"$-first","interface":"net1"}]', /already attached/],
    [
      "one interface twice",
      '[{"name":"$-storage","interface":"net1"},{"name":"$-third","interface":"net1"}]',
      /interface net1 is already in use/,
    ],
  ])("%s in the annotation is refused, and nothing is made", async (_, text, message) => {
    for (const name of ["first", "storage", "third"]) writeList(name, [bridge(["4"])]);
    const before = daemon.snapshot();
    const annotations = { [networksAnnotation]: text.replaceAll("$", daemon.token) };
    const error = await failure(daemon.runPod(daemon.podConfig({ annotations })));
    expect(error).toMatchObject({
      code: "INVALID_ARGUMENT",
      message: expect.stringMatching(message),
    });
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("max-conf-num 0 attaches every pod to all lists", async () => {
    writeList("first", [bridge(["4"])], { file: "10" });
    writeList("second", [bridge(["4"], "two")], { file: "20" });
    await configure({ "max-conf-num": 0 });
    const pod = daemon.podConfig();
    const podId = await daemon.runPod(pod);
    const { Networks } = await settings(podId);
    expect(Object.values(Networks).map((one) => one["InterfaceName"])).toEqual(["eth0", "eth1"]);
    await daemon.removePod(podId);
    expect(leases()).toEqual([]);
  });
});

describe("traffic", () => {
  /** Tries for a while: a listener needs a moment. */
  async function answer(from: { podId: string; pod: PodSandboxConfig }, command: string) {
    const script = `for i in $(seq 400); do t=$(${command}) && [ -n "$t" ] && break; usleep 100000; done; echo "$t"`;
    return (await daemon.output(from.podId, from.pod, script)).text.trim();
  }

  async function start(more: PodSandboxConfig = {}) {
    const pod = daemon.podConfig(more);
    const podId = await daemon.runPod(pod);
    return { pod, podId, ip: (await addresses(podId))[0]! };
  }

  /** Answers datagrams in a network namespace, which busybox has no program for. */
  function udpEcho(netns: string, port: number): Disposable {
    const script = `const socket = require("node:dgram").createSocket("udp4");
socket.on("message", (text, from) => socket.send("echo of " + text, from.port, from.address));
socket.bind(${port});`;
    const argv = [`--net=${netns}`, process.execPath, "-e", script];
    const child = spawn("nsenter", argv, { stdio: "ignore" });
    return { [Symbol.dispose]: () => void child.kill("SIGKILL") };
  }

  async function udpAnswer(host: string, port: number): Promise<string> {
    const socket = createSocket("udp4");
    const answers: string[] = [];
    socket.on("message", (text) => answers.push(text.toString()));
    try {
      await until("the datagram is answered", () => {
        socket.send("hello", port, host);
        return answers.length > 0;
      });
    } finally {
      socket.close();
    }
    return answers[0] ?? "";
  }

  test("two pods on one bridge reach each other, by both families", async () => {
    writeList("both", [bridge()]);
    await configure({});
    const one = await start();
    const two = await start();
    await daemon.run(
      one.podId,
      one.pod,
      "mkdir /www; echo served > /www/x; httpd -f -p 8080 -h /www",
    );
    const [v4, v6] = await addresses(one.podId);
    expect(await answer(two, `wget -qO- http://${v4}:8080/x`)).toBe("served");
    expect(await answer(two, `wget -qO- http://[${v6}]:8080/x`)).toBe("served");
    await Promise.all([one, two].map(({ podId }) => daemon.removePod(podId)));
  });

  test("ports of the host lead into the pod: TCP, UDP, and SCTP's rule", async () => {
    writeList("ports", [bridge(["4"]), portmap]);
    await configure({});
    const base = 20_000 + Math.floor(Math.random() * 10_000);
    const port_mappings = [
      { protocol: Protocol.TCP, host_port: base, container_port: 80 },
      { protocol: Protocol.UDP, host_port: base, container_port: 53 },
      { protocol: Protocol.SCTP, host_port: base, container_port: 99 },
    ];
    const server = await start({ port_mappings });
    const client = await start();
    await daemon.run(server.podId, server.pod, "mkdir /www; echo tcp > /www/x; httpd -f -h /www");
    using _ = udpEcho((await settings(server.podId))["SandboxKey"] as string, 53);
    const gateway = `${daemon.subnet}.1`;
    expect(await answer(client, `wget -qO- http://${gateway}:${base}/x`)).toBe("tcp");
    expect(await udpAnswer(gateway, base)).toBe("echo of hello");
    // The kernel of a test machine need not have SCTP: the rule is what we see to.
    const rules = execFileSync("iptables-save", ["-t", "nat"], { encoding: "utf8" });
    expect(rules).toMatch(
      new RegExp(`-p sctp .*--dport ${base} -j DNAT --to-destination ${server.ip}:99`),
    );
    await Promise.all([server, client].map(({ podId }) => daemon.removePod(podId)));
    expect(execFileSync("iptables-save", ["-t", "nat"], { encoding: "utf8" })).not.toContain(
      `--dport ${base}`,
    );
  });
});

describe("a port of the node that is taken", () => {
  const refusing = { annotations: { [refuseOccupiedPorts]: "true" } };
  const mapping = (host_port: number, more: object = {}) => ({
    port_mappings: [{ container_port: 80, host_port, ...more }],
  });

  test("by another pod is refused where the pod asks for that, else warned of", async () => {
    writeList("plain", [bridge(["4"]), portmap]);
    await configure({});
    const port = await freePort();
    const first = await daemon.runPod(daemon.podConfig(mapping(port)));
    const run = (more: object) =>
      daemon.runPod(daemon.podConfig({ ...mapping(port, more), ...refusing }));
    expect((await failure(run({}))).message).toContain(
      `port ${port}/tcp of the node belongs to pod `,
    );
    expect((await failure(run({ host_ip: "127.0.0.1" }))).message).toContain("choose another one");
    const warning = `port ${port}/tcp of the node belongs to pod `;
    const udp = await run({ protocol: Protocol.UDP });
    expect(daemon.log).not.toContain(`WARN  cri: ${warning}`);
    const second = await daemon.runPod(daemon.podConfig(mapping(port)));
    expect(daemon.log).toContain(`WARN  cri: ${warning}`);
    for (const id of [first, udp, second]) await daemon.removePod(id);
    await daemon.removePod(await run({})); // it is free again
    expect(leases()).toEqual([]);
  });

  test.each(["tcp", "udp"] as const)("by a program, %s", async (protocol) => {
    writeList("plain", [bridge(["4"]), portmap]);
    await configure({});
    const { promise, resolve } = Promise.withResolvers<number>();
    const server = protocol === "tcp" ? createServer() : createSocket("udp4");
    if (server instanceof Server) {
      server.listen(0, "0.0.0.0", () => resolve((server.address() as AddressInfo).port));
    } else server.bind(0, "0.0.0.0", () => resolve(server.address().port));
    const port = await promise;
    const more = { protocol: protocol === "tcp" ? Protocol.TCP : Protocol.UDP };
    const run = () => daemon.runPod(daemon.podConfig({ ...mapping(port, more), ...refusing }));
    expect((await failure(run())).message).toContain(
      `port ${port}/${protocol} of the node belongs to a program`,
    );
    await new Promise<void>((closed) => server.close(() => closed()));
    await daemon.removePod(await run());
  });
});
