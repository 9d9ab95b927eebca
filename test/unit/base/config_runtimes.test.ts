// Tests the runtime handlers of daemon.json: shims by type, their options, and the messages for mistakes.
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import type { HostInfo } from "../../../src/base/config_host.ts";
import { messageOf } from "../../../src/base/errors.ts";
import { runtimeJson } from "../../../src/base/runtime_values.ts";
import { isRuncShim, shimProgram } from "../../../src/base/shim_program.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-runtimes-"));
afterAll(() => rmSync(folder, { recursive: true }));
const file = join(folder, "daemon.json");

const installed = ["runc", "containerd-shim-runc-v2", "containerd-shim-runsc-v1"];
const host: HostInfo = {
  groupId: () => undefined,
  exists: (path) => path === "/etc/runsc.toml",
  isExecutable: (path) => path.startsWith("/usr/"),
  findExecutable: () => undefined,
  systemdRuns: () => false,
};

function load(content: object, programs = installed) {
  writeFileSync(file, JSON.stringify(content, null, 1));
  const findExecutable = (name: string) =>
    programs.includes(name) ? `/usr/bin/${name}` : undefined;
  return loadConfig(file, new Map(), { ...host, findExecutable });
}

const runtime = (fields: object) => load({ runtimes: { x: fields } }).config.runtimes["x"];

function refusal(fields: object): string[] {
  try {
    runtime(fields);
  } catch (error) {
    return messageOf(error).replaceAll(file, "FILE").split("\n");
  }
  throw new Error("was accepted");
}

test("runc is a handler unless the node has only crun, which is the default runtime", () => {
  const handlers = (content: object, programs: string[]) =>
    Object.keys(load(content, programs).config.runtimes);
  const crun = { "default-runtime": "crun" };
  expect(handlers(crun, ["crun"])).toEqual(["crun"]);
  expect(handlers(crun, ["crun", "runc"])).toEqual(["runc", "crun"]);
  expect(handlers({}, ["crun"])).toEqual(["runc", "crun"]);
  expect(handlers({}, [])).toEqual(["runc"]);
});

describe("a runtime with a runtime-type", () => {
  test("is a shim, whose executable the last two parts of the type name", () => {
    expect(runtime({ "runtime-type": "io.containerd.runsc.v1" })).toEqual({
      path: "/usr/bin/containerd-shim-runsc-v1",
      runtimeArgs: [],
      shim: { type: "io.containerd.runsc.v1", configPath: "", options: {} },
    });
    expect(shimProgram("aws.firecracker")).toBe("containerd-shim-aws-firecracker");
    expect(isRuncShim("io.containerd.runc.v2")).toBe(true);
    expect(isRuncShim("io.containerd.runsc.v1")).toBe(false);
  });

  test("may name its executable and its configuration file", () => {
    const fields = { "runtime-path": "/usr/lib/shim", "runtime-config-path": "/etc/runsc.toml" };
    const { config, warnings } = load({
      runtimes: { x: { "runtime-type": "io.containerd.runsc.v1", ...fields } },
    });
    expect(config.runtimes["x"]).toMatchObject({
      path: "/usr/lib/shim",
      shim: { configPath: "/etc/runsc.toml" },
    });
    expect(warnings).toEqual([]);
  });

  test("has what any handler may have", () => {
    const fields = { "pod-annotations": ["io.katacontainers.*"], "cni-conf-dir": "/x" };
    expect(runtime({ "runtime-type": "io.containerd.runsc.v1", ...fields })).toMatchObject({
      podAnnotations: ["io.katacontainers.*"],
      cniConfDir: "/x",
    });
  });

  test('"oci" is the default', () => {
    const plain = { path: "/usr/bin/x", runtimeArgs: ["-a"] };
    const fields = { path: "/usr/bin/x", "runtime-args": ["-a"] };
    expect(runtime(fields)).toEqual(plain);
    expect(runtime({ ...fields, "runtime-type": "oci" })).toEqual(plain);
  });

  test.each([
    ["nvidia-ctk", { args: ["-a"] }],
    ["Ascend's installer", { runtimeArgs: ["-a"] }],
    ["both, where one is empty", { args: [], runtimeArgs: ["-a"], "runtime-args": [] }],
  ])("takes the arguments by the name that %s writes", (_, fields) => {
    const path = "/usr/bin/nvidia-container-runtime";
    expect(runtime({ path, ...fields })).toEqual({ path, runtimeArgs: ["-a"] });
    expect(runtime({ path, args: [] })).toEqual({ path, runtimeArgs: [] });
  });

  test("refuses arguments by two names, of which one would be ignored", () => {
    const fields = { path: "/usr/bin/x", args: ["-a"], "runtime-args": ["-b"] };
    expect(() => runtime(fields)).toThrow("other names of runtime-args: give one");
  });

  test("that is not installed causes a warning with the files looked for and the product", () => {
    const { config, warnings } = load({
      runtimes: {
        x: { "runtime-type": "io.containerd.kata.v2" },
        y: { "runtime-type": "io.containerd.runsc.v1", "runtime-path": "/opt/shim" },
        z: { "runtime-type": "io.containerd.runsc.v1", "runtime-config-path": "/opt/toml" },
      },
    });
    expect(config.runtimes["x"]!.path).toBe("containerd-shim-kata-v2");
    expect(config.runtimes["y"]!.path).toBe("/opt/shim");
    expect(warnings.map((warning) => warning.replaceAll(file, "FILE"))).toEqual([
      'FILE:3: "runtimes.x": there is no executable containerd-shim-kata-v2 in /usr/local/sbin, /usr/local/bin, /usr/sbin, /usr/bin: install Kata Containers (github.com/kata-containers/kata-containers/releases), or give its path in "runtime-path"; pods of this handler are refused until then',
      expect.stringMatching(
        /^FILE:6: "runtimes.y": there is no executable \/opt\/shim: install gVisor /,
      ),
      'FILE:12: "runtimes.z.runtime-config-path": there is no /opt/toml: pods of this handler fail until it exists',
    ]);
  });
});

