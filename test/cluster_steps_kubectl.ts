// Runs kubectl's streams against each node of the test cluster: port-forward, exec, cp, logs and debug.
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { join } from "node:path";
import { must } from "./cluster_machine.ts";
import {
  type Cluster,
  eventually,
  expect,
  inNamespace,
  pod,
  type PodRow,
  readiness,
  readyPods,
} from "./cluster_pods.ts";
import { sha256 } from "./image_maker.ts";

/** Runs a part of a step for a pod on each node. */
function onEachNode(
  cluster: Cluster,
  namespace: string,
  part: (pod: PodRow) => Promise<string>,
  script?: string,
): Promise<string> {
  return inNamespace(cluster, namespace, async () => {
    const { control, nodes } = cluster;
    const probed = script === undefined ? { container: readiness } : { script };
    for (const { name } of nodes)
      await control.apply(
        pod(cluster, { name: `on-${name}`, namespace }, { node: name, ...probed }),
      );
    const pods = await readyPods(cluster, namespace, nodes.length);
    const results: string[] = [];
    for (const one of pods) results.push(`${one.node} ${await part(one)}`);
    return results.join(", ");
  });
}

const bytes = randomBytes(3 << 20);

/** Runs a command with binary input in a pod and returns its output. */
async function execBytes(cluster: Cluster, words: string[], input: Buffer): Promise<Buffer> {
  const child = spawn(cluster.control.kubectlPath, [...cluster.control.flags, ...words]);
  const chunks: Buffer[] = [];
  let errors = "";
  child.stdout.on("data", (chunk: Buffer) => chunks.push(chunk));
  child.stderr.on("data", (chunk: Buffer) => (errors += chunk.toString()));
  child.stdin.end(input);
  const timer = setTimeout(() => child.kill("SIGKILL"), 120_000);
  const code = await new Promise((resolve) => child.once("close", resolve));
  clearTimeout(timer);
  expect(code === 0, `kubectl ${words.join(" ")} ended with ${String(code)}: ${errors}`);
  return Buffer.concat(chunks);
}

/** Passes bytes both ways and exit codes. */
export function exec(cluster: Cluster): Promise<string> {
  const namespace = "exec";
  return onEachNode(cluster, namespace, async ({ name }) => {
    const words = ["-n", namespace, "exec", name];
    const back = await execBytes(cluster, [...words, "-i", "--", "cat"], bytes);
    expect(back.equals(bytes), `${back.length} of ${bytes.length} bytes came back from ${name}`);
    const fails = [...words, "--", "sh", "-c", "echo e >&2; exit 7"];
    const failed = await cluster.control.tryKubectl(fails);
    expect(failed.code === 7, `exit 7 of ${name} is ${failed.code}: ${failed.stderr}`);
    expect(failed.stderr.startsWith("e\n"), `standard error of ${name} is ${failed.stderr}`);
    const { kubectlPath, flags } = cluster.control;
    const typed = [kubectlPath, ...flags, ...words, "-it", "--", "tty"].join(" ");
    // kubectl asks for a terminal only where it has one.
    const tty = must("script", ["-qefc", typed, "/dev/null"]);
    expect(tty.includes("/dev/pts/0"), `the terminal of ${name} printed ${tty}`);
    return "3 MiB, exit code, tty";
  });
}

/** Copies a file into a pod and back by tar. */
export function copy(cluster: Cluster): Promise<string> {
  const namespace = "copy";
  return onEachNode(cluster, namespace, async ({ name }) => {
    const [there, back] = [join(cluster.dir, "copy"), join(cluster.dir, "copy.back")];
    writeFileSync(there, bytes);
    await cluster.control.kubectl(["-n", namespace, "cp", there, `${name}:/tmp/copy`]);
    const sum = await cluster.control.kubectl([
      "-n",
      namespace,
      "exec",
      name,
      "--",
      "sha256sum",
      "/tmp/copy",
    ]);
    expect(`sha256:${sum.split(" ")[0]}` === sha256(bytes), `${name} has ${sum}`);
    await cluster.control.kubectl(["-n", namespace, "cp", `${name}:/tmp/copy`, back]);
    expect(readFileSync(back).equals(bytes), `the copy from ${name} differs`);
    return "3 MiB both ways";
  });
}

