// Sets up a pod without the daemon: a busybox root, pinned namespaces, a cgroup and the OCI runtime. Disposal
// removes everything.
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { type CgroupDriver, cgroupMounts } from "../../src/node/cgroup.ts";
import { cgroupfsDriver } from "../../src/node/cgroupfs.ts";
import { lookupContainer } from "../../src/node/container_lookup.ts";
import { readHostInfo } from "../../src/node/host_probe.ts";
import { pinNamespaces, unpinNamespace } from "../../src/node/namespaces.ts";
import { systemdDriver } from "../../src/node/systemd.ts";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import type { ImageProcess, SandboxInfo } from "../../src/spec/spec_inputs.ts";
import {
  containerSpec,
  ociJson,
  type OciProcess,
  type OciSpec,
  sandboxSpec,
} from "../../src/spec/oci.ts";
import { noSettings } from "../spec/inputs.ts";

const runtimeProgram = process.env["ISULAD_TEST_RUNTIME"] ?? "runc";

/** The reason why containers cannot run on this machine, or "". */
export function cannotRun(): string {
  if (process.getuid!() !== 0) return "needs root";
  if (spawnSync(runtimeProgram, ["--version"]).status !== 0) return `needs ${runtimeProgram}`;
  return existsSync("/bin/busybox") ? "" : "needs busybox-static";
}

const applets =
  "sh mkdir ls cat id env sleep mount stat grep hostname unshare touch readlink dd tail chroot ps wc ip";

export type Ended = { exitCode: number; stdout: string; stderr: string };

export class Pod implements AsyncDisposable {
  readonly dir = mkdtempSync(join(tmpdir(), "isulad-spec-"));
  readonly id: string;
  readonly driver: CgroupDriver;
  readonly sandbox: SandboxInfo;
  readonly rootfs: string;
  #made: string | undefined;
  #containers: string[] = [];

  private constructor(config: PodSandboxConfig) {
    this.id = this.dir.slice(-6).toLowerCase() + process.pid.toString(16);
    this.rootfs = join(this.dir, "rootfs");
    const mounts = cgroupMounts();
    this.driver =
      process.env["ISULAD_CGROUP_DRIVER"] === "systemd"
        ? systemdDriver(mounts, "")
        : cgroupfsDriver(mounts, `/isulad-spec-test-${this.id}`);
    const file = (name: string) => join(this.dir, name);
    this.sandbox = {
      id: this.id,
      config,
      namespaces: { net: file("net"), ipc: file("ipc"), uts: file("uts") },
      files: {
        hosts: file("hosts"),
        hostname: file("hostname"),
        resolvConf: file("resolv.conf"),
        shm: file("shm"),
      },
    };
  }

  static async start(config: PodSandboxConfig = {}): Promise<Pod> {
    const pod = new Pod(config);
    const { namespaces, files } = pod.sandbox;
    chmodSync(pod.dir, 0o711);
    for (const folder of "bin etc proc sys dev tmp srv".split(" ")) {
      mkdirSync(join(pod.rootfs, folder), { recursive: true });
    }
    copyFileSync("/bin/busybox", join(pod.rootfs, "bin/busybox"));
    for (const name of applets.split(" ")) {
      spawnSync("ln", ["-s", "busybox", join(pod.rootfs, "bin", name)]);
    }
    writeFileSync(join(pod.rootfs, "etc/passwd"), "root:x:0:0::/:/bin/sh\nweb:x:101:102::/srv:\n");
    writeFileSync(join(pod.rootfs, "etc/group"), "root:x:0:\nweb:x:102:\nlogs:x:50000:web\n");
    writeFileSync(files.hosts, "127.0.0.1 localhost\n");
    writeFileSync(files.hostname, "pod-host\n");
    writeFileSync(files.resolvConf, "nameserver 192.0.2.53\n");
    mkdirSync(files.shm, { mode: 0o1777 });
    const { net = "", ipc = "", uts = "" } = namespaces;
    const signal = AbortSignal.timeout(60_000);
    await pinNamespaces({ net, ipc, uts, hostname: "pod-host", sysctls: {}, signal });
    pod.#made = (await pod.driver.createPodCgroup("", pod.id, signal)).made;
    return pod;
  }

