// Tests CniNetwork with shell scripts as plugins: their input, and the handling of results and errors.
import { describe, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { observeActivities } from "../../../src/base/activity.ts";
import type { CniLists } from "../../../src/node/cni.ts";
import {
  dir,
  failure,
  input,
  calls,
  lines,
  ok,
  openNetwork,
  podOf,
  signal,
  recordingPlugin,
  useScratch,
  writeList,
  writePlugin,
} from "../../node/cni_fixture.ts";

useScratch();

function writeNamed(name: string, plugins: object[], file: string): void {
  const text = JSON.stringify({ cniVersion: "1.0.0", name, plugins });
  writeFileSync(join(dir, "net.d", file), text);
}

describe("CniNetwork", () => {
  test("ADD runs the list in order, DEL in reverse with what ADD had", async () => {
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    recordingPlugin("two", ok.replace("$V", "1.0.0").replace(".7/", ".8/"));
    writeList("1.0.0", [
      { type: "one", mtu: 1 },
      { type: "two", capabilities: { dns: true } },
    ]);
    const cni = openNetwork();
    const dns = { servers: ["1.1.1.1"], searches: [], options: [] };
    const pod = { ...podOf("p1", "/proc/self/ns/net"), dns };
    const [attachment] = await cni.add(pod, signal);
    expect(attachment.ips).toEqual(["10.9.0.8"]);
    expect(JSON.parse(JSON.stringify(attachment))).toEqual(attachment);
    const first = { cniVersion: "1.0.0", ips: [{ address: "10.9.0.7/24" }] };
    const runtimeConfig = { dns };
    expect(input("one.ADD")).toEqual({ type: "one", mtu: 1, name: "pods", cniVersion: "1.0.0" });
    expect(input("two.ADD")).toMatchObject({ prevResult: first, runtimeConfig });
    expect(readFileSync(join(dir, "two.env"), "utf8")).toBe(`CNI_ARGS=IgnoreUnknown=1;\
K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=p1;K8S_POD_UID=u
CNI_COMMAND=ADD
CNI_CONTAINERID=p1
CNI_IFNAME=eth0
CNI_NETNS=/proc/self/ns/net
CNI_PATH=${dir}/bin
`);
    writeList("0.4.0", [{ type: "other" }]); // a new list must not change the old pod's DEL
    await cni.del(pod, [attachment], signal);
    expect(calls()).toEqual(["ADD one", "ADD two", "DEL two", "DEL one"]);
    expect(input("one.DEL")).toMatchObject({ mtu: 1, prevResult: attachment.result });
    expect(input("two.DEL")).toMatchObject({ prevResult: attachment.result, runtimeConfig });
  });

  test("DEL without the caller's record uses the cache, and does nothing without either", async () => {
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    writeList("1.0.0", [{ type: "one" }]);
    const [{ result }] = await openNetwork().add(podOf("p1"), signal);
    expect(readdirSync(join(dir, "cache/results"))).toEqual(["pods-p1-eth0"]);
    writeList("1.0.0", [{ type: "gone" }]);
    await openNetwork().del(podOf("p1"), undefined, signal);
    expect(input("one.DEL")).toMatchObject({ prevResult: result });
    expect(readdirSync(join(dir, "cache/results"))).toEqual([]);
    await openNetwork().del(podOf("p1"), undefined, signal);
    expect(calls()).toEqual(["ADD one", "DEL one"]);
  });

  test.each<[string, (whole: object) => unknown[]]>([
    ["empty", () => []],
    ["no attachment", () => [{}, null, 7, { confList: null }]],
    ["a list without plugins", (whole) => [{ ...whole, confList: { name: "pods", plugins: [] } }]],
    ["a result of no shape", (whole) => [{ ...whole, result: { ips: "none" } }]],
    ["whole", (whole) => [whole]],
  ])(
    "DEL with a record that is %s runs once for each network, with ADD's result",
    async (_, of) => {
      recordingPlugin("one", ok.replace("$V", "1.0.0"));
      writeList("1.0.0", [{ type: "one" }]);
      const [attachment] = await openNetwork().add(podOf("p1"), signal);
      await openNetwork().del(podOf("p1"), of(attachment), signal);
      expect(calls()).toEqual(["ADD one", "DEL one"]);
      expect(input("one.DEL")).toMatchObject({ prevResult: attachment.result });
      expect(lines.filter((line) => line.startsWith("warn"))).toEqual([]);
    },
  );

  test("DEL with neither a usable record nor a cache is logged", async () => {
    await openNetwork().del(podOf("p1"), [{}], signal);
    expect(lines).toEqual(["warn CNI DEL skipped: neither record nor cache has an attachment"]);
  });

  test("a failed ADD leaves its attempt in the cache for DEL, which runs every plugin", async () => {
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    const error = '{"cniVersion":"1.0.0","code":11,"msg":"busy","details":"no address free"}';
    recordingPlugin("two", ok, `[ $CNI_COMMAND = DEL ] || { echo '${error}'; exit 1; }`);
    writeList("1.0.0", [{ type: "one" }, { type: "two" }]);
    const cni = openNetwork();
    expect(await failure(cni.add(podOf("p1"), signal))).toMatchObject({
      code: "UNAVAILABLE",
      message: expect.stringMatching(
        /^CNI plugin two: ADD of sandbox p1 failed: busy: no address free \[CNI error 11\] \(pid \d+, \d+ ms\)$/,
      ),
    });
    await cni.del(podOf("p1"), undefined, signal);
    expect(calls()).toEqual(["ADD one", "ADD two", "DEL two", "DEL one"]);
    expect(input("one.DEL")).not.toHaveProperty("prevResult");
  });

  test("a default network that gives no address fails ADD, and its DEL has the result; another one is logged", async () => {
    const none = '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}]}';
    recordingPlugin("none", none);
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    writeNamed("first", [{ type: "none" }], "10.conflist");
    writeNamed("second", [{ type: "one" }], "20.conflist");
    const cni = openNetwork(60_000, 2);
    expect(await failure(cni.add(podOf("p1"), signal))).toMatchObject({
      code: "FAILED_PRECONDITION",
      message:
        "CNI network first gave sandbox p1 no address on eth0: correct its ipam, or make another network the first one",
    });
    await cni.del(podOf("p1"), cni.plan(podOf("p1")), signal);
    expect(calls()).toEqual(["ADD none", "DEL one", "DEL none"]);
    expect(input("none.DEL")).toMatchObject({ prevResult: JSON.parse(none) as object });
    writeNamed("first", [{ type: "one" }], "10.conflist");
    writeNamed("second", [{ type: "none" }], "20.conflist");
    expect(await openNetwork(60_000, 2).add(podOf("p2"), signal)).toHaveLength(2);
    expect(lines.filter((line) => line.includes("no address"))).toHaveLength(1);
  });

  test.each([
    ["not found", '{"code":100,"msg":"link eth0 not found"}', true],
    [
      "no such file, without a namespace",
      '{"code":100,"msg":"open : no such file or directory"}',
      true,
    ],
    [
      "a program not found",
      '{"code":100,"msg":"exec: iptables: executable file not found in $PATH"}',
      false,
    ],
    [
      "the namespace's empty path",
      '{"code":100,"msg":"failed to Statfs \\"\\": no such file or directory"}',
      true,
    ],
    [
      "an agent that is not up",
      '{"code":100,"msg":"dial unix /run/x.sock: connect: no such file or directory"}',
      false,
    ],
    ["not found, but by no plugin", "sh: foo: not found", false],
    ["another error", '{"code":100,"msg":"busy"}', false],
  ])(
    "DEL goes on after a plugin that finds nothing to remove, and only then: %s",
    async (_, answer, goesOn) => {
      recordingPlugin("one", ok.replace("$V", "1.0.0"));
      const fails = `[ $CNI_COMMAND = ADD ] || { echo '${answer}'; exit 1; }`;
      recordingPlugin("two", ok.replace("$V", "1.0.0"), fails);
      writeList("1.0.0", [{ type: "one" }, { type: "two" }]);
      const cni = openNetwork();
      const [attachment] = await cni.add(podOf("p1"), signal);
      const deleted = await failure(cni.del(podOf("p1"), [attachment], signal));
      expect(deleted === undefined).toBe(goesOn);
      expect(calls().slice(2)).toEqual(goesOn ? ["DEL two", "DEL one"] : ["DEL two"]);
      expect(lines.includes("warn CNI DEL found nothing to remove")).toBe(goesOn);
    },
  );

  test("DEL that answers no such file fails while the namespace is there", async () => {
    const answer = '{"code":100,"msg":"open /run/x: no such file or directory"}';
    recordingPlugin(
      "one",
      ok.replace("$V", "1.0.0"),
      `[ $CNI_COMMAND = ADD ] || { echo '${answer}'; exit 1; }`,
    );
    writeList("1.0.0", [{ type: "one" }]);
    const cni = openNetwork();
    const pod = podOf("p1", "/proc/self/ns/net");
    const [attachment] = await cni.add(pod, signal);
    expect((await failure(cni.del(pod, [attachment], signal))) as Error).toMatchObject({
      message: expect.stringContaining("no such file") as string,
    });
  });

  test("DEL stops at a plugin that fails and starts over on retry", async () => {
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    recordingPlugin(
      "two",
      ok.replace("$V", "1.0.0"),
      `[ ! -e fail ] || { echo broken >&2; exit 4; }`,
    );
    writeList("1.0.0", [{ type: "one" }, { type: "two" }]);
    const cni = openNetwork();
    const [attachment] = await cni.add(podOf("p1"), signal);
    writeFileSync(join(dir, "fail"), "");
    expect(await failure(cni.del(podOf("p1"), [attachment], signal))).toMatchObject({
      code: "INTERNAL",
      message: expect.stringContaining("plugin two: DEL of sandbox p1 failed: exit code 4: broken"),
    });
    rmSync(join(dir, "fail"));
    await cni.del(podOf("p1"), [attachment], signal);
    expect(calls().slice(2)).toEqual(["DEL two", "DEL two", "DEL one"]);
  });

  test("DEL passes no prevResult to a list of 0.3.1 and no path of a missing namespace", async () => {
    recordingPlugin(
      "one",
      '{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.9.0.7/24"}]}',
    );
    writeList("0.3.1", [{ type: "one" }]);
    const cni = openNetwork();
    const [attachment] = await cni.add(podOf("p1", join(dir, "calls")), signal);
    expect(attachment.ips).toEqual(["10.9.0.7"]);
    await cni.del(podOf("p1", join(dir, "calls")), [attachment], signal);
    expect(input("one.DEL")).not.toHaveProperty("prevResult");
    expect(readFileSync(join(dir, "one.env"), "utf8")).toContain("CNI_NETNS=\n");
  });

  test("a handler's own number of lists, and its own folder, decide about a pod's networks", async () => {
    recordingPlugin("one", ok);
    for (const name of ["a", "b"]) writeNamed(name, [{ type: "one" }], `${name}.conflist`);
    const cni = openNetwork();
    const namesOf = (own?: CniLists) =>
      cni.plan(podOf("p1"), own).map(({ confList, ifName }) => `${confList.name} ${ifName}`);
    expect(namesOf()).toEqual(["a eth0"]);
    expect(namesOf({ maxConfNum: 0 })).toEqual(["a eth0", "b eth1"]);
    expect(() => namesOf({ confDir: join(dir, "none") })).toThrow(`list in ${dir}/none`);
    writeNamed("b", [{ type: "absent" }], "b.conflist");
    expect(await cni.status()).toMatchObject({ ready: true });
    expect((await cni.status({ maxConfNum: 2 })).message).toContain("CNI plugin absent");
    expect(await cni.status({ confDir: join(dir, "none") })).toMatchObject({ ready: false });
  });

  test("status and add say why the network is not ready", async () => {
    const cni = openNetwork();
    const reason = "NetworkPluginNotReady";
    expect(await cni.status()).toEqual({
      ready: false,
      reason,
      message: `no CNI network list in ${dir}/net.d (*.conflist, *.conf or *.json): install the cluster's network add-on`,
    });
    expect(await failure(cni.add(podOf("p1"), signal))).toMatchObject({ code: "UNAVAILABLE" });
    writeFileSync(join(dir, "net.d/10-pods.conflist"), "{");
    expect(await cni.status()).toMatchObject({
      ready: false,
      message: expect.stringContaining("is not JSON"),
    });
    writeList("1.0.0", [{ type: "one", ipam: { type: "two" } }]);
    recordingPlugin("one", ok);
    expect((await cni.status()).message).toContain(
      `CNI plugin two, required by ${dir}/net.d/10-pods.conflist`,
    );
    recordingPlugin("two", ok);
    expect(await cni.status()).toEqual({ ready: true, reason: "", message: "", name: "pods" });
    writeFileSync(join(dir, "net.d/10-pods.conflist"), "{");
    expect(await cni.status()).toMatchObject({
      ready: true,
      message: expect.stringContaining("still using pods"),
    });
    await cni.status();
    expect(lines.length).toBe(4); // each change once
  });

  test("plan says which plugin is not installed, before another one has run", async () => {
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    writeList("1.0.0", [{ type: "one" }, { type: "absent" }]);
    expect(await failure(openNetwork().add(podOf("p1"), signal))).toMatchObject({
      code: "FAILED_PRECONDITION",
      message: `CNI plugin absent of network pods was not found in ${dir}/bin: install it or set cni-bin-dir`,
    });
    expect(existsSync(join(dir, "log"))).toBe(false);
    expect(existsSync(join(dir, "cache"))).toBe(false);
  });

  test("add says which plugin has vanished since the plan", async () => {
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    writeList("1.0.0", [{ type: "one" }]);
    const cni = openNetwork();
    const plan = cni.plan(podOf("p1"));
    rmSync(join(dir, "bin/one"));
    expect(await failure(cni.add(podOf("p1"), signal, plan))).toMatchObject({
      code: "FAILED_PRECONDITION",
      message: `CNI plugin one: ADD of sandbox p1: not found in ${dir}/bin; install it or set cni-bin-dir`,
    });
  });

  test("several networks: ADD in order, host ports only at the first, DEL in reverse", async () => {
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    recordingPlugin(
      "two",
      ok.replace("$V", "1.0.0").replace(".7/", ".8/"),
      "cp two.$CNI_COMMAND two.$CNI_IFNAME",
    );
    const ports = { portMappings: true };
    writeNamed("first", [{ type: "one", capabilities: ports }], "10.conflist");
    writeNamed("second", [{ type: "two", capabilities: ports }], "20.conflist");
    writeNamed("third", [{ type: "two" }], "30.conflist");
    const annotation = JSON.stringify([{ name: "third", interface: "net1" }]);
    const mapping = { hostPort: 80, containerPort: 80, protocol: "tcp", hostIP: "" } as const;
    const pod = {
      ...podOf("p1"),
      portMappings: [mapping],
      annotations: { "network.alpha.kubernetes.io/network": annotation },
    };
    const cni = openNetwork(60_000, 2);
    const attachments = await cni.add(pod, signal);
    expect(attachments.map(({ confList, ifName }) => [confList.name, ifName])).toEqual([
      ["first", "eth0"],
      ["second", "eth1"],
      ["third", "net1"],
    ]);
    expect(input("one.ADD")).toMatchObject({ runtimeConfig: { portMappings: [mapping] } });
    expect(input("two.eth1")).not.toHaveProperty("runtimeConfig.portMappings");
    expect(readdirSync(join(dir, "cache/results")).toSorted()).toEqual([
      "first-p1-eth0",
      "second-p1-eth1",
      "third-p1-net1",
    ]);
    // Without the caller's record: the cache has all of them.
    await openNetwork().del(pod, undefined, signal);
    expect(calls()).toEqual(["ADD one", "ADD two", "ADD two", "DEL two", "DEL two", "DEL one"]);
    expect(readdirSync(join(dir, "cache/results"))).toEqual([]);
  });

  test("an annotation for the default interface replaces the default network", async () => {
    recordingPlugin("one", ok.replace("$V", "1.0.0"));
    recordingPlugin("two", ok.replace("$V", "1.0.0"));
    writeNamed("first", [{ type: "one" }], "10.conflist");
    writeNamed("second", [{ type: "two" }], "20.conflist");
    const annotation = '[{"name":"second","interface":"eth0"}]';
    const annotations = { "network.alpha.kubernetes.io/network": annotation };
    await openNetwork().add({ ...podOf("p1"), annotations }, signal);
    expect(calls()).toEqual(["ADD two"]);
  });
});

test("the first ADDs of a list run one at a time, later ones concurrently", async () => {
  // All wait until `wanted` of them have come in, but for the first of the first batch.
  const meet = `[ $(cat log wanted | tr -d "\\n") = in3 ] || until [ $(grep -c in log) = $(cat wanted) ]; do sleep 0.01; done`;
  recordingPlugin("one", ok.replace("$V", "1.0.0"), `echo in >> log; ${meet}; echo out >> log`);
  writeList("1.0.0", [{ type: "one" }]);
  const cni = openNetwork();
  const add = (ids: string[]) => Promise.all(ids.map((id) => cni.add(podOf(id), signal)));
  const logged = () => readFileSync(join(dir, "log"), "utf8").replaceAll("\n", " ");
  writeFileSync(join(dir, "wanted"), "3");
  await add(["p1", "p2", "p3"]);
  expect(logged()).toBe("in out in in out out ");
  rmSync(join(dir, "log"));
  writeFileSync(join(dir, "wanted"), "2");
  await add(["p4", "p5"]);
  expect(logged()).toBe("in in out out ");
});

describe("CNI 1.1", () => {
  test("STATUS runs only for lists of 1.1, for each plugin until one fails", async () => {
    const script = (name: string, code: number) =>
      `echo "$CNI_COMMAND $CNI_CONTAINERID$CNI_NETNS$CNI_IFNAME ${name}" >> ${dir}/calls; exit ${code}`;
    writePlugin("one", script("one", 0));
    writePlugin("two", script("two", 1));
    writePlugin("three", script("three", 0));
    const types = ["one", "two", "three"].map((type) => ({ type }));
    writeList("1.0.0", types);
    const cni = openNetwork();
    expect((await cni.status()).ready).toBe(true);
    expect(existsSync(join(dir, "calls"))).toBe(false);
    writeList("1.1.0", types);
    expect(await cni.status()).toMatchObject({
      ready: false,
      reason: "NetworkPluginNotReady",
      message: expect.stringContaining("CNI plugin two: STATUS failed: exit code 1"),
    });
    expect(readFileSync(join(dir, "calls"), "utf8")).toBe("STATUS  one\nSTATUS  two\n");
  });

  test("a plugin that is older than STATUS does not count as failed, another one does", async () => {
    const ended: [string | undefined, boolean][] = [];
    using _ = observeActivities(({ labels }, _endedMs, error) =>
      ended.push([labels["plugin"], error !== undefined]),
    );
    const failing = (code: number) => `echo '{"code": ${code}, "msg": "no"}'; exit 1`;
    writePlugin("old", failing(4));
    writePlugin("broken", failing(5));
    writeList("1.1.0", [{ type: "old" }, { type: "broken" }]);
    expect((await openNetwork().status()).message).toContain("CNI plugin broken: STATUS failed");
    expect(ended).toEqual([
      ["old", false],
      ["broken", true],
    ]);
  });
});