/** Follows a log until its container ends; the previous container's log stays readable. */
export function logs(cluster: Cluster): Promise<string> {
  const namespace = "logs";
  const script =
    "until [ -e /go ]; do usleep 100000; done; i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); usleep 10000; done; sleep 1; exit 1";
  return onEachNode(
    cluster,
    namespace,
    async ({ name }) => {
      const { control } = cluster;
      await control.kubectl(["-n", namespace, "exec", name, "--", "touch", "/go"]);
      const followed = await control.kubectl(["-n", namespace, "logs", "-f", name]);
      const lines = followed.trimEnd().split("\n");
      expect(lines.length === 500, `logs -f of ${name} has ${lines.length} lines`);
      expect(
        lines.every((line, index) => line === `line ${index}`),
        `lines of ${name} are mixed`,
      );
      await eventually("its previous log is there", async () => {
        const previous = await control.kubectl(["-n", namespace, "logs", "--previous", name]);
        return previous.trimEnd().split("\n").length === 500;
      });
      const tail = await control.kubectl(["-n", namespace, "logs", "--previous", "--tail=2", name]);
      expect(tail === "line 498\nline 499\n", `the tail of ${name} is ${tail}`);
      return "500 lines";
    },
    script,
  );
}

/** Adds an ephemeral container that sees the processes of the pod's container. */
export function debug(cluster: Cluster): Promise<string> {
  const namespace = "debug";
  return onEachNode(cluster, namespace, async ({ name }) => {
    const { control, image } = cluster;
    const words = ["debug", name, `--image=${image}`, "--target=app", "--container=debugger"];
    const script = "ps | grep -c '[h]ttpd -f'; wget -qO- localhost:8080; sleep 3";
    await control.kubectl(["-n", namespace, ...words, "--", "sh", "-c", script]);
    let text = "";
    await eventually("the ephemeral container printed", async () => {
      text = await control.kubectl(["-n", namespace, "logs", name, "-c", "debugger"]);
      return text.includes(name);
    });
    expect(/^[1-9]/.test(text), `the debugger of ${name} does not see httpd: ${text}`);
    type Statuses = {
      status: { ephemeralContainerStatuses: { state: { terminated?: { exitCode: number } } }[] };
    };
    await eventually("the ephemeral container ended", async () => {
      const path = `/api/v1/namespaces/${namespace}/pods/${name}`;
      const { status } = await control.get<Statuses>(path);
      return status.ephemeralContainerStatuses[0]?.state.terminated?.exitCode === 0;
    });
    return "sees the processes and the network";
  });
}

/** Forwards a port: requests in sequence and at once. */
export function portForward(cluster: Cluster): Promise<string> {
  const namespace = "forward";
  return onEachNode(cluster, namespace, async ({ name }) => {
    const { control } = cluster;
    const words = ["-n", namespace, "port-forward", name, ":8080"];
    const child = spawn(control.kubectlPath, [...control.flags, ...words]);
    try {
      let output = "";
      child.stdout.on("data", (chunk: Buffer) => (output += chunk.toString()));
      child.stderr.on("data", (chunk: Buffer) => (output += chunk.toString()));
      const port = () => Number(/127\.0\.0\.1:(\d+) ->/.exec(output)?.[1] ?? 0);
      await eventually("kubectl forwards", () => Promise.resolve(port() > 0), 60_000);
      const get = async () => {
        const answer = await fetch(`http://127.0.0.1:${port()}/`, { keepalive: false });
        const text = await answer.text();
        expect(text.trim() === name, `${name} answered ${text}`);
      };
      for (let count = 0; count < 20; count++) await get();
      await Promise.all(Array.from({ length: 20 }, get));
      await connectAndClose(port());
      await get();
      return "40 requests";
    } finally {
      child.kill("SIGKILL");
    }
  });
}

/** Opens a connection and resets it, which must not end the others. */
function connectAndClose(port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host: "127.0.0.1", port }, () => {
      socket.resetAndDestroy();
      resolve();
    });
    socket.once("error", reject);
  });
}
