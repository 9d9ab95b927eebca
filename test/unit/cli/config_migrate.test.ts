// Tests the conversion of other programs' configurations: each supported key is seen in daemon.json, each other one
// is listed, and the result is valid.
import { describe, expect, test } from "bun:test";
import { stringify } from "smol-toml";
import { migrated, reportText } from "../../../src/cli/config_migrate.ts";
import { containerdRules } from "../../../src/migrate/containerd.ts";
import { crioRules } from "../../../src/migrate/crio.ts";
import { load, useConfigFolder } from "../base/config_file.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

useConfigFolder();

/** Puts a value at a path whose names are separated by "/". */
function tree(path: string, value: unknown): Record<string, unknown> {
  return path.split("/").reduceRight<unknown>((inner, name) => ({ [name]: inner }), value) as never;
}

const runtime = "plugins/io.containerd.cri.v1.runtime";
const images = "plugins/io.containerd.cri.v1.images";
const old = "plugins/io.containerd.grpc.v1.cri";
const oneRuntime = `${runtime}/containerd/runtimes/x`;

/** Path in the source, value, and daemon.json. */
type Case = [path: string, value: unknown, expected: Record<string, unknown>];

const flags = [
  "restrict_oom_score_adj disable_apparmor disable_proc_mount tolerate_missing_hugetlb_controller",
  "disable_hugetlb_controller device_ownership_from_security_context ignore_image_defined_volumes",
  "netns_mounts_under_state_dir enable_unprivileged_ports enable_unprivileged_icmp enable_cdi",
].flatMap((names) => names.split(" "));