  /** Writes a container's bundle; its id combines the name and the pod's id. */
  async bundle(
    name: string,
    config: ContainerConfig,
    image: ImageProcess = {},
  ): Promise<{ id: string; dir: string; spec: OciSpec }> {
    const id = `${name}-${this.id}`;
    const spec = containerSpec({
      id,
      config,
      image,
      runtime: { recursiveReadOnlyMounts: true, idmapMounts: false },
      ...(await this.#specParts(id, config)),
    });
    this.#containers.push(id);
    return { id, dir: this.#write(id, spec), spec };
  }

  /** Returns the inputs of the specs in this pod. */
  async #specParts(id: string, config: ContainerConfig) {
    const signal = AbortSignal.timeout(60_000);
    return {
      sandbox: this.sandbox,
      resolved: await lookupContainer(config, { rootfsPath: this.rootfs, signal }),
      host: readHostInfo(cgroupMounts(), {}),
      handler: noSettings,
      defaults: { rlimits: [], restrictOomScoreAdj: true, deviceOwnership: false },
      cgroupsPath: this.driver.containerCgroupsPath("", this.id, id),
      rootfsPath: this.rootfs,
      hostname: "pod-host",
      runtimeAnnotations: await this.driver.containerAnnotations(signal),
    };
  }

  #write(id: string, spec: OciSpec): string {
    const dir = join(this.dir, id);
    mkdirSync(dir);
    writeFileSync(join(dir, "config.json"), ociJson(spec));
    return dir;
  }

  /** Runs a pause container, whose pid namespace becomes the pod's. */
  async pause(): Promise<number> {
    const id = `pause-${this.id}`;
    const spec = sandboxSpec({
      image: { Entrypoint: ["/bin/sleep", "1000"] },
      ...(await this.#specParts(id, {})),
    });
    this.#containers.unshift(id);
    if (this.runDetached(id, this.#write(id, spec)).exitCode !== 0)
      throw new Error("pause does not start");
    const pid = JSON.parse(this.runtime(["state", id]).stdout) as { pid: number };
    this.sandbox.namespaces.pid = `/proc/${pid.pid}/ns/pid`;
    return pid.pid;
  }

  #driverArgs(): string[] {
    return this.driver.name === "systemd" ? ["--systemd-cgroup"] : [];
  }

  runtime(args: string[], input = ""): Ended {
    // Without a log file the runtime's warnings are in the container's standard error.
    const global = ["--root", join(this.dir, "run"), "--log", join(this.dir, "log")];
    const all = [...global, ...this.#driverArgs(), ...args];
    const { status, stdout, stderr } = spawnSync(runtimeProgram, all, {
      encoding: "utf8",
      input,
      timeout: 60_000,
    });
    return { exitCode: status ?? -1, stdout, stderr };
  }

  /** Starts a container that keeps running and discards its output. */
  runDetached(id: string, dir: string): Ended {
    const all = ["--root", join(this.dir, "run"), ...this.#driverArgs()];
    const { status } = spawnSync(runtimeProgram, [...all, "run", "--detach", "--bundle", dir, id], {
      stdio: "ignore",
      timeout: 60_000,
    });
    return { exitCode: status ?? -1, stdout: "", stderr: "" };
  }

  /** Runs a script in a new container and waits for its exit. */
  async run(name: string, script: string, config: ContainerConfig = {}): Promise<Ended> {
    const { id, dir } = await this.bundle(name, { command: ["/bin/sh", "-c", script], ...config });
    return this.runtime(["run", "--bundle", dir, id]);
  }

  exec(id: string, execed: OciProcess): Ended {
    const file = join(this.dir, "process.json");
    writeFileSync(file, ociJson(execed));
    return this.runtime(["exec", "--process", file, id]);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const id of this.#containers) this.runtime(["delete", "--force", id]);
    for (const name of ["net", "ipc", "uts"]) {
      await unpinNamespace(join(this.dir, name), { unlink: true });
    }
    const pod = { parent: "", podId: this.id, made: this.#made };
    await this.driver.removePodCgroup(pod, AbortSignal.timeout(60_000));
    rmSync(this.dir, { recursive: true, force: true });
  }
}
