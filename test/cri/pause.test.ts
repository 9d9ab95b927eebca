// Tests pods with one pid namespace: the built-in init needs no image.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readlinkSync } from "node:fs";
import { runtime } from "../../src/proto/messages.js";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const { NamespaceMode, PodSandboxState } = runtime.v1;
const namespace_options = { network: NamespaceMode.NODE, pid: NamespaceMode.POD };

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  await daemon.exec(id, "true"); // what the first one of each leaves for the next ones is no leak
  await daemon.removePod(podId);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

function sharingPod() {
  const config = daemon.hostPodConfig();
  return { ...config, linux: { security_context: { namespace_options } } };
}

test("containers see each other's processes, and the init reaps what loses its parent", async () => {
  const before = daemon.snapshot();
  const pod = sharingPod();
  const podId = await daemon.runPod(pod);
  await daemon.run(podId, pod, ["sleep", "1234"]);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const ps = async () => (await daemon.exec(id, "ps -o pid,ppid,stat,args")).stdout;
  // A container that has been started may still be the OCI runtime's process.
  await until("both programs run", async () => {
    const now = await ps();
    return /^\s*1\s+0 SN?\s+\/pause$/m.test(now) && now.includes("sleep 1234");
  });
  // Their parent is gone at once; they end together, so that one SIGCHLD stands for several.
  const orphans = "for i in 1 2 3 4; do (sleep 4321 & sleep 4321 &); done >/dev/null 2>&1";
  await daemon.exec(id, orphans);
  await until(
    "all are the init's children",
    async () => (await ps()).match(/^\s*\d+\s+1 SN?\s+sleep 4321$/gm)?.length === 8,
  );
  await daemon.exec(id, `kill $(ps -o pid,args | awk '/sleep 4321$/ { print $1 }')`);
  await until("no zombies", async () => !/sleep 4321|\bZ\b|\[sleep\]/.test(await ps()));
  const { images } = await daemon.client.ListImages({});
  expect(images).toHaveLength(1); // busybox
  await daemon.removePod(podId);
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("it works under the default seccomp profile, as kubelets ask for", async () => {
  const pod = sharingPod();
  const seccomp = { profile_type: runtime.v1.SecurityProfile.ProfileType.RuntimeDefault };
  const podId = await daemon.runPod({
    ...pod,
    linux: { security_context: { namespace_options, seccomp } },
  });
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const { stdout } = await daemon.exec(id, "(sleep 0.1 &); grep Seccomp: /proc/1/status");
  expect(stdout).toBe("Seccomp:\t2\n");
  const ps = async () => (await daemon.exec(id, "ps -o stat,args")).stdout;
  await until("the orphan is reaped", async () => !/^Z|sleep 0.1/m.test(await ps()));
  await daemon.removePod(podId);
});

test("it needs no rights: any user, no capability, and a TERM from within ends the pod", async () => {
  const pod = sharingPod();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const status = (await daemon.exec(id, "cat /proc/1/status")).stdout;
  expect(status).toMatch(/^Uid:\t65535\t65535/m);
  expect(status).toMatch(/^CapBnd:\t0+$/m);
  expect(status).toMatch(/^NoNewPrivs:\t1$/m);
  await daemon.exec(id, "kill -TERM 1").catch(() => {}); // it ends with the pod, perhaps before its answer
  await until("its sandbox is NOTREADY", async () => {
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    return status!.state === PodSandboxState.SANDBOX_NOTREADY;
  });
  await daemon.removePod(podId);
});

// CRI's default for absent options is POD, the enum's zero value, for pods and containers alike.
describe("namespace options that are absent, empty or given", () => {
  const { POD, CONTAINER, NODE } = NamespaceMode;
  const network = NODE;
  type Options = { network: runtime.v1.NamespaceMode; pid?: runtime.v1.NamespaceMode };
  const options: Record<string, Options | undefined> = {
    absent: undefined,
    empty: { network },
    POD: { network, pid: POD },
    CONTAINER: { network, pid: CONTAINER },
    NODE: { network, pid: NODE },
  };
  const linux = (name: string) => ({ security_context: { namespace_options: options[name] } });
  const pidNamespace = (pid: number | string) => readlinkSync(`/proc/${pid}/ns/pid`);

  /** Of a pod and, in it, of containers by their options. */
  test.each<[string, Record<string, string>]>([
    ["absent", { absent: "pod", empty: "pod", POD: "pod", CONTAINER: "own", NODE: "node" }],
    ["empty", { absent: "pod", empty: "pod", CONTAINER: "own" }],
    ["POD", { absent: "pod", POD: "pod", NODE: "node" }],
    ["CONTAINER", { absent: "own", CONTAINER: "own", POD: "refused", NODE: "node" }],
    ["NODE", { absent: "node", empty: "node", POD: "node", CONTAINER: "own" }],
  ])("a pod: %s, containers: %j", async (ofPod, containers) => {
    const pod = { ...daemon.hostPodConfig(), linux: linux(ofPod) };
    const podId = await daemon.runPod(pod);
    const { info } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId, verbose: true });
    const { pid } = JSON.parse(info["info"]!) as { pid?: number };
    const known = {
      [pidNamespace("self")]: "node",
      ...(pid ? { [pidNamespace(pid)]: "pod" } : {}),
    };
    for (const [own, expected] of Object.entries(containers)) {
      const running = daemon.run(podId, pod, ["sleep", "600"], { linux: linux(own) });
      if (expected === "refused") {
        const { code, message } = await failure(running);
        expect(`${code}: ${message}`).toMatch(/^FAILED_PRECONDITION: .*pid mode POD/);
        continue;
      }
      const id = await running;
      const seen = known[pidNamespace(await daemon.pidOf(id))] ?? "own";
      expect(`${own}: ${seen}`).toBe(`${own}: ${expected}`);
    }
    await daemon.removePod(podId);
  });
});