const containerd: Case[] = [
  ...flags.flatMap((flag) =>
    [true, false].map((on): Case => [
      `${runtime}/${flag}`,
      on,
      { [flag.replaceAll("_", "-")]: on },
    ]),
  ),
  [`${old}/sandbox_image`, "a/pause:1", { "pod-sandbox-image": "a/pause:1" }],
  [`${images}/pinned_images/sandbox`, "a/pause:2", { "pod-sandbox-image": "a/pause:2" }],
  [`${old}/enable_selinux`, true, { "selinux-enabled": true }],
  [`${old}/max_container_log_line_size`, 4096, { "max-container-log-line-size": 4096 }],
  [`${runtime}/selinux_category_range`, 512, { "selinux-category-range": 512 }],
  [
    `${runtime}/unset_seccomp_profile`,
    "runtime/default",
    { "unset-seccomp-profile": "runtime/default" },
  ],
  [`${runtime}/cdi_spec_dirs`, ["/c"], { "cdi-spec-dirs": ["/c"] }],
  [`${runtime}/drain_exec_sync_io_timeout`, "5s", { "drain-exec-sync-io-timeout": "5s" }],
  [`${images}/stats_collect_period`, 20, { "stats-collect-period": 20 }],
  [`${old}/stream_server_address`, "10.0.0.1", { "stream-server-address": "10.0.0.1" }],
  [`${old}/stream_server_port`, "10010", { "websocket-server-listening-port": 10_010 }],
  [`${old}/stream_idle_timeout`, "1h", { "stream-idle-timeout": "1h" }],
  [`${images}/max_concurrent_downloads`, 5, { "max-concurrent-downloads": 5 }],
  [`${images}/image_pull_progress_timeout`, "3m", { "pull-progress-timeout": "3m" }],
  [`${old}/containerd/snapshotter`, "native", { "storage-driver": "native" }],
  [`${images}/snapshotter`, "native", { "storage-driver": "native" }],
  [`${images}/snapshotter`, "overlayfs", { "storage-driver": "overlay2" }],
  [`${images}/discard_unpacked_layers`, false, { "keep-blobs": true }],
  [`${old}/containerd/discard_unpacked_layers`, false, { "keep-blobs": true }],
  [`${images}/registry/config_path`, "/c:/d", { "registry-config-path": "/c" }],
  [
    `${old}/registry/mirrors/docker.io/endpoint`,
    ["https://m.test"],
    { "registry-mirrors": ["https://m.test"] },
  ],
  [
    `${old}/registry/configs/r.test/tls/insecure_skip_verify`,
    true,
    { "insecure-registries": ["r.test"] },
  ],
  [`${runtime}/containerd/default_runtime_name`, "runc", { "default-runtime": "runc" }],
  [
    `${runtime}/containerd/ignore_rdt_not_enabled_errors`,
    true,
    { "ignore-rdt-not-enabled-errors": true },
  ],
  [
    `${runtime}/containerd/ignore_blockio_not_enabled_errors`,
    true,
    { "ignore-blockio-not-enabled-errors": true },
  ],
  [`${runtime}/cni/bin_dir`, "/b", { "cni-bin-dir": "/b" }],
  [`${runtime}/cni/bin_dirs`, ["/b"], { "cni-bin-dir": ["/b"] }],
  [`${runtime}/cni/conf_dir`, "/n", { "cni-conf-dir": "/n" }],
  [`${runtime}/cni/max_conf_num`, 2, { "max-conf-num": 2 }],
  [`${runtime}/cni/conf_template`, "/t", { "cni-conf-template": "/t" }],
  [`${runtime}/cni/ip_pref`, "ipv6", { "ip-preference": "ipv6" }],
  [`${oneRuntime}/runtime_type`, "io.containerd.runc.v2", { runtimes: { x: { path: "runc" } } }],
  [
    `${oneRuntime}/runtime_type`,
    "io.containerd.kata.v2",
    { runtimes: { x: { "runtime-type": "io.containerd.kata.v2" } } },
  ],
  [`${oneRuntime}/options/SystemdCgroup`, true, { "systemd-cgroup": true }],
  [
    `${oneRuntime}/options/BinaryName`,
    "/usr/bin/crun",
    { runtimes: { x: { path: "/usr/bin/crun" } } },
  ],
  ["oom_score", -999, { "oom-score": -999 }],
  ["grpc/uid", 1000, { "socket-uid": 1000 }],
  ["grpc/gid", 1000, { group: "1000" }],
  ["grpc/max_recv_message_size", 32 << 20, { "max-recv-message-size": 32 << 20 }],
  ["grpc/max_send_message_size", 32 << 20, { "max-send-message-size": 32 << 20 }],
  ["debug/level", "debug", { "log-level": "debug" }],
  ["debug/format", "json", { "log-format": "json" }],
  ["metrics/address", "127.0.0.1:1338", { "metrics-port": 1338 }],
  ["plugins/io.containerd.nri.v1.nri/disable", false, { "nri-support": true }],
  ["plugins/io.containerd.nri.v1.nri/disable_connections", false, { "disable-connections": false }],
  ["plugins/io.containerd.nri.v1.nri/socket_path", "/n.sock", { "nri-socket-path": "/n.sock" }],
  ["plugins/io.containerd.nri.v1.nri/plugin_path", "/p", { "plugin-path": "/p" }],
  ["plugins/io.containerd.nri.v1.nri/plugin_config_path", "/p", { "plugin-config-path": "/p" }],
  [
    "plugins/io.containerd.nri.v1.nri/plugin_registration_timeout",
    "7s",
    { "plugin-registration-timeout": "7s" },
  ],
  [
    "plugins/io.containerd.nri.v1.nri/default_validator/required_plugins",
    ["10-a"],
    { "nri-required-plugins": ["10-a"] },
  ],
  [
    "plugins/io.containerd.nri.v1.nri/plugin_request_timeout",
    "7s",
    { "plugin-request-timeout": "7s" },
  ],
  ["plugins/io.containerd.image-verifier.v1.bindir/bin_dir", "/v", { "image-verifier-dir": "/v" }],
  ["plugins/io.containerd.image-verifier.v1.bindir/max_verifiers", 4, { "max-verifiers": 4 }],
  [
    "plugins/io.containerd.image-verifier.v1.bindir/per_verifier_timeout",
    "4s",
    { "per-verifier-timeout": "4s" },
  ],
  [
    "plugins/io.containerd.service.v1.tasks-service/blockio_config_file",
    "/b",
    { "blockio-config-file": "/b" },
  ],
  [
    "plugins/io.containerd.service.v1.tasks-service/rdt_config_file",
    "/r",
    { "rdt-config-file": "/r" },
  ],
  [
    "plugins/io.containerd.snapshotter.v1.overlayfs/mount_options",
    ["metacopy=on"],
    { "storage-opts": ["overlay2.mountopt=metacopy=on"] },
  ],
];

