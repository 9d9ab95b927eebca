import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Log } from "../../src/base/log.ts";
import { openCni, type CniNetwork, type CniPod } from "../../src/node/cni.ts";
import { pinNamespaces, unpinNamespace } from "../../src/node/namespaces.ts";

const plugins = "/usr/lib/cni";
const signal = new AbortController().signal;

let dir = "";
let lines: string[] = [];
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "cni-"));
  mkdirSync(join(dir, "net.d"));
  mkdirSync(join(dir, "bin"));
  lines = [];
});
afterEach(() => rmSync(dir, { recursive: true, force: true }));

const log: Log = {
  error: (message) => void lines.push(`error ${message}`),
  warn: (message) => void lines.push(`warn ${message}`),
  info: (message) => void lines.push(`info ${message}`),
  debug: () => {},
  child: () => log,
};

function open(timeoutMs = 10_000): CniNetwork {
  const [confDir, cacheDir] = [join(dir, "net.d"), join(dir, "cache")];
  return openCni({ confDir, cacheDir, binDirs: [join(dir, "bin")], log, timeoutMs });
}

function writeList(cniVersion: string, list: object[], file = "10-pods.conflist"): void {
  const text = JSON.stringify({ cniVersion, name: "pods", plugins: list });
  writeFileSync(join(dir, "net.d", file), text);
}

function writePlugin(name: string, script: string): void {
  writeFileSync(join(dir, "bin", name), `#!/bin/sh\n${script}\n`);
  chmodSync(join(dir, "bin", name), 0o755);
}

function podOf(id: string, netnsPath = ""): CniPod {
  const portMappings: CniPod["portMappings"] = [];
  return { id, netnsPath, name: "web", namespace: "shop", uid: "u", portMappings, annotations: {} };
}

const failure = (promise: Promise<unknown>) => promise.catch((error: unknown) => error);

