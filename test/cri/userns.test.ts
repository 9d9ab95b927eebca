// Tests pods with a user namespace of their own: their root is an unprivileged user on the node.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  readFileSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import { runtime } from "../../src/proto/messages.js";
import type { NamespaceOption, PodSandboxConfig, UserNamespace } from "../../src/proto/types.ts";
import { lgetxattr } from "../../src/sys/path.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

const { NamespaceMode } = runtime.v1;
/** Of the Go module proxy (test/run): Debian 12's has no id-mapped mounts. */
const newRunc = join(import.meta.dirname, "../.cache/runc");
const why = existsSync(newRunc)
  ? ""
  : `${newRunc} is not there: test/run builds it where Go and gcc are`;
if (why !== "") console.error(`skipped, ${why}: user namespaces`);

const handler = "runc-new";
const first = 400_000;
const ids = [{ container_id: 0, host_id: first, length: 65_536 }];

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon({
    config: why === "" ? { runtimes: { [handler]: { path: newRunc } } } : {},
  });
  chmodSync(daemon.dir, 0o711); // a pod's root passes it like everybody else
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** The groups that a folder's access control list lets through. */
function groupsOf(folder: string): number[] {
  const list = lgetxattr(folder, "system.posix_acl_access");
  const bytes = Buffer.from(list ?? []);
  const gids: number[] = [];
  for (let at = 4; at < bytes.length; at += 8) {
    if (bytes.readUInt16LE(at) === 0x08) gids.push(bytes.readUInt32LE(at + 4));
  }
  return gids;
}

function podConfig(more: NamespaceOption = {}, rest: PodSandboxConfig = {}): PodSandboxConfig {
  const userns_options = { mode: NamespaceMode.POD, uids: ids, gids: ids };
  const modes = { network: NamespaceMode.POD, pid: NamespaceMode.CONTAINER };
  const namespace_options = { ...modes, userns_options, ...more };
  const linux = { ...rest.linux, security_context: { namespace_options } };
  return daemon.podConfig({ ...rest, linux });
}