const crio: Case[] = [
  ["crio/storage_driver", "overlay", { "storage-driver": "overlay2" }],
  ["crio/storage_driver", "vfs", { "storage-driver": "native" }],
  [
    "crio/storage_option",
    ["overlay.mountopt=metacopy=on"],
    { "storage-opts": ["overlay2.mountopt=metacopy=on"] },
  ],
  ["crio/api/stream_address", "10.0.0.1", { "stream-server-address": "10.0.0.1" }],
  ["crio/api/stream_port", "10010", { "websocket-server-listening-port": 10_010 }],
  ["crio/api/stream_idle_timeout", "1h", { "stream-idle-timeout": "1h" }],
  ["crio/api/grpc_max_recv_msg_size", 83_886_080, { "max-recv-message-size": 83_886_080 }],
  ["crio/api/grpc_max_send_msg_size", 83_886_080, { "max-send-message-size": 83_886_080 }],
  ["crio/runtime/default_runtime", "runc", { "default-runtime": "runc" }],
  ["crio/runtime/cgroup_manager", "systemd", { "systemd-cgroup": true }],
  ["crio/runtime/cgroup_manager", "cgroupfs", { "systemd-cgroup": false }],
  ["crio/runtime/selinux", true, { "selinux-enabled": true }],
  ["crio/runtime/log_level", "warn", { "log-level": "warn" }],
  ["crio/runtime/enable_pod_events", true, { "enable-pod-events": true }],
  [
    "crio/runtime/device_ownership_from_security_context",
    true,
    { "device-ownership-from-security-context": true },
  ],
  ["crio/runtime/cdi_spec_dirs", ["/c"], { "cdi-spec-dirs": ["/c"] }],
  ["crio/runtime/blockio_config_file", "/b", { "blockio-config-file": "/b" }],
  ["crio/runtime/rdt_config_file", "/r", { "rdt-config-file": "/r" }],
  [
    "crio/runtime/default_ulimits",
    ["nofile=1024:4096"],
    { "default-ulimits": { nofile: { Name: "nofile", Soft: 1024, Hard: 4096 } } },
  ],
  [
    "crio/runtime/runtimes/crun/runtime_path",
    "/usr/bin/crun",
    { runtimes: { crun: { path: "/usr/bin/crun" } } },
  ],
  ["crio/image/pause_image", "a/pause:1", { "pod-sandbox-image": "a/pause:1" }],
  ["crio/image/pinned_images", ["a/*"], { "pinned-images": ["a/*"] }],
  ["crio/image/insecure_registries", ["r.test"], { "insecure-registries": ["r.test"] }],
  ["crio/image/global_auth_file", "/a.json", { "registry-auth-file": "/a.json" }],
  ["crio/image/pull_progress_timeout", "20s", { "pull-progress-timeout": "20s" }],
  ["crio/network/network_dir", "/n", { "cni-conf-dir": "/n" }],
  ["crio/network/plugin_dirs", ["/b"], { "cni-bin-dir": ["/b"] }],
  ["crio/image/image_volumes", "ignore", { "ignore-image-defined-volumes": true }],
  ["crio/image/image_volumes", "mkdir", { "ignore-image-defined-volumes": false }],
  ["crio/image/image_volumes", "bind", { "ignore-image-defined-volumes": false }],
  ["crio/metrics/enable_metrics", true, { "metrics-port": 9090 }],
  ["crio/nri/enable_nri", true, { "nri-support": true }],
  ["crio/nri/nri_disable_connections", true, { "disable-connections": true }],
  ["crio/nri/nri_listen", "/n.sock", { "nri-socket-path": "/n.sock" }],
  ["crio/nri/nri_plugin_dir", "/p", { "plugin-path": "/p" }],
  ["crio/nri/nri_plugin_config_dir", "/p", { "plugin-config-path": "/p" }],
  ["crio/nri/nri_plugin_registration_timeout", "7s", { "plugin-registration-timeout": "7s" }],
  ["crio/nri/nri_plugin_request_timeout", "7s", { "plugin-request-timeout": "7s" }],
];

