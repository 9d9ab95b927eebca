// Tests runtime handlers: the settings of each reach its pods and containers, and Status reports them.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import { processLimit } from "../../src/sys/process.ts";
import { failure } from "../expect.ts";
import { type Daemon, ociRuntime, startDaemon } from "../harness.ts";
import { freeSubnet } from "../host.ts";

const path = ociRuntime;
const folder = mkdtempSync(join(tmpdir(), "isulad-handlers-"));
const file = (name: string) => join(folder, name);
const wrapper = file("wrapper");
// Where the daemon looks for it too (base/config_host.ts).
const realRuntime = Bun.which(ociRuntime, {
  PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
});
const [subnet, second] = [freeSubnet(), freeSubnet()];

let daemon: Daemon;
beforeAll(async () => {
  writeHook();
  const base = {
    process: {
      rlimits: [
        { type: "RLIMIT_NOFILE", soft: 321, hard: 654 },
        { type: "RLIMIT_STACK", soft: 4 << 20, hard: 5 << 20 },
      ],
      env: ["BASE=here"],
    },
    mounts: [{ destination: "/scratch", type: "tmpfs", source: "tmpfs", options: ["size=64k"] }],
    hooks: { createRuntime: [{ path: file("hook"), args: ["hook", file("hooked")] }] },
  };
  writeFileSync(file("base.json"), JSON.stringify(base));
  writeNetwork("cni", "elsewhere", subnet);
  writeNetwork("two", "first", subnet);
  writeNetwork("two", "second", second);
  writeWrapper('{"mountOptions":["rro"]}');
  const annotations = ["test.example.*"];
  const runtimes = {
    based: { path, "base-runtime-spec": file("base.json") },
    open: { path, "pod-annotations": annotations, "container-annotations": annotations },
    shut: { path, "privileged-without-host-devices": true },
    elsewhere: { path, "cni-conf-dir": file("cni") },
    both: { path, "cni-conf-dir": file("two"), "cni-max-conf-num": 2 },
    one: { path, "cni-conf-dir": file("two") },
    given: { path, "runtime-options": { IoUid: 1000, IoGid: 1001 } },
    opens: {
      path,
      "privileged-without-host-devices": true,
      "privileged-without-host-devices-all-devices-allowed": true,
    },
    wrapped: { path: wrapper, "runtime-args": ["--from-daemon-json"] },
    absent: { "runtime-type": "io.containerd.kata.v2", "runtime-path": file("shim") },
  };
  const aliases = { alias: "based", untrusted: "based" };
  daemon = await startDaemon({ config: { runtimes, "cri-runtimes": aliases } });
});
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  rmSync(folder, { recursive: true, force: true });
});

function writeProgram(name: string, text: string): void {
  writeFileSync(`${file(name)}.new`, text);
  chmodSync(`${file(name)}.new`, 0o755);
  renameSync(`${file(name)}.new`, file(name));
}

/** An OCI hook gets the container's state as JSON. */
function writeHook(): void {
  writeProgram("hook", "#!/bin/sh\ncat >> $1\n");
}

/** The real runtime with other features; it requires its own argument. */
function writeWrapper(features: string): void {
  const text = `#!/bin/sh
[ "$1" = --from-daemon-json ] || exit 9
shift
[ "$1" = features ] || exec ${realRuntime} "$@"
echo asked >> ${file("asked")}
echo '${features}'
`;
  writeProgram("wrapper", text);
}

/** A network without a bridge, which would outlive the test. */
function writeNetwork(conf: string, name: string, range: string): void {
  mkdirSync(file(conf), { recursive: true });
  const ipam = {
    type: "host-local",
    dataDir: file("ipam"),
    ranges: [[{ subnet: `${range}.0/24` }]],
  };
  const list = { cniVersion: "1.0.0", name, plugins: [{ type: "ptp", ipam }] };
  writeFileSync(join(file(conf), `10-${name}.conflist`), JSON.stringify(list));
}

/** Runs a script in a pod of the handler. */
async function output(
  handler: string,
  command: string,
  {
    pod = daemon.hostPodConfig(),
    config,
  }: { pod?: PodSandboxConfig; config?: ContainerConfig } = {},
) {
  const podId = await daemon.runPod(pod, handler);
  try {
    const { id, text } = await daemon.output(podId, pod, command, config);
    const { info } = await daemon.client.ContainerStatus({ container_id: id, verbose: true });
    const { runtimeSpec } = JSON.parse(info["info"]!) as { runtimeSpec: Record<string, object> };
    return { text, spec: runtimeSpec };
  } finally {
    await daemon.removePod(podId);
  }
}