describe("the options of runc's shim", () => {
  const options = (given: object) =>
    runtime({ "runtime-type": "io.containerd.runc.v2", "runtime-options": given })!.shim!.options;

  test.each([
    [{ BinaryName: "/usr/bin/crun" }, { binary_name: "/usr/bin/crun" }],
    [{ binary_name: "runc" }, { binary_name: "/usr/bin/runc" }],
    [
      { NoPivotRoot: true, no_new_keyring: false },
      { no_pivot_root: true, no_new_keyring: false },
    ],
    [
      { "io-uid": 5, IoGid: 6 },
      { io_uid: 5, io_gid: 6 },
    ],
    [
      { Root: "/r", CriuImagePath: "/i", criu_work_path: "/w" },
      { root: "/r", criu_image_path: "/i", criu_work_path: "/w" },
    ],
    [{ ShimCgroup: "/shims" }, { shim_cgroup: "/shims" }],
  ])("%j are %j", (given, expected) => {
    expect(options(given)).toEqual({ binary_name: "/usr/bin/runc", ...expected });
  });

  test("name the installed runc by default", () => {
    expect(options({})).toEqual({ binary_name: "/usr/bin/runc" });
    const { config } = load({ "cri-runtimes": { y: "io.containerd.runc.v2" } });
    expect(config.runtimes["y"]!.shim!.options).toEqual({ binary_name: "/usr/bin/runc" });
  });

  test.each([
    [{ BinaryNam: "x" }, 'BinaryNam" is unknown; the nearest known option is "BinaryName"'],
    [{ IoUid: "5" }, 'IoUid" must be a whole number from 0 to 4294967294, not "5"'],
    [{ Root: "x" }, 'Root" must be an absolute path, not "x"'],
    [{ root: "/x", Root: "/y" }, 'Root" is given twice'],
    [{ NoPivotRoot: 1 }, 'NoPivotRoot" must be true or false, not 1'],
  ])("%j are refused", (given, message) => {
    const line = Object.keys(given).length + 5;
    expect(refusal({ "runtime-type": "io.containerd.runc.v2", "runtime-options": given })).toEqual([
      `FILE:${line}: "runtimes.x.runtime-options.${message}`,
    ]);
  });

  test("name a binary that is not installed: a warning", () => {
    const fields = { "runtime-type": "io.containerd.runc.v2" };
    const { warnings } = load({
      runtimes: { x: { ...fields, "runtime-options": { BinaryName: "youki" } } },
    });
    expect(warnings).toEqual([expect.stringContaining("youki does not exist")]);
  });
});

const runcShim = { "runtime-type": "io.containerd.runc.v2" };
const gvisor = { "runtime-type": "io.containerd.runsc.v1" };

