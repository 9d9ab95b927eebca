// Tests what a base spec may set in the specs of containers, and what is refused.
import { describe, expect, test } from "bun:test";
import { parseBaseSpec } from "../../../src/spec/base_spec.ts";
import { containerSpec, ociJson } from "../../../src/spec/oci.ts";
import type { ContainerConfig } from "../../../src/proto/types.ts";
import { codeAndMessage, noSettings, sandboxInfo, specInput } from "../../spec/inputs.ts";

function specOver(base: object | string, config: ContainerConfig = {}, privileged = false) {
  const baseSpec = parseBaseSpec(typeof base === "string" ? base : JSON.stringify(base));
  const linux = { security_context: { privileged } };
  return containerSpec(
    specInput(
      { ...config, linux: { ...config.linux, ...(privileged ? linux : {}) } },
      { handler: { ...noSettings, baseSpec }, sandbox: sandboxInfo(privileged ? { linux } : {}) },
    ),
  );
}

const plain = containerSpec(specInput({}));
const nofile = { type: "RLIMIT_NOFILE", soft: 1024, hard: 4096 };

describe("a base spec", () => {
  test("changes nothing if it is empty", () => {
    expect(JSON.parse(ociJson(specOver({})))).toEqual({
      ...(JSON.parse(ociJson(plain)) as object),
      process: { ...(JSON.parse(ociJson(plain)).process as object), rlimits: [] },
    });
  });

  test("adds hooks, limits, environment, mounts, devices, rules, and unknown keys", () => {
    const hooks = { createRuntime: [{ path: "/bin/hook", args: ["hook"] }] };
    const device = { path: "/dev/fuse", type: "c", major: 10, minor: 229 };
    const rule = { allow: true, type: "c", major: 10, minor: 229, access: "rwm" };
    const spec = specOver({
      process: { rlimits: [nofile], env: ["FROM_BASE=1", "FROM_IMAGE=0"], scheduler: { nice: 1 } },
      mounts: [{ destination: "/scratch", type: "tmpfs", source: "tmpfs", options: ["size=1m"] }],
      hooks,
      annotations: { "from.base": "yes", "io.kubernetes.cri.sandbox-id": "no" },
      linux: {
        devices: [device],
        sysctl: { "net.core.somaxconn": "1" },
        resources: { devices: [{ allow: false, access: "rwm" }, rule], pids: { limit: 77 } },
      },
    });
    expect(spec.process.rlimits).toEqual([{ ...nofile, soft: 1024n, hard: 4096n }]);
    expect(spec.process.env).toContain("FROM_BASE=1");
    expect(spec.process.env.filter((line) => line.startsWith("FROM_IMAGE"))).toEqual([
      "FROM_IMAGE=1",
    ]);
    expect(spec.mounts.map(({ destination }) => destination)).toContain("/scratch");
    expect(spec.linux.resources.devices).toEqual([{ allow: false, access: "rwm" }, rule as never]);
    expect(spec.annotations).toMatchObject({
      "from.base": "yes",
      "io.kubernetes.cri.sandbox-id": "pod1",
    });
    expect(spec).toMatchObject({
      hooks,
      process: { scheduler: { nice: 1 } },
      linux: {
        devices: [device],
        sysctl: { "net.core.somaxconn": "1" },
        resources: { pids: { limit: 77n } },
      },
    });
  });

  test("never overrides the fields that identify the container", () => {
    const spec = specOver({
      hostname: "base",
      root: { path: "/", readonly: false },
      process: {
        args: ["sh"],
        cwd: "/base",
        user: { uid: 7, gid: 7 },
        capabilities: { bounding: ["CAP_SYS_ADMIN"] },
        noNewPrivileges: true,
        apparmorProfile: "base",
        oomScoreAdj: 5,
        terminal: true,
      },
      linux: {
        cgroupsPath: "/base",
        namespaces: [{ type: "network" }],
        maskedPaths: ["/base"],
        readonlyPaths: ["/base"],
      },
    });
    expect({ ...spec, process: { ...spec.process, rlimits: undefined } }).toEqual({
      ...plain,
      process: { ...plain.process, rlimits: undefined },
    });
  });

  test("sets the options of system mounts except ro and rw, and never covers /run", () => {
    const mounts = [
      { destination: "/dev", type: "tmpfs", source: "tmpfs", options: ["size=1m"] },
      { destination: "/sys", type: "sysfs", source: "sysfs", options: ["nosuid", "ro"] },
      { destination: "/proc", type: "bind", source: "/tmp", options: ["rbind"] },
      { destination: "/dev/shm", type: "tmpfs", source: "shm", options: ["size=9m"] },
      { destination: "/run", type: "tmpfs", source: "tmpfs", options: [] },
      { destination: "/dev/extra", type: "tmpfs", source: "tmpfs", options: [] },
    ];
    const at = (spec: typeof plain, path: string) =>
      spec.mounts.filter(({ destination }) => destination === path);
    const spec = specOver({ mounts }, {}, true);
    expect(at(spec, "/dev")[0]!.options).toEqual(["size=1m"]);
    expect(at(spec, "/sys")[0]!.options).toEqual(["nosuid", "rw"]);
    expect(at(spec, "/proc")).toEqual(at(plain, "/proc"));
    expect(at(spec, "/dev/shm").map(({ type }) => type)).toEqual(["bind"]);
    expect(at(spec, "/run")).toEqual([]);
    const own = { mounts: [{ container_path: "/dev/extra", host_path: "/h" }] };
    const sources = [{ source: "/h", propagation: "private" as const }];
    const handler = { ...noSettings, baseSpec: parseBaseSpec(JSON.stringify({ mounts })) };
    const covering = containerSpec(
      specInput(own, { handler, resolved: { ...specInput({}).resolved, mounts: sources } }),
    );
    expect(at(covering, "/dev/extra").map(({ source }) => source)).toEqual(["/h"]);
  });

  test("sets the seccomp filter of unprivileged containers that request none", () => {
    const base = { linux: { seccomp: { defaultAction: "SCMP_ACT_ALLOW", syscalls: [] } } };
    expect(specOver(base).linux.seccomp?.defaultAction).toBe("SCMP_ACT_ALLOW");
    expect(specOver(base, {}, true).linux.seccomp).toBeUndefined();
  });

  test("keeps 64-bit integers exact", () => {
    const text = '{"linux":{"resources":{"network":{"classID":18446744073709551615}}}}';
    expect(ociJson(specOver(text))).toContain('"classID":18446744073709551615');
  });

  test.each([
    ["{", "is not JSON"],
    ["[]", "is not an OCI spec"],
    ['{"process":[]}', "process: "],
    ['{"process":{"rlimits":[{"type":"RLIMIT_CORE"}]}}', "process.rlimits.0.soft"],
    ['{"process":{"env":["x"]}}', "process.env.0"],
    ['{"mounts":[{"destination":"x"}]}', "mounts.0.destination"],
    ['{"linux":{"resources":{"devices":[{}]}}}', "linux.resources.devices.0.allow"],
  ])("%s is refused with the key", (text, message) => {
    expect(codeAndMessage(() => parseBaseSpec(text))).toStartWith("INVALID_ARGUMENT: ");
    expect(codeAndMessage(() => parseBaseSpec(text))).toContain(message);
  });
});