const rroMounts = [
  { container_path: "/m", host_path: "/tmp", readonly: true, recursive_read_only: true },
];

function inUserNamespace(pod: PodSandboxConfig): PodSandboxConfig {
  const ids = [{ host_id: 1_000_000, container_id: 0, length: 65_536 }];
  const userns_options = { mode: runtime.v1.NamespaceMode.POD, uids: ids, gids: ids };
  return { ...pod, linux: { security_context: { namespace_options: { userns_options } } } };
}

async function featuresOf(handler: string) {
  const { runtime_handlers } = await daemon.client.Status({});
  return runtime_handlers.find(({ name }) => name === handler)?.features;
}

test.each(["based", "alias"])("%s starts its containers from the base spec", async (handler) => {
  rmSync(file("hooked"), { force: true });
  const script = "ulimit -Sn; ulimit -Hn; echo $BASE $OWN; grep -c ' /scratch tmpfs ' /proc/mounts";
  const envs = [{ key: "OWN", value: Buffer.from("too") }];
  const { text } = await output(handler, script, { config: { envs } });
  expect(text).toBe("321\n654\nhere too\n1\n");
  expect(readFileSync(file("hooked"), "utf8")).toContain('"status":"creat');
  // Without a base spec: the usual soft limit, though the engine has raised the daemon's to the hard one.
  const { hard } = processLimit(daemon.pid, "open files")!;
  const usual = await output("", "ulimit -Sn; ulimit -Hn; echo x$BASE");
  expect(usual.text).toBe(`${Math.min(1_024, hard)}\n${hard}\nx\n`);
});

// Not RLIMIT_NOFILE: the exec of runc before 1.2 sets it amid its own changes of it (runc's issue 4195).
test("exec is subject to the base spec's limits too", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod, "based");
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  const { stdout } = await daemon.exec(id, "ulimit -Ss; ulimit -Hs; echo $BASE");
  expect(stdout).toBe("4096\n5120\nhere\n");
  await daemon.removePod(podId);
});

test("only annotations that the handler allows reach the runtime; CRI keeps them all", async () => {
  const annotations = { "test.example.a": "1", "test.example.b/c": "2", other: "3" };
  const pod: PodSandboxConfig = { ...daemon.hostPodConfig(), annotations };
  const config = { annotations: { "test.example.own": "4", another: "5" } };
  const { spec } = await output("open", "true", { pod, config });
  expect(spec["annotations"]).toMatchObject({ "test.example.a": "1", "test.example.own": "4" });
  for (const key of ["test.example.b/c", "other", "another"]) {
    expect(spec["annotations"]).not.toHaveProperty([key]);
  }
  const closed = await output("", "true", { pod: { ...daemon.hostPodConfig(), annotations } });
  expect(closed.spec["annotations"]).not.toHaveProperty(["test.example.a"]);
});

test("privileged without the host's devices: capabilities, but /dev as any container's", async () => {
  const privileged = (pod: PodSandboxConfig) => {
    const { namespace_options } = pod.linux!.security_context!;
    return { linux: { security_context: { privileged: true, namespace_options } } };
  };
  const run = async (handler: string) => {
    const pod = daemon.hostPodConfig();
    const config = privileged(pod);
    const script = "ls /dev; grep CapEff /proc/self/status";
    return (await output(handler, script, { pod: { ...pod, ...config }, config })).text;
  };
  const [all, few] = [await run(""), await run("shut")];
  const plain = (await output("", "ls /dev")).text;
  expect(few).toStartWith(plain);
  expect(all.length).toBeGreaterThan(few.length);
  expect(few.match(/CapEff.*/)).toEqual(all.match(/CapEff.*/));
});

test("a privileged container without the host's devices opens others only where the handler allows all", async () => {
  const pod = daemon.hostPodConfig();
  const { namespace_options } = pod.linux!.security_context!;
  const config = { linux: { security_context: { privileged: true, namespace_options } } };
  const script = "mknod /made c 1 11 && : < /made && echo opened";
  const run = async (handler: string) =>
    (await output(handler, script, { pod: { ...pod, ...config }, config })).text;
  expect(await run("opens")).toBe("opened\n");
  expect(await run("shut")).toContain("can't open /made");
});