test.each<Case>([...containerd, ...crio])("%s = %j", (path, value, expected) => {
  const version = path.startsWith("crio") ? {} : { version: path.startsWith(old) ? 2 : 3 };
  const { values, report } = migrated(stringify({ ...version, ...tree(path, value) }), "FILE");
  const plain = path.startsWith("crio") ? { crio: {} } : version;
  expect(values).toEqual({ ...migrated(stringify(plain), "FILE").values, ...expected });
  expect(report.filter(({ key }) => !/^version$|its default/.test(key))).toEqual([
    { key: expect.any(String), to: expect.any(String) },
  ]);
  load(values); // throws for what is invalid
});

test.each<[string, unknown]>([
  ["max_container_log_line_size", -1],
  ["stream_server_port", "any"],
  ["drain_exec_sync_io_timeout", "0s"],
  ["cdi_spec_dirs", "relative"],
  ["unset_seccomp_profile", ""],
  ["snapshotter", "devmapper"],
  ["registry/mirrors/docker.io/endpoint", 5],
  ["registry/mirrors/r.test/endpoint", ["https://m.test"]],
  ["registry/configs/r.test/auth/password", "secret"],
  ["containerd/runtimes/x/sandboxer", "podsandbox"],
  ["containerd/runtimes/X_Y/runtime_type", "io.containerd.runc.v2"],
  ["containerd/runtimes/x/base_runtime_spec", "relative"],
  ["no_such_key", true],
])("%s = %j has no equivalent, and is listed", (path, value) => {
  const { values, report } = migrated(
    stringify({ version: 2, ...tree(`${old}/${path}`, value) }),
    "FILE",
  );
  expect(values).toEqual({});
  const listed = report.filter(({ key }) => key !== "version");
  expect(listed).toEqual([
    { key: expect.stringContaining("grpc.v1.cri"), why: expect.any(String) },
  ]);
  expect(reportText({ values, report })).not.toContain("secret");
});

