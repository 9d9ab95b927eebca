// Tests loadConfig(): defaults, every form of daemon.json and flags, and the messages for mistakes.
import { expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { loadConfig } from "../../../src/base/config.ts";
import { folder, host, load, refusal, useConfigFolder } from "./config_file.ts";

useConfigFolder();

test("loadConfig gives the defaults for a file that asks for nothing", () => {
  const { config, origin, warnings } = load("{}");
  expect(warnings).toEqual([]);
  expect(config).toMatchObject({
    hosts: ["unix:///var/run/isulad.sock"],
    graph: "/var/lib/isulad",
    state: "/var/run/isulad",
    cgroupParent: "/isulad",
    runtimes: { runc: { path: "/usr/sbin/runc", runtimeArgs: [] } },
    cniBinDirs: ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"],
    enablePodEvents: false,
    nri: { support: false, registrationTimeoutMs: 5000, requestTimeoutMs: 2000 },
  });
  expect(origin.get("graph")).toBe("default");
});

// The keys and values of the file that iSulad 2.1 installs.
const stock = {
  group: "isula",
  "default-runtime": "runc",
  graph: "/var/lib/isulad",
  state: "/var/run/isulad",
  "log-level": "ERROR",
  pidfile: "/var/run/isulad.pid",
  "log-opts": {
    "log-file-mode": "0600",
    "log-path": "/var/lib/isulad",
    "max-file": "1",
    "max-size": "30KB",
  },
  "log-driver": "stdout",
  "container-log": { driver: "json-file" },
  "hook-spec": "/etc/default/isulad/hooks/default.json",
  "start-timeout": "2m",
  "storage-driver": "overlay2",
  "storage-opts": ["overlay2.override_kernel_check=true"],
  "registry-mirrors": [],
  "insecure-registries": [],
  "pod-sandbox-image": "",
  "native.umask": "normal",
  "network-plugin": "",
  "cni-bin-dir": "",
  "cni-conf-dir": "",
  "image-layer-check": false,
  "use-decrypted-key": true,
  "insecure-skip-verify-enforce": false,
  "cri-runtimes": { kata: "io.containerd.kata.v2" },
};

test("loadConfig takes iSulad's stock file, with one warning for each key that means nothing", () => {
  const { config, origin, warnings } = load({ ...stock, engine: "lcr", "default-runtime": "lcr" });
  expect(config).toMatchObject({
    logLevel: "error",
    group: "",
    startTimeoutMs: 120_000,
    nativeUmask: 0o022,
  });
  expect(config.defaultRuntime).toBe("runc");
  expect(config.podSandboxImage).toBe("");
  expect(origin.get("log-level")).toBe(`${join(folder, "daemon.json")}:6`);
  expect(origin.get("cni-bin-dir")).toBe("default");
  const about = [
    "log-opts",
    "container-log",
    "hook-spec",
    "use-decrypted-key",
    "isula",
    "kata",
    "lcr",
    "engine",
  ];
  for (const name of about)
    expect([name, warnings.filter((w) => w.includes(name)).length > 0]).toEqual([name, true]);
  expect(warnings).toHaveLength(about.length);
});

test("loadConfig takes the underscore spellings and the misspelt one of iSulad's NRI design", () => {
  const { config } = load({
    "nri-support": true,
    disable_connections: false,
    plugin_config_path: "/a",
    plugin_path: "/b/",
    plugin_registration_timeout: "7s",
    plugin_requst_timeout: 3,
    socket_path: "/c.sock",
  });
  expect(config.nri).toEqual({
    support: true,
    disableConnections: false,
    pluginConfigPath: "/a",
    pluginPath: "/b",
    registrationTimeoutMs: 7000,
    synchronizeTimeoutMs: 30_000,
    requiredPlugins: [],
    requestTimeoutMs: 3000,
    socketPath: "/c.sock",
  });
});

test.each([
  [
    { "new-key": 1 },
    'FILE:2: unknown key "new-key"; isulad-ts config default --explain lists all keys',
  ],
  [
    { "cni-bin-dirs": "/x" },
    'FILE:2: unknown key "cni-bin-dirs"; the nearest known key is "cni-bin-dir" (an absolute path, or several in a list or separated by ":")',
  ],
  [{ "nri-support": "yes" }, 'FILE:2: "nri-support" must be true or false, not "yes"'],
  [
    { graph: "/a", "start-timeout": "5 days" },
    'FILE:3: "start-timeout" must be seconds as a number, or a text such as "5s" or "2m", from 1s to 24h, not "5 days"',
  ],
  [
    { "start-timeout": 0 },
    'FILE:2: "start-timeout" must be seconds as a number, or a text such as "5s" or "2m", from 1s to 24h, not 0',
  ],
  [{ graph: "../x" }, 'FILE:2: "graph" must be an absolute path, not "../x"'],
  [
    { "metrics-port": 70000 },
    'FILE:2: "metrics-port" must be a whole number from 0 to 65535, not 70000',
  ],
  [
    { "log-level": "loud" },
    'FILE:2: "log-level" must be one of "FATAL", "ALERT", "CRIT", "ERROR", "WARN", "WARNING", "NOTICE", "INFO", "DEBUG", "TRACE", not "loud"',
  ],
  [
    { "storage-driver": "devicemapper" },
    'FILE:2: "storage-driver" must be one of "auto", "overlay2", "overlay", "native", not "devicemapper"',
  ],
  [
    { "default-runtime": "run" },
    'FILE:2: "default-runtime" must be a name in "runtimes" (runc), not "run"',
  ],
  [
    { "systemd-cgroup": true, "cgroup-parent": "/x" },
    'FILE:3: "cgroup-parent" must be a slice such as "isulad.slice" under "systemd-cgroup": true, not "/x"',
  ],
  [
    { group: "known", state: "/var/run/isulad", hosts: ["unix:///run/isulad/i.sock"] },
    'FILE:4: "hosts" must not have "unix:///run/isulad/i.sock" for the group "known": it lies in /var/run/isulad, which only root can enter; use a path outside of graph and state, such as unix:///var/run/isulad.sock',
  ],
  ["[]", 'FILE:1: must be a JSON object: { "key": value, … }'],
  ['{\n"graph": "/a"\n"state": 1}', 'FILE:3: not JSON: a comma is missing before "state": 1}'],
  [{ graph: null }, 'FILE:2: "graph" must be an absolute path, not null'],
] as const)(
  "loadConfig refuses %j with file, line, key and what is allowed",
  (content, message) => {
    expect(refusal(content)).toEqual([message]);
  },
);

test("loadConfig tells the line inside a value, and a name it does not know there", () => {
  const [first] = refusal({ runtimes: { runc: { path: "/usr/bin/runc", "runtime-arg": [] } } });
  expect(first).toStartWith(
    'FILE:5: unknown key "runtimes.runc.runtime-arg"; "runtimes" must be a map such as',
  );
  const [second] = refusal({ hosts: ["unix:///a", "tcp://0.0.0.0:1"] });
  expect(second).toMatch(
    /^FILE:4: "hosts" must be a list of unix sockets .*, not "tcp:.*" \(at "hosts.1"\)$/,
  );
});

test("loadConfig tells all mistakes at once, and a key in two spellings", () => {
  const told = refusal({ graph: 1, state: 2, grap: 3, "plugin-path": "/a", plugin_path: "/b" });
  expect(told.map((line) => line.split(" ")[0])).toEqual([
    "FILE:4:",
    "FILE:6:",
    "FILE:2:",
    "FILE:3:",
  ]);
  expect(told[1]).toBe('FILE:6: "plugin-path" is given twice, first at FILE:5');
});

test("loadConfig refuses enable-cri-v1: false and a file that is named and not there", () => {
  expect(refusal({ "enable-cri-v1": false })[0]).toStartWith(
    'FILE:2: "enable-cri-v1" must be true',
  );
  expect(() => loadConfig("/nonexistent/daemon.json", new Map(), host)).toThrow(
    /Cannot read.*ENOENT/,
  );
});

test("loadConfig lets flags override keys, as text of each key's kind", () => {
  const { config, origin } = load(
    { graph: "/a", group: "known" },
    {
      graph: "/trial/graph",
      host: "unix:///a,unix:///b",
      "systemd-cgroup": "true",
      "cni-timeout": "3s",
      runtimes: '{"x": {"path": "/usr/bin/x"}}',
      "cri-runtime": "fast=x",
    },
  );
  expect(config).toMatchObject({
    graph: "/trial/graph",
    hosts: ["unix:///a", "unix:///b"],
    systemdCgroup: true,
    cgroupParent: "isulad.slice",
    cniTimeoutMs: 3000,
    group: "known",
  });
  expect(Object.keys(config.runtimes)).toEqual(["runc", "x", "fast"]);
  expect(origin.get("graph")).toBe("flag");
  expect(origin.get("group")).toBe(`${join(folder, "daemon.json")}:3`);
  expect(refusal({}, { "nri-support": "perhaps" })[0]).toBe(
    '--nri-support: "nri-support" must be true or false, not "perhaps"',
  );
});

test("loadConfig reads limits as 64 bit and refuses a soft one above the hard", () => {
  const nofile = { Name: "nofile", Hard: -1, Soft: 1024 };
  expect(load({ "default-ulimits": { nofile } }).config.defaultUlimits).toEqual([
    { type: "RLIMIT_NOFILE", hard: 18_446_744_073_709_551_615n, soft: 1024n },
  ]);
  expect(refusal({ "default-ulimits": { nofile: { Hard: 1, Soft: 2 } } })[0]).toContain(
    "Soft is at most Hard",
  );
});

test("loadConfig warns of a runtime that is not installed", () => {
  const { warnings, config } = load({
    runtimes: { kata: { path: "/opt/kata", "runtime-args": ["--x"] } },
  });
  expect(warnings[0]).toContain('"runtimes.kata": /opt/kata does not exist');
  expect(config.runtimes["kata"]).toEqual({ path: "/opt/kata", runtimeArgs: ["--x"] });
});

test("a handler named after another handler of cri-runtimes exists, without a warning", () => {
  const { config, warnings } = load({ "cri-runtimes": { fast: "runc", faster: "fast", x: "y" } });
  expect(config.runtimes["faster"]).toEqual(config.runtimes["runc"]);
  expect(warnings.filter((one) => one.includes("do not exist"))).toEqual([
    expect.stringMatching(/do not exist: x \(y\)$/),
  ]);
});

test("loadConfig reads what a runtime handler may have, and an alias has it too", () => {
  const entry = {
    path: "/usr/bin/x",
    "base-runtime-spec": "/etc/base.json",
    "pod-annotations": ["io.katacontainers.*"],
    "container-annotations": ["a.b/c?"],
    "privileged-without-host-devices": true,
    "privileged-without-host-devices-all-devices-allowed": true,
    "cni-conf-dir": "/etc/cni/x.d/",
    "cni-max-conf-num": 0,
  };
  const { config } = load({ runtimes: { x: entry }, "cri-runtimes": { y: "x" } });
  expect(config.runtimes["y"]).toEqual({
    path: "/usr/bin/x",
    runtimeArgs: [],
    baseRuntimeSpec: "/etc/base.json",
    podAnnotations: ["io.katacontainers.*"],
    containerAnnotations: ["a.b/c?"],
    privilegedWithoutHostDevices: true,
    privilegedAllDevicesAllowed: true,
    cniConfDir: "/etc/cni/x.d",
    cniMaxConfNum: 0,
  });
  for (const [key, value] of [
    ["base-runtime-spec", "base.json"],
    ["pod-annotations", ["["]],
    ["container-annotations", "a.*"],
    ["privileged-without-host-devices", "yes"],
    ["cni-conf-dir", "../x"],
    ["cni-max-conf-num", 17],
  ] as const) {
    const [told] = refusal({ runtimes: { x: { ...entry, [key]: value } } });
    expect(told).toContain(`"runtimes" must be a map such as`);
    expect(told).toContain(`(at "runtimes.x.${key}`);
  }
  const [told] = refusal({
    runtimes: { x: { ...entry, "privileged-without-host-devices": false } },
  });
  expect(told).toContain('it needs "privileged-without-host-devices": true');
});

test('loadConfig settles "systemd-cgroup": "auto" by what runs the host', () => {
  const settled = (runs: boolean) => {
    const { config } = loadConfig(file, new Map(), { ...host, systemdRuns: () => runs });
    return [config.systemdCgroup, config.cgroupParent];
  };
  const file = join(folder, "auto.json");
  writeFileSync(file, '{"systemd-cgroup": "auto"}');
  expect(settled(true)).toEqual([true, "isulad.slice"]);
  expect(settled(false)).toEqual([false, "/isulad"]);
  expect(load({}, { "systemd-cgroup": "auto" }).config.systemdCgroup).toBe(false);
  expect(refusal({ "systemd-cgroup": "Auto" })[0]).toBe(
    'FILE:2: "systemd-cgroup" must be true, false or "auto", not "Auto"',
  );
});

test("loadConfig finds stream processors by name, warns of absent ones and refuses half ones", () => {
  const decoder = { accepts: ["application/a+encrypted"], returns: "application/a" };
  const { config, warnings } = load({
    "stream-processors": {
      near: { ...decoder, path: "decoder", env: ["A=b=c"] },
      far: { ...decoder, path: "/opt/decoder", args: ["-x"] },
    },
  });
  expect(config.streamProcessors).toEqual({
    near: { ...decoder, path: "/usr/sbin/decoder", args: [], env: ["A=b=c"] },
    far: { ...decoder, path: "/opt/decoder", args: ["-x"], env: [] },
  });
  expect(warnings).toHaveLength(1);
  expect(warnings[0]).toContain('"stream-processors.far": /opt/decoder does not exist');
  for (const wrong of [
    { ...decoder, path: "../decoder" },
    { ...decoder, path: "/x", accepts: [] },
    { ...decoder, path: "/x", returns: "no type" },
    { ...decoder, path: "/x", env: ["without a value"] },
    { ...decoder, path: "/x", arg: [] },
    { returns: "application/a", path: "/x" },
  ]) {
    expect(refusal({ "stream-processors": { wrong } })[0]).toMatch(/"stream-processors" must be/);
  }
});

test("loadConfig reads the size of containers' own layers as iSulad writes it", () => {
  const bytes = (...options: string[]) => load({ "storage-opts": options }).config.containerBytes;
  expect(bytes()).toBe(0);
  expect(bytes("overlay2.override_kernel_check=true", "overlay2.size=10G")).toBe(10 * 2 ** 30);
  expect(bytes("overlay2.basesize=512MiB")).toBe(512 * 2 ** 20);
  expect(bytes("overlay2.size=1048576")).toBe(2 ** 20);
  expect(bytes("overlay2.size=0")).toBe(0);
  for (const size of ["", "10", "-1G", "1.5G", "10X", "9999999T"]) {
    expect(refusal({ "storage-opts": [`overlay2.size=${size}`] })).toEqual([
      `FILE:2: "storage-opts" must have overlay2.size=SIZE with a size such as 512M or 10G, at least 1M, not "overlay2.size=${size}"`,
    ]);
  }
  const { warnings } = load({ "storage-opts": ["overlay2.skip_mount_home=true"] });
  expect(warnings[0]).toContain('"storage-opts": overlay2.skip_mount_home=true has no effect');
});