test.each<[object, string]>([
  [{}, 'FILE:3: "runtimes.x" must have the "path" of an OCI runtime, or a "runtime-type"'],
  [{ path: "/usr/a", "runtime-path": "/b" }, 'FILE:5: "runtimes.x.runtime-path" must not be given'],
  [
    { path: "/usr/a", "runtime-config-path": "/b" },
    'FILE:5: "runtimes.x.runtime-config-path" must not be given here: only shims have it',
  ],
  [
    { path: "/usr/a", "runtime-options": { ShimCgroup: "/x" } },
    'FILE:5: "runtimes.x.runtime-options" must not be given here: only a shim has shim_cgroup',
  ],
  [
    { path: "/usr/a", "runtime-options": { NoNewKeyrin: true } },
    'FILE:6: "runtimes.x.runtime-options.NoNewKeyrin" is unknown; the nearest known option is "NoNewKeyring"',
  ],
  [{ ...gvisor, path: "/a" }, 'FILE:5: "runtimes.x.path" must not be given here: a shim\'s exec'],
  [{ ...gvisor, "runtime-args": ["-a"] }, 'FILE:5: "runtimes.x.runtime-args" must not be given'],
  [
    { ...gvisor, "runtime-options": { Root: "/x" } },
    'FILE:5: "runtimes.x.runtime-options" must not be given here: only runc\'s shim has them',
  ],
  [
    { ...runcShim, "runtime-config-path": "/x" },
    'FILE:5: "runtimes.x.runtime-config-path" must not be given here: runc\'s shim reads its "runtime-options"',
  ],
  [{ "runtime-type": "vm" }, 'FILE:4: "runtimes" must be a map such as'],
  [{ ...gvisor, "runtime-path": "shim" }, 'FILE:5: "runtimes" must be a map such as'],
  [{ ...runcShim, "runtime-options": { Root: [] } }, 'FILE:6: "runtimes" must be a map such as'],
])("%j is refused with file, line and field", (fields, message) => {
  const problems = refusal(fields);
  expect(problems).toHaveLength(1);
  expect(problems[0]).toStartWith(message);
});

describe("cri-runtimes", () => {
  test("names a shim by its type, as iSulad's stock file does", () => {
    const { config, warnings } = load({
      "cri-runtimes": { kata: "io.containerd.kata.v2", gvisor: "io.containerd.runsc.v1" },
    });
    expect(config.runtimes["kata"]).toMatchObject({
      path: "containerd-shim-kata-v2",
      shim: { type: "io.containerd.kata.v2" },
    });
    expect(config.runtimes["gvisor"]!.path).toBe("/usr/bin/containerd-shim-runsc-v1");
    expect(warnings).toEqual([expect.stringContaining(`${file}:3: "cri-runtimes.kata": there is`)]);
  });

  test("gives a configured shim a further name", () => {
    const { config } = load({ runtimes: { g: gvisor }, "cri-runtimes": { untrusted: "g" } });
    expect(config.runtimes["untrusted"]).toEqual(config.runtimes["g"]);
  });
});

test("an OCI runtime has the options of runc's shim, but for those of the shim itself", () => {
  const given = { NoNewKeyring: true, Root: "/r", IoUid: 5, io_gid: 6, CriuWorkPath: "/w" };
  const options = { no_new_keyring: true, root: "/r", io_uid: 5, io_gid: 6, criu_work_path: "/w" };
  const entry = runtime({ path: "/usr/a", "runtime-options": given })!;
  expect(entry).toEqual({ path: "/usr/a", runtimeArgs: [], options });
  expect(runtimeJson(entry)["runtime-options"]).toEqual(options);
  for (const own of ["NoPivotRoot", "ShimCgroup", "BinaryName"]) {
    const value = own === "NoPivotRoot" ? true : "runc";
    const [message] = refusal({ path: "/usr/a", "runtime-options": { [own]: value } });
    expect(message).toContain('"runtimes.x.runtime-options" must not be given here: only a shim');
  }
});

describe("SystemdCgroup", () => {
  test.each([[{ path: "/usr/a" }], [{ "runtime-type": "io.containerd.runc.v2" }]])(
    "of %j is accepted where it is that of the daemon, and refused elsewhere",
    (fields) => {
      const options = (value: unknown) => ({
        ...fields,
        "runtime-options": { SystemdCgroup: value },
      });
      expect(runtime(options(false))).toBeDefined();
      for (const value of [true, "false"]) {
        expect(refusal(options(value))).toEqual([
          expect.stringMatching(
            /^FILE:6: .*SystemdCgroup" must be false, as the key "systemd-cgroup"/,
          ),
        ]);
      }
      const given = { runtimes: { x: options(true) }, "systemd-cgroup": true };
      expect(load(given).config.runtimes["x"]).toBeDefined();
    },
  );
});
