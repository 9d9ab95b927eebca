// Tests the mounts of a container's spec: order, propagation, options, and refused ones.
import { describe, expect, test } from "bun:test";
import { runtime } from "../../../src/proto/messages.js";
import type { Mount } from "../../../src/proto/types.ts";
import type { MountSource } from "../../../src/spec/spec_inputs.ts";
import { containerSpec } from "../../../src/spec/oci.ts";
import {
  codeAndMessage,
  nothingResolved,
  host,
  sandboxInfo,
  specInput,
} from "../../spec/inputs.ts";

const { PROPAGATION_BIDIRECTIONAL, PROPAGATION_HOST_TO_CONTAINER } = runtime.v1.MountPropagation;

function specWith(
  mounts: Mount[],
  propagation: MountSource["propagation"] = "private",
  rro = true,
) {
  const sources = mounts.map((mount) => ({ source: mount.host_path ?? "", propagation }));
  return containerSpec(
    specInput(
      { mounts },
      {
        resolved: { ...nothingResolved, mounts: sources },
        runtime: { recursiveReadOnlyMounts: rro, idmapMounts: false },
      },
    ),
  );
}

const destinations = (mounts: Mount[]) => specWith(mounts).mounts.map((m) => m.destination);
const at = (container_path: string, more: Mount = {}): Mount => ({
  container_path,
  host_path: "/h",
  ...more,
});

const optionsAt = (path: string, mounts: Mount[]) =>
  specWith(mounts).mounts.find((mount) => mount.destination === path)?.options;

describe("containerMounts()", () => {
  test("sorts parents before children", () => {
    const order = destinations([at("/a/b/c"), at("/a/b"), at("/a")]);
    expect(order.slice(-1)).toEqual(["/a/b/c"]);
    expect(order.indexOf("/a")).toBeLessThan(order.indexOf("/a/b"));
  });

  test("drops system mounts at or below a requested mount", () => {
    const dev = destinations([at("/dev")]);
    expect(dev).not.toContain("/dev/pts");
    expect(dev).toContain("/dev/shm");
    expect(destinations([at("/sys/")]).filter((path) => path.startsWith("/sys"))).toEqual(["/sys"]);
    const shm = specWith([at("/dev/shm")]).mounts.filter((m) => m.destination === "/dev/shm");
    expect(shm.map((m) => m.source)).toEqual(["/h"]);
  });

  test("keeps the pod's files over a requested mount on /etc", () => {
    const order = destinations([at("/etc"), at("/etc/hosts")]);
    expect(order.filter((path) => path.startsWith("/etc"))).toEqual([
      "/etc",
      "/etc/hostname",
      "/etc/resolv.conf",
      "/etc/hosts",
    ]);
  });

  test("propagates only from a propagating mount, and sets the rootfs propagation", () => {
    const both = [at("/a", { propagation: PROPAGATION_BIDIRECTIONAL })];
    const down = [at("/a", { propagation: PROPAGATION_HOST_TO_CONTAINER })];
    expect(specWith(both, "shared").linux.rootfsPropagation).toBe("rshared");
    expect(specWith(down, "slave").linux.rootfsPropagation).toBe("rslave");
    expect(specWith([at("/a")]).linux.rootfsPropagation).toBeUndefined();
    expect(codeAndMessage(() => specWith(both, "slave"))).toContain("make-rshared");
    expect(codeAndMessage(() => specWith(down, "private"))).toStartWith("FAILED_PRECONDITION");
  });

  test("makes a mount recursively read-only or rejects it", () => {
    const rro = at("/a", { readonly: true, recursive_read_only: true });
    expect(optionsAt("/a", [rro])).toEqual(["rbind", "rprivate", "rro"]);
    expect(codeAndMessage(() => specWith([rro], "private", false))).toContain('"rro"');
    expect(codeAndMessage(() => specWith([{ ...rro, readonly: false }]))).toContain("readonly");
    const shared = { ...rro, propagation: PROPAGATION_HOST_TO_CONTAINER };
    expect(codeAndMessage(() => specWith([shared], "shared"))).toContain("private propagation");
  });

  test("keeps the host's cgroup2 mount options for privileged containers", () => {
    const cgroup = (privileged: boolean) => {
      const linux = { security_context: { privileged } };
      const node = { ...host, cgroupOptions: ["nsdelegate"] };
      const sandbox = sandboxInfo({ linux });
      const { mounts } = containerSpec(specInput({ linux }, { sandbox, host: node }));
      return mounts.find(({ destination }) => destination === "/sys/fs/cgroup")!.options;
    };
    expect(cgroup(true)!.slice(-2)).toEqual(["rw", "nsdelegate"]);
    expect(cgroup(false)!.at(-1)).toBe("ro");
  });

  test("adds no id mappings to an image mount", () => {
    const uidMappings = [{ container_id: 0, host_id: 65536, length: 65536 }];
    const image = { host_path: "", image: { image: "i" }, readonly: true, uidMappings };
    const mounted = specWith([at("/a", image)]).mounts.find((m) => m.destination === "/a");
    expect(mounted).toMatchObject({ options: ["rbind", "rprivate", "ro"] });
    expect(mounted?.uidMappings).toBeUndefined();
  });

  test("accepts only the mount options that CRI defines", () => {
    const options = optionsAt("/a", [at("/a", { mount_options: ["nosuid", "nodev"] })]);
    expect(options).toEqual(["rbind", "rprivate", "rw", "nosuid", "nodev"]);
    expect(codeAndMessage(() => specWith([at("/a", { mount_options: ["suid"] })]))).toContain(
      '"suid"',
    );
  });

  test("rejects the root, relative paths, id mappings and writable image mounts", () => {
    expect(codeAndMessage(() => specWith([at("/")]))).toContain('not "/"');
    expect(codeAndMessage(() => specWith([at("/..")]))).toContain('not "/"');
    expect(codeAndMessage(() => specWith([at("a")]))).toContain("absolute");
    const mapped = at("/a", { uidMappings: [{ container_id: 0, host_id: 1, length: 1 }] });
    expect(codeAndMessage(() => specWith([mapped]))).toContain("runc 1.2");
    const image = { image: { image: "i" }, host_path: "" };
    expect(codeAndMessage(() => specWith([at("/a", image)]))).toContain("read-only");
  });
});