// IoUid is seen by the runtime alone: runc gives the streams to the container's user.
test("the streams of a container belong to the handler's group", async () => {
  const script = "stat -L -c '%u %g' /proc/self/fd/1";
  expect((await output("given", script)).text).toBe("0 1001\n");
  expect((await output("", script)).text).toBe("0 0\n");
});

test("a handler's pods are on as many networks as it says", async () => {
  const interfaces = async (handler: string) =>
    (await output(handler, "ls /sys/class/net", { pod: daemon.podConfig() })).text.split("\n");
  expect(await interfaces("both")).toEqual(["eth0", "eth1", "lo", ""]);
  expect(await interfaces("one")).toEqual(["eth0", "lo", ""]);
});

test("a handler's pods are on its own network", async () => {
  const before = daemon.snapshot();
  const pod = daemon.podConfig();
  const { text } = await output("elsewhere", "ip -4 -o addr show dev eth0", { pod });
  expect(text).toContain(` ${subnet}.`);
  expect(await daemon.leaksSince(before)).toEqual([]);
  rmSync(join(file("cni"), "10-elsewhere.conflist"));
  const error = await failure(daemon.runPod(daemon.podConfig(), "elsewhere"));
  expect(error.code).toBe("UNAVAILABLE");
  expect(error.message).toContain(file("cni"));
  const { status } = await daemon.client.Status({});
  expect(status!.conditions!.find(({ type }) => type === "NetworkReady")!.status).toBe(true);
});

test("Status reports each runtime's features, and detects them again when the runtime is replaced", async () => {
  const asked = () => readFileSync(file("asked"), "utf8").split("\n").length - 1;
  expect(await featuresOf("wrapped")).toMatchObject({ recursive_read_only_mounts: true });
  await featuresOf("wrapped");
  expect(asked()).toBe(1);
  writeWrapper('{"mountOptions":["ro"]}');
  const [first] = await Promise.all([featuresOf("wrapped"), featuresOf("wrapped")]);
  expect(first?.recursive_read_only_mounts ?? false).toBe(false);
  expect(asked()).toBe(2);
  const { text } = await output("wrapped", "echo runs");
  expect(text).toBe("runs\n");
  const { features } = await daemon.client.Status({});
  expect(features).toMatchObject({ supplemental_groups_policy: true, mount_options: true });
});

test("a mount that only the replaced runtime supported is refused, as Status says", async () => {
  writeWrapper('{"mountOptions":[]}');
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod, "wrapped");
  const error = await failure(daemon.create(podId, pod, "true", { mounts: rroMounts }));
  expect(error.message).toStartWith('RROUnsupported: mount at "/m"');
  writeWrapper('{"mountOptions":["rro"]}');
  await daemon.create(podId, pod, "true", { mounts: rroMounts });
  await daemon.removePod(podId);
});

test("a runtime with unparsable features has none, and still works", async () => {
  writeWrapper("nonsense");
  const features = await featuresOf("wrapped");
  expect(features?.recursive_read_only_mounts ?? false).toBe(false);
  expect(daemon.log).toContain("features failed, retrying in 5 s");
  expect((await output("wrapped", "echo runs")).text).toBe("runs\n");
});

test("what may need a feature is refused as UNAVAILABLE while the features are not known", async () => {
  writeWrapper("nonsense");
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod, "wrapped");
  const refused = [
    await failure(daemon.create(podId, pod, "true", { mounts: rroMounts })),
    await failure(daemon.runPod(inUserNamespace(daemon.podConfig()), "wrapped")),
  ];
  for (const { code, message } of refused) {
    expect(code).toBe("UNAVAILABLE");
    expect(message).toContain("not known, try again: OCI runtime: ");
  }
});

test("a runtime that never tells its features delays its own pods, not the start", async () => {
  const failures = () => daemon.log.split(`${wrapper} --from-daemon-json features failed`).length;
  writeProgram("wrapper", "#!/bin/sh\nexec sleep 60\n");
  let before = Number.NaN;
  // A probe ends after 5 s; on a loaded machine one of several starts will be quicker.
  for (let tries = 0; tries < 5 && failures() !== before; tries++) {
    await daemon.stop();
    before = failures();
    await daemon.start();
    expect((await output("based", "echo runs")).text).toBe("runs\n");
  }
  expect(failures()).toBe(before);
  expect((await featuresOf("wrapped"))?.recursive_read_only_mounts ?? false).toBe(false);
  expect(failures()).toBe(before + 1);
});