describe("CniNetwork with plugins that tell what they see", () => {
  const ok = '{"cniVersion":"$V","ips":[{"address":"10.9.0.7/24"}]}';
  /** Appends "COMMAND netns" and the input to a file of the plugin's name, prints a result. */
  const telling = (name: string, result: string, before = "") =>
    writePlugin(
      name,
      `cd ${dir}; echo "$CNI_COMMAND ${name}" >> calls
cat > ${name}.$CNI_COMMAND; env | grep ^CNI_ | sort > ${name}.env
${before}
[ $CNI_COMMAND = DEL ] || cat <<X
${result}
X`,
    );
  const input = (name: string) => JSON.parse(readFileSync(join(dir, name), "utf8")) as object;
  const calls = () => readFileSync(join(dir, "calls"), "utf8").trim().split("\n");

  test("ADD runs the list in order, DEL in reverse with what ADD had", async () => {
    telling("one", ok.replace("$V", "1.0.0"));
    telling("two", ok.replace("$V", "1.0.0").replace(".7/", ".8/"));
    writeList("1.0.0", [
      { type: "one", mtu: 1 },
      { type: "two", capabilities: { dns: true } },
    ]);
    const cni = open();
    const dns = { servers: ["1.1.1.1"], searches: [], options: [] };
    const pod = { ...podOf("p1", "/proc/self/ns/net"), dns };
    const attachment = await cni.add(pod, signal);
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
    await cni.del(pod, attachment, signal);
    expect(calls()).toEqual(["ADD one", "ADD two", "DEL two", "DEL one"]);
    expect(input("one.DEL")).toMatchObject({ mtu: 1, prevResult: attachment.result });
    expect(input("two.DEL")).toMatchObject({ prevResult: attachment.result, runtimeConfig });
  });

  test("DEL without the caller's record takes the cached one, and nothing when there is none", async () => {
    telling("one", ok.replace("$V", "1.0.0"));
    writeList("1.0.0", [{ type: "one" }]);
    const { result } = await open().add(podOf("p1"), signal);
    expect(readdirSync(join(dir, "cache/results"))).toEqual(["pods-p1-eth0"]);
    writeList("1.0.0", [{ type: "gone" }]);
    await open().del(podOf("p1"), undefined, signal);
    expect(input("one.DEL")).toMatchObject({ prevResult: result });
    expect(readdirSync(join(dir, "cache/results"))).toEqual([]);
    await open().del(podOf("p1"), undefined, signal);
    expect(calls()).toEqual(["ADD one", "DEL one"]);
  });

  test("a failed ADD leaves its attempt for DEL, which runs every plugin", async () => {
    telling("one", ok.replace("$V", "1.0.0"));
    const error = '{"cniVersion":"1.0.0","code":11,"msg":"busy","details":"no address free"}';
    telling("two", ok, `[ $CNI_COMMAND = DEL ] || { echo '${error}'; exit 1; }`);
    writeList("1.0.0", [{ type: "one" }, { type: "two" }]);
    const cni = open();
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

  test("DEL stops at a plugin that fails and starts over the next time", async () => {
    telling("one", ok.replace("$V", "1.0.0"));
    telling("two", ok.replace("$V", "1.0.0"), `[ ! -e fail ] || { echo broken >&2; exit 4; }`);
    writeList("1.0.0", [{ type: "one" }, { type: "two" }]);
    const cni = open();
    const attachment = await cni.add(podOf("p1"), signal);
    writeFileSync(join(dir, "fail"), "");
    expect(await failure(cni.del(podOf("p1"), attachment, signal))).toMatchObject({
      code: "INTERNAL",
      message: expect.stringContaining("plugin two: DEL of sandbox p1 failed: exit code 4: broken"),
    });
    rmSync(join(dir, "fail"));
    await cni.del(podOf("p1"), attachment, signal);
    expect(calls().slice(2)).toEqual(["DEL two", "DEL two", "DEL one"]);
  });

  test("DEL passes no prevResult to a list of 0.3.1 and no path of a namespace that is gone", async () => {
    telling("one", '{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.9.0.7/24"}]}');
    writeList("0.3.1", [{ type: "one" }]);
    const cni = open();
    const attachment = await cni.add(podOf("p1", join(dir, "calls")), signal);
    expect(attachment.ips).toEqual(["10.9.0.7"]);
    await cni.del(podOf("p1", join(dir, "calls")), attachment, signal);
    expect(input("one.DEL")).not.toHaveProperty("prevResult");
    expect(readFileSync(join(dir, "one.env"), "utf8")).toContain("CNI_NETNS=\n");
  });

  test("a plugin over its deadline is killed with its children and named with pid and time", async () => {
    writePlugin("slow", `sleep 300 & echo $! > ${dir}/child; wait`);
    writeList("1.0.0", [{ type: "slow" }]);
    expect(await failure(open(200).add(podOf("p1"), signal))).toMatchObject({
      code: "DEADLINE_EXCEEDED",
      message: expect.stringMatching(/CNI plugin slow: ADD of sandbox p1: .*pid \d+.* \d+ ms$/),
    });
    await sleep(50);
    const child = readFileSync(join(dir, "child"), "utf8").trim();
    const stat = existsSync(`/proc/${child}`) ? readFileSync(`/proc/${child}/stat`, "utf8") : "Z";
    expect(stat).toContain("Z");
  });

  test("the caller's cancellation ends a plugin", async () => {
    writePlugin("slow", "exec sleep 300");
    writeList("1.0.0", [{ type: "slow" }]);
    const failed = failure(open().add(podOf("p1"), AbortSignal.timeout(100)));
    expect(await failed).toMatchObject({ code: "DEADLINE_EXCEEDED" });
  });

  test("status and add say why the network is not ready", async () => {
    const cni = open();
    const reason = "NetworkPluginNotReady";
    expect(cni.status()).toEqual({
      ready: false,
      reason,
      message: `no CNI network list in ${dir}/net.d (*.conflist, *.conf or *.json)`,
    });
    expect(await failure(cni.add(podOf("p1"), signal))).toMatchObject({ code: "UNAVAILABLE" });
    writeFileSync(join(dir, "net.d/10-pods.conflist"), "{");
    expect(cni.status()).toMatchObject({
      ready: false,
      message: expect.stringContaining("is no JSON"),
    });
    writeList("1.0.0", [{ type: "one", ipam: { type: "two" } }]);
    telling("one", ok);
    expect(cni.status().message).toContain(`CNI plugin two, which ${dir}/net.d/10-pods.conflist`);
    telling("two", ok);
    expect(cni.status()).toEqual({ ready: true, reason: "", message: "", name: "pods" });
    writeFileSync(join(dir, "net.d/10-pods.conflist"), "{");
    expect(cni.status()).toMatchObject({
      ready: true,
      message: expect.stringContaining("still using pods"),
    });
    cni.status();
    expect(lines.length).toBe(4); // each change once
  });

  test("add says which plugin is not installed", async () => {
    writeList("1.0.0", [{ type: "absent" }]);
    expect(await failure(open().add(podOf("p1"), signal))).toMatchObject({
      code: "FAILED_PRECONDITION",
      message: `CNI plugin absent: ADD of sandbox p1: not found in ${dir}/bin; install it or set cni-bin-dir`,
    });
  });
});

const canWire = process.getuid?.() === 0 && existsSync(join(plugins, "bridge"));

// The plugins run in a network namespace that plays the node: no bridge or rule touches the real one.
describe.skipIf(!canWire)("CniNetwork with the real plugins (needs root and /usr/lib/cni)", () => {
  let node = "";
  let count = 0;
  let nodeDir = "";
  beforeAll(async () => {
    nodeDir = mkdtempSync(join(tmpdir(), "cni-node-"));
    node = join(nodeDir, "net");
    await pinNamespaces({ net: node, hostname: "", sysctls: {}, signal });
  });
  afterAll(async () => {
    await unpinNamespace(node, { unlink: true });
    rmSync(nodeDir, { recursive: true });
  });
  beforeEach(() => {
    for (const name of ["bridge", "host-local", "portmap"]) {
      writePlugin(name, `exec nsenter --net=${node} ${plugins}/${name}`);
    }
  });

  const leases = () =>
    readdirSync(join(dir, "leases/pods")).filter((name) => /^[\da-f]+[.:]/.test(name));
  const bridgeConf = () => ({
    type: "bridge",
    bridge: `cni${count}`,
    isGateway: true,
    ipMasq: true,
    ipam: {
      type: "host-local",
      dataDir: join(dir, "leases"),
      ranges: [
        [{ subnet: `10.222.${count}.0/24` }],
        [{ subnet: `fd00:10:222:${count.toString(16)}::/64` }],
      ],
      routes: [{ dst: "0.0.0.0/0" }, { dst: "::/0" }],
    },
  });
  const portmap = { type: "portmap", capabilities: { portMappings: true } };
  const inNet = (net: string, ...argv: string[]) => {
    const result = spawnSync("nsenter", [`--net=${net}`, ...argv], { timeout: 5000 });
    return result.stdout.toString() + result.stderr.toString();
  };
  const rules = () => inNet(node, "iptables-save") + inNet(node, "ip6tables-save");
  async function withPod(work: (pod: CniPod) => Promise<void>): Promise<void> {
    const id = `cnitest${process.pid}x${count++}`;
    const net = join(dir, id);
    await pinNamespaces({ net, hostname: "", sysctls: {}, signal });
    await using stack = new AsyncDisposableStack();
    stack.defer(() => unpinNamespace(net, { unlink: true }));
    await work(podOf(id, net));
  }

  test.each(["0.3.1", "0.4.0", "1.0.0"])(
    "a list of %s gives a pod both families and takes them back, twice if asked",
    async (version) => {
      await withPod(async (pod) => {
        writeList(version, [bridgeConf(), portmap]);
        const cni = open();
        const attachment = await cni.add(pod, signal);
        expect(attachment.result!.cniVersion).toBe(version);
        expect(attachment.ips).toEqual([
          expect.stringMatching(/^10\.222\.\d+\.2$/),
          expect.stringMatching(/^fd00:10:222:/),
        ]);
        const seen = inNet(pod.netnsPath, "ip", "-br", "addr");
        for (const ip of attachment.ips) expect(seen).toContain(`${ip}/`);
        expect(leases().toSorted()).toEqual(attachment.ips.toSorted());
        expect(rules()).toContain(pod.id);
        for (let round = 0; round < 2; round++) {
          await cni.del(pod, attachment, signal);
          expect(leases()).toEqual([]);
          expect(rules()).not.toContain(pod.id);
          expect(inNet(pod.netnsPath, "ip", "-br", "link")).not.toContain("eth0");
        }
      });
    },
  );

  test("a host port reaches the pod until DEL", async () => {
    await withPod(async (pod) => {
      const gateway = `10.222.${count}.1`;
      writeList("1.0.0", [bridgeConf(), portmap]);
      writeFileSync(join(dir, "index.html"), "hello from the pod");
      const server = spawn(
        "nsenter",
        [`--net=${pod.netnsPath}`, "busybox", "httpd", "-f", "-p", "80", "-h", dir],
        { stdio: "ignore" },
      );
      const ended = new Promise((resolve) => server.on("exit", resolve));
      try {
        const mapping = {
          hostPort: 18080,
          containerPort: 80,
          protocol: "tcp",
          hostIP: "",
        } as const;
        const cni = open();
        const attachment = await cni.add({ ...pod, portMappings: [mapping] }, signal);
        const url = `http://${gateway}:18080/index.html`;
        const get = () => inNet(node, "busybox", "wget", "-qO-", url);
        expect(get()).toBe("hello from the pod");
        await cni.del(pod, attachment, signal);
        expect(get()).not.toContain("hello");
        expect(rules()).not.toContain(pod.id);
      } finally {
        server.kill("SIGKILL");
        await ended;
      }
    });
  });

  test("DEL frees the addresses after the namespace is gone, as after a reboot", async () => {
    await withPod(async (pod) => {
      writeList("1.0.0", [bridgeConf(), portmap]);
      const attachment = await open().add(pod, signal);
      await unpinNamespace(pod.netnsPath, { unlink: false });
      await open().del(pod, attachment, signal);
      expect(leases()).toEqual([]);
    });
  });

  test("an ADD that fails after the bridge is taken back by DEL", async () => {
    await withPod(async (pod) => {
      writePlugin("fails", '[ $CNI_COMMAND = DEL ] || { echo "out of luck"; exit 1; }');
      writeList("1.0.0", [bridgeConf(), portmap, { type: "fails" }]);
      const cni = open();
      expect(await failure(cni.add(pod, signal))).toMatchObject({
        message: expect.stringContaining("CNI plugin fails: ADD"),
      });
      expect(leases().length).toBe(2);
      await cni.del(pod, undefined, signal);
      expect(leases()).toEqual([]);
      expect(rules()).not.toContain(pod.id);
    });
  });

  test("the plugin's own words reach the caller when addresses run out", async () => {
    await withPod(async (pod) => {
      const conf = bridgeConf();
      conf.ipam.ranges = [[{ subnet: "10.222.250.0/30" }]];
      writeList("1.0.0", [conf]);
      const cni = open();
      const first = await cni.add(pod, signal);
      await withPod(async (other) => {
        expect(await failure(cni.add(other, signal))).toMatchObject({
          code: "INTERNAL",
          message: expect.stringMatching(/^CNI plugin bridge: ADD .*no IP addresses available/),
        });
        await cni.del(other, undefined, signal);
      });
      await cni.del(pod, first, signal);
      expect(leases()).toEqual([]);
    });
  });
});
