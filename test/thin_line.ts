// Measures how ten nodes pull an image from one registry behind a thin line: `bun test/thin_line.ts [--nodes 10] [--mbit 20]
// [--mib 20] [--runtime isulad-ts|containerd]`. Prints the bytes that came over the line and the time until all nodes
// have the image: each node by itself; with neighbours that serve layers (`serve-blobs`), one node before the others
// and all at once. The nodes are namespaces of this machine, and tc limits the line. Needs root, iproute2 and
// docker-registry; containerd, which cannot serve, is built from its Go module.
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { type Client, connect } from "../src/cli/client.ts";
import { runInLab } from "./cluster_lab.ts";
import { labAddress, Machine, makeLab, must, servicesOf } from "./cluster_machine.ts";
import { executable } from "./harness.ts";
import { makeImage, makeLayer, pushImage } from "./image_maker.ts";
import { buildKubernetes } from "./kubelet_node.ts";
import { removeCgroups } from "./leaks.ts";

const { values } = parseArgs({
  options: {
    nodes: { type: "string", default: "10" },
    mbit: { type: "string", default: "20" },
    mib: { type: "string", default: "20" },
    runtime: { type: "string", default: "isulad-ts" },
    inside: { type: "string" },
  },
});
const layers = 5;
const port = 5000;
const servedPort = 5010;
const startMs = 30_000;
const cache = join(import.meta.dirname, ".cache");

/** The registry's machine, at whose link the line begins. */
class Far {
  readonly machine: Machine;
  readonly host: string;

  constructor(dir: string) {
    this.machine = new Machine("registry", 0, join(dir, "registry"));
    this.host = `${this.machine.address}:${port}`;
  }

  async start(): Promise<void> {
    await this.machine.boot([]);
    const config = {
      version: 0.1,
      storage: { filesystem: { rootdirectory: "/var/lib/isulad" } },
      http: { addr: `:${port}` },
      log: { level: "error" },
    };
    this.machine.write("/etc/registry.json", JSON.stringify(config)); // which is YAML, too
    await this.machine.start("registry", ["docker-registry", "serve", "/etc/registry.json"]);
    await answers("the registry", async () => (await fetch(`http://${this.host}/v2/`)).ok);
  }

  /** Limits the line in both directions. */
  limit(mbit: string): void {
    const limit = ["root", "tbf", "rate", `${mbit}mbit`, "burst", "32kbit", "latency", "400ms"];
    this.machine.run("tc", "qdisc", "add", "dev", "eth0", ...limit);
    must("tc", ["qdisc", "add", "dev", "vregistry", ...limit]);
  }

  /** Bytes from the registry so far, with their headers. */
  get bytes(): number {
    const [link] = JSON.parse(must("ip", ["-s", "-j", "link", "show", "vregistry"])) as [
      { stats64: { rx: { bytes: number } } },
    ];
    return link.stats64.rx.bytes;
  }

  async push(tag: string): Promise<string> {
    const bytes = (Number(values.mib) << 20) / layers;
    const made = Array.from({ length: layers }, (_, index) =>
      makeLayer([{ name: `file${index}`, data: randomBytes(bytes) }]),
    );
    await pushImage({ registry: `http://${this.host}`, repository: "edge" }, tag, makeImage(made));
    return `${this.host}/edge:${tag}`;
  }
}

class Node {
  readonly machine: Machine;

  constructor(dir: string, index: number) {
    this.machine = new Machine(`node${index}`, index, join(dir, `node${index}`));
  }