test("each handler is listed, the default one also under an empty name", async () => {
  const { runtime_handlers } = await daemon.client.Status({});
  const names = runtime_handlers.map(({ name }) => name);
  expect(names).toContain("");
  for (const name of ["runc", "based", "alias", "open", "shut", "elsewhere", "wrapped"]) {
    expect(names.filter((one) => one === name)).toEqual([name]);
  }
});

test("a pod with the annotation of untrusted workloads has the handler untrusted, also after a restart", async () => {
  const annotations = { "io.kubernetes.cri.untrusted-workload": "true" };
  const refused = await failure(daemon.runPod({ ...daemon.hostPodConfig(), annotations }));
  expect([refused.code, refused.message.includes("(network")]).toEqual(["INVALID_ARGUMENT", true]);
  const pod: PodSandboxConfig = { ...daemon.podConfig(), annotations };
  const podId = await daemon.runPod(pod);
  await daemon.restart();
  const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
  expect(status!.runtime_handler).toBe("untrusted");
  const { text } = await daemon.output(podId, pod, "ulimit -Sn");
  expect(text).toBe("321\n");
  await daemon.removePod(podId);
});

test("a handler whose shim is missing is reported at the start, refused on use, and shown", async () => {
  const missing = `there is no executable ${file("shim")}: install Kata Containers`;
  expect(daemon.log).toContain(missing);
  const error = await failure(daemon.runPod(daemon.podConfig(), "absent"));
  expect(error.code).toBe("FAILED_PRECONDITION");
  expect(error.message).toStartWith(`runtime handler "absent" cannot be used: ${missing}`);
  const { info } = await daemon.client.Status({ verbose: true });
  const handlers = JSON.parse(info["handlers"]!) as Record<string, object>;
  expect(handlers["absent"]).toMatchObject({
    kind: "shim",
    type: "io.containerd.kata.v2",
    sandboxed: true,
    problem: expect.stringContaining(missing),
  });
  expect(handlers["based"]).toMatchObject({ kind: "oci", sandboxed: false, default: false });
});

test("a handler removed from daemon.json: its pods keep running and can be removed", async () => {
  const named = { runtimes: { ours: { path } } };
  await using own = await startDaemon({ network: false });
  own.writeConfig(named);
  await own.restart();
  const before = own.snapshot();
  const pod = own.hostPodConfig();
  const { network } = pod.linux!.security_context!.namespace_options!;
  const sharing = { namespace_options: { network, pid: runtime.v1.NamespaceMode.POD } };
  const podId = await own.runPod({ ...pod, linux: { security_context: sharing } }, "ours");
  const id = await own.run(podId, { linux: { security_context: sharing } }, ["sleep", "600"]);
  const idle = await own.create(podId, { linux: { security_context: sharing } }, "true");
  own.writeConfig();
  await own.restart();
  const started = own.client.StartContainer({ container_id: idle });
  expect((await failure(started)).message).toContain('"ours"');
  await own.client.RemoveContainer({ container_id: idle });
  expect((await own.exec(id, "echo on")).stdout).toBe("on\n");
  expect((await failure(own.runPod(own.hostPodConfig(), "ours"))).message).toContain('"ours"');
  await own.removePod(podId);
  const left = await own.leaksSince(before);
  expect(left.filter((leak) => !leak.startsWith("descriptor:"))).toEqual([]);
});

test.each([
  ["that is not there", undefined, "ENOENT"],
  ["that is no JSON", "{", "is not JSON"],
  ["that is no spec", '{"mounts":[{}]}', "mounts.0.destination"],
])("a base spec %s stops the start", async (_, content, message) => {
  const path = file("bad.json");
  rmSync(path, { force: true });
  if (content !== undefined) writeFileSync(path, content);
  const runtimes = { bad: { path: ociRuntime, "base-runtime-spec": path } };
  const error: unknown = await startDaemon({ config: { runtimes }, network: false }).catch(
    (error: unknown) => error,
  );
  expect(String(error)).toContain(`"runtimes.bad.base-runtime-spec" ${path}: `);
  expect(String(error)).toContain(message);
  expect(existsSync(path)).toBe(content !== undefined);
});