describe.skipIf(why !== "")("a pod with a user namespace", () => {
  test("maps its root to a user of the node's, and owns its other namespaces", async () => {
    const before = daemon.snapshot();
    const sysctls = {
      "net.ipv4.ip_unprivileged_port_start": "80",
      "net.ipv4.conf.all.forwarding": "1",
      "kernel.shm_rmid_forced": "1",
    };
    const pod = podConfig({}, { hostname: "mapped", linux: { sysctls } });
    const podId = await daemon.runPod(pod, handler);
    const script = `cat /proc/self/uid_map /proc/self/gid_map; hostname; id -u
      stat -c '%u %g %n' / /bin/busybox /etc/hosts /etc/resolv.conf
      cd /proc/sys; cat net/ipv4/ip_unprivileged_port_start kernel/shm_rmid_forced
      cat net/ipv4/conf/all/forwarding
      ip link set lo down && ip link set lo up && echo owner
      echo x > /made && echo y > /dev/shm/made && echo z >> /etc/hosts && stat -c %u /made
      grep '^/\\|sysfs' /proc/self/mounts | cut -d' ' -f2 | sort | head -1; sleep 600`;
    const security_context = {
      namespace_options: pod.linux!.security_context!.namespace_options,
      capabilities: { add_capabilities: ["NET_ADMIN"] },
    };
    const id = await daemon.run(podId, pod, script, { linux: { security_context } });
    const log = (await daemon.status(id)).log_path;
    while (!readFileSync(log, "utf8").includes("/sys")) await Bun.sleep(20);
    const lines = readFileSync(log, "utf8")
      .replaceAll(/^\S+ \S+ F /gm, "")
      .split("\n");
    expect(lines.map((line) => line.trim().replaceAll(/\s+/g, " ")).slice(0, 15)).toEqual([
      `0 ${first} 65536`,
      `0 ${first} 65536`,
      "mapped",
      "0",
      "0 0 /",
      "0 0 /bin/busybox",
      "0 0 /etc/hosts",
      "0 0 /etc/resolv.conf",
      "80",
      "1",
      "1",
      "owner",
      "0",
      "/sys",
      "",
    ]);
    const upper = join(daemon.dir, "graph/containers", id, "upper");
    expect(statSync(join(upper, "made")).uid).toBe(first);
    const { stdout } = await daemon.exec(id, "id -u; cat /proc/self/uid_map");
    expect(stdout).toMatch(new RegExp(`^0\\n\\s+0\\s+${first}\\s+65536\\n$`));
    await daemon.removePod(podId);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("shares one pid namespace, and the node's network, as other pods do", async () => {
    const before = daemon.snapshot();
    const shared = podConfig({ pid: NamespaceMode.POD });
    const sharing = await daemon.runPod(shared, handler);
    const { text } = await daemon.output(sharing, shared, "ps -o pid,user,args");
    expect(text).toMatch(/^\s*1 .*pause/m);
    await daemon.removePod(sharing);

    const host = podConfig({ network: NamespaceMode.NODE });
    const onHost = await daemon.runPod({ ...host, hostname: "" }, handler);
    const script =
      "readlink /proc/self/ns/net; ls /sys/class/net | grep -c lo; touch /sys/x 2> /dev/null || true";
    expect((await daemon.output(onHost, host, script)).text).toStartWith(
      `net:[${statSync("/proc/self/ns/net").ino}]\n1\n`,
    );
    await daemon.removePod(onHost);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("sees a volume with its own ids where the kubelet maps it, and users of the image's", async () => {
    const folder = join(daemon.dir, "volume");
    mkdirSync(folder);
    writeFileSync(join(folder, "of-root"), "");
    const image = "example.test/owned:1";
    const data = [{ name: "srv/data", uid: 1000, gid: 1000, data: "x" }];
    await daemon.loadImage(busyboxImage({}, data), image);
    const pod = podConfig();
    const podId = await daemon.runPod(pod, handler);
    const script =
      "stat -c '%u %n' /srv/data /v/of-root /plain/of-root /i/srv/data /i/bin; id -u; echo > /v/made";
    const mounts = [
      { host_path: folder, container_path: "/v", uidMappings: ids, gidMappings: ids },
      { host_path: folder, container_path: "/plain" },
      {
        container_path: "/i",
        image: { image },
        readonly: true,
        uidMappings: ids,
        gidMappings: ids,
      },
    ];
    const more = { image: { image }, mounts };
    expect((await daemon.output(podId, pod, script, more)).text).toBe(
      "1000 /srv/data\n0 /v/of-root\n65534 /plain/of-root\n1000 /i/srv/data\n0 /i/bin\n0\n",
    );
    expect(statSync(join(folder, "made")).uid).toBe(0);
    const security_context = {
      run_as_user: { value: toLong(1000) },
      namespace_options: pod.linux!.security_context!.namespace_options,
    };
    const user = { ...more, linux: { security_context } };
    const devices = [{ host_path: "/dev/zero", container_path: "/dev/fuse" }];
    const zero = "stat -c '%t:%T' /dev/fuse; head -c 1 /dev/fuse | wc -c";
    expect((await daemon.output(podId, pod, zero, { devices })).text).toBe("1:5\n1\n");
    const reopened = "id -u; cat /srv/data > /dev/stdout";
    expect((await daemon.output(podId, pod, reopened, user)).text).toBe("1000\nx");
    const id = await daemon.run(podId, pod, ["sleep", "600"], user);
    expect((await daemon.exec(id, reopened)).stdout).toBe("1000\nx");
    await daemon.removePod(podId);
  });

  test("opens its own folders to its root's group alone, and no folder to others", async () => {
    const others = [{ ...ids[0]!, host_id: 500_000 }];
    const userns_options = { mode: NamespaceMode.POD, uids: others, gids: others };
    const graph = join(daemon.dir, "graph");
    const facts = (path: string) => {
      const { mode, gid } = statSync(join(graph, path));
      return [(mode & 0o777).toString(8), gid];
    };
    const passing = () => {
      expect(groupsOf(join(graph, "containers"))).toEqual(groupsOf(graph));
      return groupsOf(graph);
    };
    expect(facts("")).toEqual(["700", 0]);
    const pods = [podConfig({ pid: NamespaceMode.POD }), podConfig({ userns_options })];
    const podIds = [await daemon.runPod(pods[0]!, handler), await daemon.runPod(pods[1]!, handler)];
    const id = await daemon.run(podIds[0]!, pods[0]!, ["sleep", "600"]);
    expect(passing()).toEqual([first, 500_000]);
    for (const folder of ["", "containers", "sandboxes"]) expect(facts(folder)).toEqual(["710", 0]);
    expect(facts(`containers/${id}`)).toEqual(["710", first]);
    expect(facts(`sandboxes/${podIds[0]}`)).toEqual(["710", first]);
    // An earlier build let everybody pass.
    await daemon.stop("SIGKILL");
    for (const folder of ["", "containers", `containers/${id}`]) {
      chownSync(join(graph, folder), 0, 0);
      chmodSync(join(graph, folder), 0o711);
    }
    await daemon.start();
    expect(passing()).toEqual([first, 500_000]);
    expect(facts(`containers/${id}`)).toEqual(["710", first]);
    expect((await daemon.output(podIds[0]!, pods[0]!, "id -u")).text).toBe("0\n");
    await daemon.removePod(podIds[0]!);
    expect(passing()).toEqual([500_000]);
    expect((await daemon.output(podIds[1]!, pods[1]!, "id -u")).text).toBe("0\n");
    await daemon.removePod(podIds[1]!);
    for (const folder of ["", "containers", "sandboxes"]) expect(facts(folder)).toEqual(["700", 0]);
  });

  test("survives a restart of the daemon, and starts containers created before", async () => {
    const before = daemon.snapshot();
    const pod = podConfig();
    const podId = await daemon.runPod(pod, handler);
    const running = await daemon.run(podId, pod, ["sleep", "600"]);
    const created = await daemon.create(podId, pod, "cat /proc/self/uid_map");
    await daemon.restart("SIGKILL");
    await daemon.client.StartContainer({ container_id: created });
    expect(await daemon.exited(created)).toMatchObject({ exitCode: 0 });
    const { stdout } = await daemon.exec(running, "cat /proc/self/uid_map");
    expect(stdout.trim().split(/\s+/)).toEqual(["0", String(first), "65536"]);
    const { text } = await daemon.output(podId, pod, "stat -c %u /");
    expect(text).toBe("0\n");
    await daemon.removePod(podId);
    // All that a new daemon has open is more than it had before.
    const left = (await daemon.leaksSince(before)).filter(
      (leak) => !leak.includes(` ${daemon.pid} `),
    );
    expect(left).toEqual([]);
  });

  test("Status says which handlers support them, and the others refuse with the reason", async () => {
    const { runtime_handlers } = await daemon.client.Status({});
    const has = Object.fromEntries(
      runtime_handlers.map(({ name, features }) => [name, features?.user_namespaces]),
    );
    expect(has[handler]).toBe(true);
    const without = Object.entries(has).find(([, can]) => can !== true)?.[0];
    if (without === undefined) return;
    const before = daemon.snapshot();
    const error = await failure(daemon.runPod(podConfig(), without));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("userns_options");
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test.each([0, 65_536, 1_000_000])(
    "groups may begin at another id of the node: %d further",
    async (more) => {
      const gids = [{ ...ids[0], host_id: first + more }];
      const userns_options = { mode: NamespaceMode.POD, uids: ids, gids };
      const pod = podConfig({ userns_options });
      const podId = await daemon.runPod(pod, handler);
      const script = `tr -s ' ' < /proc/self/uid_map; tr -s ' ' < /proc/self/gid_map
      stat -c '%u %g' / /bin/busybox /etc/hosts; echo x > /made && stat -c '%u %g' /made`;
      const { text, id } = await daemon.output(podId, pod, script);
      const maps = ` 0 ${first} 65536\n 0 ${first + more} 65536\n`;
      expect(text).toBe(`${maps}${"0 0\n".repeat(4)}`);
      const { uid, gid } = statSync(join(daemon.dir, "graph/containers", id, "upper/made"));
      expect([uid, gid]).toEqual([first, first + more]);
      await daemon.removePod(podId);
    },
  );

  test("a container cannot have another one than its pod", async () => {
    const pod = podConfig();
    const podId = await daemon.runPod(pod, handler);
    const other = [{ ...ids[0], host_id: 1_000_000 }];
    const userns_options = { mode: NamespaceMode.POD, uids: other, gids: other };
    const namespace_options = { pid: NamespaceMode.CONTAINER, userns_options };
    const error = await failure(
      daemon.create(podId, pod, "true", { linux: { security_context: { namespace_options } } }),
    );
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain("userns_options");
    await daemon.removePod(podId);
  });
});

test.each<[string, UserNamespace, NamespaceOption]>([
  ["several mappings", { uids: [...ids, ...ids], gids: ids }, {}],
  ["no mapping", {}, {}],
  ["no root", { uids: [{ ...ids[0], container_id: 1 }], gids: ids }, {}],
  ["different ids", { uids: ids, gids: [{ ...ids[0], length: 1 }] }, {}],
  ["an empty range", { uids: [{ ...ids[0], length: 0 }], gids: ids }, {}],
  ["ids over the last", { uids: [{ ...ids[0], host_id: 0xffff_fff0 }], gids: ids }, {}],
  ["mappings of the node", { mode: NamespaceMode.NODE, uids: ids, gids: ids }, {}],
  ["mode CONTAINER", { mode: NamespaceMode.CONTAINER }, {}],
  ["mode TARGET", { mode: NamespaceMode.TARGET }, {}],
  ["the node's pids", { uids: ids, gids: ids }, { pid: NamespaceMode.NODE }],
  ["the node's ipc", { uids: ids, gids: ids }, { ipc: NamespaceMode.NODE }],
])("a user namespace with %s is INVALID_ARGUMENT, and nothing is made", async (_, asked, more) => {
  const before = daemon.snapshot();
  const error = await failure(daemon.runPod(podConfig({ userns_options: asked, ...more })));
  expect(error.code).toBe("INVALID_ARGUMENT");
  expect(error.message).toContain("userns_options");
  expect(await daemon.leaksSince(before)).toEqual([]);
});