describe("a whole file", () => {
  test("of containerd has each of its keys in the report", () => {
    const source = `version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
pod_annotations = ['a.*']
container_annotations = ['b.*']
privileged_without_host_devices = true
privileged_without_host_devices_all_devices_allowed = true
base_runtime_spec = '/b.json'
cni_conf_dir = '/n'
cni_max_conf_num = 2
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = ''
IoUid = 5
SystemdCgroup = true
[plugins.'io.containerd.gc.v1.scheduler']
pause_threshold = 0.02
[stream_processors.'io.containerd.ocicrypt.decoder.v1.tar']
accepts = ['application/vnd.oci.image.layer.v1.tar+encrypted']
returns = 'application/vnd.oci.image.layer.v1.tar'
path = '/usr/bin/ctd-decoder'
args = ['--decryption-keys-path', '/keys']
`;
    const { values, report } = migrated(source, "FILE");
    expect(report.map(({ key, to }) => [key.split(".").at(-1), to !== undefined])).toEqual([
      ["version", false],
      ["runtime_type", true],
      ...["pod_annotations", "container_annotations"].map((name) => [name, true]),
      ["privileged_without_host_devices", true],
      ["privileged_without_host_devices_all_devices_allowed", true],
      ...["base_runtime_spec", "cni_conf_dir", "cni_max_conf_num"].map((name) => [name, true]),
      ["BinaryName", false],
      ["IoUid", true],
      ["SystemdCgroup", true],
      ["pause_threshold", false],
      ...["accepts", "returns", "path", "args"].map((name) => [name, true]),
      ...["enable_cdi", "disable", "disable_connections"].map((n) => [`${n} (its default)`, true]),
    ]);
    expect(values).toEqual({
      ...migrated("version = 3", "FILE").values,
      runtimes: {
        runc: {
          path: "runc",
          "pod-annotations": ["a.*"],
          "container-annotations": ["b.*"],
          "privileged-without-host-devices": true,
          "privileged-without-host-devices-all-devices-allowed": true,
          "base-runtime-spec": "/b.json",
          "cni-conf-dir": "/n",
          "cni-max-conf-num": 2,
          "runtime-options": { IoUid: 5 },
        },
      },
      "systemd-cgroup": true,
      "stream-processors": {
        "io.containerd.ocicrypt.decoder.v1.tar": {
          accepts: ["application/vnd.oci.image.layer.v1.tar+encrypted"],
          returns: "application/vnd.oci.image.layer.v1.tar",
          path: "/usr/bin/ctd-decoder",
          args: ["--decryption-keys-path", "/keys"],
        },
      },
    });
    expect(load(values).config.systemdCgroup).toBe(true);
  });

  test("of Docker or iSulad", () => {
    const source = {
      "data-root": "/d",
      "exec-opts": ["native.cgroupdriver=systemd"],
      "registry-mirrors": ["https://m.test"],
      "default-ulimits": { nofile: { Name: "nofile", Hard: 2, Soft: 1 } },
      runtimes: { crun: { path: "/usr/bin/crun", runtimeArgs: ["-a"] } },
      features: { cdi: true },
      "image-opt-timeout": "5m",
      "image-server-sock-addr": "unix:///x",
      "cni-bin-dir": "/b",
      bip: "10.0.0.1/24",
      "metrics-addr": "127.0.0.1:9323",
      debug: true,
    };
    const { values, report } = migrated(JSON.stringify(source), "FILE");
    expect(report.map(({ key }) => key)).toEqual(Object.keys(source));
    expect(report.filter(({ why }) => why !== undefined).map(({ key }) => key)).toEqual([
      "data-root",
      "image-opt-timeout",
      "image-server-sock-addr",
      "bip",
    ]);
    expect(values).toEqual({
      "systemd-cgroup": true,
      "registry-mirrors": ["https://m.test"],
      "default-ulimits": source["default-ulimits"],
      runtimes: { crun: { path: "/usr/bin/crun", "runtime-args": ["-a"] } },
      "enable-cdi": true,
      "cni-bin-dir": "/b",
      "metrics-port": 9323,
      "log-level": "DEBUG",
    });
    load(values);
  });

  test.each([
    ["version = 1", "version 1 of containerd's configuration is unknown"],
    ["version = 9", "version 9"],
    ["root = '/x'", "neither a table crio nor a version"],
    ["= 5", "Invalid TOML"],
    ["{", "FILE: "],
  ])("that is %j is refused", (text, why) => {
    const message = codeAndMessage(() => migrated(text, "FILE"));
    expect(message).toStartWith("INVALID_ARGUMENT: FILE: ");
    expect(message).toContain(why);
  });
});

test("certificate and key of the stream server go together", () => {
  const pairs = [
    {
      version: 2,
      ...tree(`${old}/x509_key_pair_streaming`, { tls_cert_file: "/c", tls_key_file: "/k" }),
    },
    tree("crio/api", { stream_enable_tls: true, stream_tls_cert: "/c", stream_tls_key: "/k" }),
  ];
  for (const pair of pairs) {
    const { values } = migrated(stringify(pair), "FILE");
    expect(values).toMatchObject({ "stream-tls-cert": "/c", "stream-tls-key": "/k" });
    load(values);
  }
});

test("each rule with an equivalent has a case above", () => {
  const plugin = /^plugins\/io\.containerd\.(server\.v1\.|(cri|grpc)\.v1\.[a-z]+\/)/;
  const tried = [...containerd, ...crio].map(([path]) => path.replace(plugin, ""));
  const elsewhere =
    /tls_(cert|key)|metrics_|^disabled_plugins$|^stream_processors|runtimes\/\*\/options\/\*/;
  const rules = Object.entries({ ...containerdRules, ...crioRules });
  const untried = rules
    .filter(([path, { to }]) => to !== undefined && !elsewhere.test(path))
    .map(([path]) => path.replace(plugin, ""))
    .filter(
      (path) => !tried.some((one) => new RegExp(`^${path.replaceAll("*", "[^/]+")}$`).test(one)),
    );
  expect(untried).toEqual([]);
});
