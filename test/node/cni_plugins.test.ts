// Tests CniNetwork with the real CNI plugins: addresses of both families, host ports, and DEL.
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { CniPod } from "../../src/node/cni.ts";
import { pinNamespaces, unpinNamespace } from "../../src/node/namespaces.ts";
import { until } from "../expect.ts";
import {
  dir,
  failure,
  lines,
  openNetwork,
  podOf,
  signal,
  useScratch,
  writeList,
  writePlugin,
} from "./cni_fixture.ts";

const plugins = "/usr/lib/cni";
/** Plugins with STATUS, built from the Go module proxy (test/run). */
const newPlugins = join(import.meta.dirname, "../.cache/cni");
if (!existsSync(newPlugins))
  console.error(`skipped, ${newPlugins} is not there (no Go?): STATUS, GC`);
useScratch();

// The plugins run in a separate network namespace, so that no bridge or rule touches the node's.
describe("CniNetwork with the real plugins", () => {
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
  const wrapPlugins = (net: string, from = plugins) => {
    for (const name of ["bridge", "host-local", "portmap"]) {
      writePlugin(name, `exec nsenter --net=${net} ${from}/${name}`);
    }
  };
  beforeEach(() => wrapPlugins(node));

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
    const result = spawnSync("nsenter", [`--net=${net}`, ...argv], { timeout: 60_000 });
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

  test.each(["0.3.1", "0.4.0", "1.0.0", ...(existsSync(newPlugins) ? ["1.1.0"] : [])])(
    "a list of %s gives a pod both families and frees them, also repeatedly",
    async (version) => {
      if (version === "1.1.0") wrapPlugins(node, newPlugins);
      await withPod(async (pod) => {
        writeList(version, [bridgeConf(), portmap]);
        const cni = openNetwork();
        const [attachment] = await cni.add(pod, signal);
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
          await cni.del(pod, [attachment], signal);
          expect(leases()).toEqual([]);
          expect(rules()).not.toContain(pod.id);
          expect(inNet(pod.netnsPath, "ip", "-br", "link")).not.toContain("eth0");
        }
      });
    },
  );

  test.skipIf(!existsSync(newPlugins))(
    "plugins of 1.9 answer STATUS, and take GC without a word",
    async () => {
      wrapPlugins(node, newPlugins);
      writeList("1.1.0", [bridgeConf(), portmap]);
      const cni = openNetwork();
      expect(await cni.status()).toMatchObject({ ready: true });
      expect(
        await cni.collectGarbage(
          () => [],
          () => true,
        ),
      ).toBe(true);
      expect(lines.filter((line) => line.startsWith("warn"))).toEqual([]);
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
        const cni = openNetwork();
        const [attachment] = await cni.add({ ...pod, portMappings: [mapping] }, signal);
        const url = `http://${gateway}:18080/index.html`;
        const get = () => inNet(node, "busybox", "wget", "-qO-", url);
        await until("the server answers", () => get() === "hello from the pod");
        await cni.del(pod, [attachment], signal);
        expect(get()).not.toContain("hello");
        expect(rules()).not.toContain(pod.id);
      } finally {
        server.kill("SIGKILL");
        await ended;
      }
    });
  });

  test("DEL frees the addresses without the namespace, as after a reboot", async () => {
    await withPod(async (pod) => {
      writeList("1.0.0", [bridgeConf(), portmap]);
      const [attachment] = await openNetwork().add(pod, signal);
      await unpinNamespace(pod.netnsPath, { unlink: false });
      await openNetwork().del(pod, [attachment], signal);
      expect(leases()).toEqual([]);
    });
  });

  test("DEL undoes an ADD that failed after the bridge plugin", async () => {
    await withPod(async (pod) => {
      writePlugin("fails", '[ $CNI_COMMAND = DEL ] || { echo "out of luck"; exit 1; }');
      writeList("1.0.0", [bridgeConf(), portmap, { type: "fails" }]);
      const cni = openNetwork();
      expect(await failure(cni.add(pod, signal))).toMatchObject({
        message: expect.stringContaining("CNI plugin fails: ADD"),
      });
      expect(leases().length).toBe(2);
      await cni.del(pod, undefined, signal);
      expect(leases()).toEqual([]);
      expect(rules()).not.toContain(pod.id);
    });
  });

  test("pods that start at once on a fresh node all get their host ports", async () => {
    const fresh = join(dir, "fresh-node");
    await pinNamespaces({ net: fresh, hostname: "", sysctls: {}, signal });
    await using stack = new AsyncDisposableStack();
    stack.defer(() => unpinNamespace(fresh, { unlink: true }));
    wrapPlugins(fresh);
    writeList("1.0.0", [bridgeConf(), portmap]);
    const cni = openNetwork();
    const start = async (hostPort: number) =>
      withPod(async (pod) => {
        const mapping = { hostPort, containerPort: 80, protocol: "tcp", hostIP: "" } as const;
        const [attachment] = await cni.add({ ...pod, portMappings: [mapping] }, signal);
        expect(inNet(fresh, "iptables-save")).toContain(`--dport ${hostPort} -j DNAT`);
        await cni.del(pod, [attachment], signal);
      });
    await Promise.all([18081, 18082, 18083, 18084].map(start));
    expect(leases()).toEqual([]);
  });

  test("the plugin's message reaches the caller when addresses run out", async () => {
    await withPod(async (pod) => {
      const conf = bridgeConf();
      conf.ipam.ranges = [[{ subnet: "10.222.250.0/30" }]];
      writeList("1.0.0", [conf]);
      const cni = openNetwork();
      const [first] = await cni.add(pod, signal);
      await withPod(async (other) => {
        expect(await failure(cni.add(other, signal))).toMatchObject({
          code: "INTERNAL",
          message: expect.stringMatching(/^CNI plugin bridge: ADD .*no IP addresses available/),
        });
        await cni.del(other, undefined, signal);
      });
      await cni.del(pod, [first], signal);
      expect(leases()).toEqual([]);
    });
  });
});