  async start(far: Far, neighbours: Node[]): Promise<void> {
    const { machine } = this;
    await machine.boot([]);
    const others = neighbours.map(
      ({ machine }) => `[host."http://${machine.address}:${servedPort}"]
  capabilities = ["pull"]
  dial_timeout = "1s"
`,
    );
    const hosts = `server = "http://${far.host}"\n${others.join("")}`;
    machine.write(`/etc/containerd/certs.d/${far.host}/hosts.toml`, hosts);
    const served = {
      "keep-blobs": true,
      "serve-blobs": `${machine.address}:${servedPort}`,
      "serve-blobs-clients": [`${labAddress}/24`.replace(/\d+\/24$/, "0/24")],
    };
    const config = {
      hosts: ["unix:///run/isulad.sock"],
      graph: "/var/lib/isulad",
      state: "/run/isulad",
      pidfile: "/run/isulad.pid",
      "insecure-registries": [far.host],
      "registry-config-path": "/etc/containerd/certs.d",
      ...(neighbours.length > 0 && served),
    };
    machine.write("/etc/isulad/daemon.json", JSON.stringify(config));
    const toml = `version = 3\noom_score = 0\n[grpc]\n  address = "/run/isulad.sock"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "/etc/containerd/certs.d"\n`;
    machine.write("/etc/containerd/config.toml", toml);
    await machine.start("daemon", daemonArgv());
    await answers(machine.name, async () => {
      using client = this.client();
      return (await client.Version({}, { timeoutMs: 1000 })).version !== "";
    });
  }

  client(): Client {
    return connect(`unix://${this.machine.path("/run/isulad.sock")}`);
  }

  async pull(image: string): Promise<string> {
    using client = this.client();
    await client.PullImage({ image: { image } }, { timeoutMs: 0 });
    const { image: found } = await client.ImageStatus({ image: { image } });
    return found!.id!;
  }
}

function daemonArgv(): string[] {
  if (values.runtime === "isulad-ts") return [executable, "--config", "/etc/isulad/daemon.json"];
  return [join(buildKubernetes(cache, ["containerd"]), "containerd")];
}

async function answers(what: string, asked: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + startMs;
  for (;;) {
    if (await asked().catch(() => false)) return;
    if (performance.now() > end) throw new Error(`${what} does not answer`);
    await sleep(100);
  }
}

type Way = { name: string; serve: boolean; oneFirst: boolean };

const ways: Way[] = [
  { name: "each by itself", serve: false, oneFirst: false },
  { name: "neighbours serve, one node first", serve: true, oneFirst: true },
  { name: "neighbours serve, all at once", serve: true, oneFirst: false },
];

async function pullAll(way: Way, far: Far, dir: string): Promise<void> {
  const nodes = Array.from(
    { length: Number(values.nodes) },
    (_, index) => new Node(dir, index + 1),
  );
  for (const [index, node] of nodes.entries()) {
    // Each asks its next neighbour first.
    const others = [...nodes.slice(index + 1), ...nodes.slice(0, index)];
    await node.start(far, way.serve ? others : []);
  }
  const image = `${far.host}/edge:1`;
  const before = far.bytes;
  const startMs = performance.now();
  const first = way.oneFirst ? [await nodes[0]!.pull(image)] : [];
  const rest = nodes.slice(first.length).map((node) => node.pull(image));
  const ids = new Set([...first, ...(await Promise.all(rest))]);
  const seconds = (performance.now() - startMs) / 1000;
  if (ids.size !== 1) throw new Error(`the nodes have ${[...ids].join(", ")}`);
  const mib = (far.bytes - before) / (1 << 20);
  const size = (mib / Number(values.mib)).toFixed(2);
  console.log(
    `${way.name}: ${mib.toFixed(1)} MiB over the line (${size} times the image), all nodes have it after ${seconds.toFixed(1)} s`,
  );
  for (const { machine } of nodes) await machine.cut();
}

async function inside(dir: string): Promise<void> {
  makeLab();
  const far = new Far(dir);
  await far.start();
  await far.push("1");
  far.limit(values.mbit);
  console.log(`${values.nodes} nodes, ${values.mib} MiB, ${values.mbit} Mbit/s, ${values.runtime}`);
  const possible = values.runtime === "isulad-ts" ? ways : ways.filter(({ serve }) => !serve);
  for (const [index, way] of possible.entries()) await pullAll(way, far, join(dir, String(index)));
  await far.machine.cut();
}

/** For a run that was interrupted. */
function removeServices(dir: string): void {
  for (const way of ways.keys())
    for (let index = 1; index <= Number(values.nodes); index++)
      removeCgroups(servicesOf(join(dir, String(way), `node${index}`)));
  removeCgroups(servicesOf(join(dir, "registry")));
}

if (import.meta.main) {
  if (values.inside === undefined) {
    daemonArgv(); // builds what lacks
    process.exitCode = await runInLab("thin-line", removeServices);
  } else await inside(values.inside);
}
