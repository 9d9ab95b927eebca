// Lists the equivalents of containerd's config.toml, versions 2 (1.7), 3 (2.0) and 4 (2.4).
import {
  converted,
  added,
  inMap,
  metricsAddress,
  none,
  pauseImage,
  portOf,
  same,
  type Default,
  type Leaf,
  type Rule,
  type Rules,
} from "./rules.ts";

/** The plugins whose keys are CRI's: the first is version 2's, which version 3 has split. */
const criPlugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"].concat([
  "io.containerd.cri.v1.images",
]);

const partsHaveKeys = "parts of the daemon have keys of their own, such as nri-support";
const noDriver = "storage-driver has overlay2 and native";
const otel = "tracing is set by the OTEL_ variables of the environment";
const forOwnClients = "it serves containerd's own clients";

const isOf = (value: unknown, meanings: Record<string, unknown>) => meanings[String(value)];
const gone = "only containerd needs it";
const noRemote = "remote snapshotters are not supported";
const credentials = "write it into registry-auth-file, in the format of Docker";
const onlyUnix = "only unix sockets are served, which need no TLS";

/** Fields of a runtime whose names differ from daemon.json's only by "_" for "-". */
const runtimeFields =
  /^(pod_annotations|container_annotations|privileged_without_host_devices|privileged_without_host_devices_all_devices_allowed|base_runtime_spec|cni_conf_dir|cni_max_conf_num|runtime_path)$/;

const isUnset = (value: unknown) =>
  value === "" || value === 0 || value === false || (Array.isArray(value) && value.length === 0);

const runtimes = inMap("runtimes", ({ path, value }, entry) => {
  const field = path.at(-1)!;
  if (field === "runtime_type") {
    // The monitor calls runc itself; containerd's shim for it is not needed.
    const isRunc = String(value).startsWith("io.containerd.runc.");
    if (isRunc) entry["path"] ??= "runc";
    else entry["runtime-type"] = value;
    return isRunc ? "path" : "runtime-type";
  }
  if (!runtimeFields.test(field) || isUnset(value)) return undefined;
  const name = field.replaceAll("_", "-");
  entry[name] = value;
  return name;
});

const options = inMap("runtimes", ({ path, value }, entry) => {
  const option = path.at(-1)!;
  if (isUnset(value)) return undefined;
  if (option === "ConfigPath" || option === "BinaryName") {
    const name = option === "BinaryName" ? "path" : "runtime-config-path";
    entry[name] = value;
    return name;
  }
  if (!/^(Root|IoUid|IoGid|NoNewKeyring|CriuImagePath|CriuWorkPath)$/.test(option))
    return undefined;
  entry["runtime-options"] = { ...(entry["runtime-options"] as object), [option]: value };
  return `runtime-options.${option}`;
});

/** One driver serves all handlers. */
const cgroupDriver: Rule = {
  to: "systemd-cgroup",
  apply: ({ value }, values) => {
    values["systemd-cgroup"] = values["systemd-cgroup"] === true || value === true;
    return "systemd-cgroup";
  },
};

/** containerd takes several folders, daemon.json one. */
const registryFolder: Rule = {
  to: "registry-config-path",
  apply: (leaf, values) => {
    const [first = "", ...rest] = String(leaf.value).split(":").filter(Boolean);
    const set = converted("registry-config-path", () => first).apply(leaf, values);
    if (typeof set !== "string" || rest.length === 0) return set;
    return `${set}, which takes one folder: copy into it what it lacks of ${rest.join(", ")}`;
  },
};

const keepBlobs = converted("keep-blobs", (value) => value === false);

const cri: Rules = {
  sandbox_image: pauseImage,
  "pinned_images/sandbox": pauseImage,
  max_container_log_line_size: same("max-container-log-line-size"),
  enable_selinux: same("selinux-enabled"),
  selinux_category_range: same("selinux-category-range"),
  disable_apparmor: same("disable-apparmor"),
  restrict_oom_score_adj: same("restrict-oom-score-adj"),
  disable_proc_mount: same("disable-proc-mount"),
  unset_seccomp_profile: same("unset-seccomp-profile"),
  tolerate_missing_hugetlb_controller: same("tolerate-missing-hugetlb-controller"),
  disable_hugetlb_controller: same("disable-hugetlb-controller"),
  device_ownership_from_security_context: same("device-ownership-from-security-context"),
  ignore_image_defined_volumes: same("ignore-image-defined-volumes"),
  netns_mounts_under_state_dir: same("netns-mounts-under-state-dir"),
  enable_unprivileged_ports: same("enable-unprivileged-ports"),
  enable_unprivileged_icmp: same("enable-unprivileged-icmp"),
  enable_cdi: same("enable-cdi"),
  cdi_spec_dirs: same("cdi-spec-dirs"),
  drain_exec_sync_io_timeout: same("drain-exec-sync-io-timeout"),
  stats_collect_period: same("stats-collect-period"),
  stream_server_address: same("stream-server-address"),
  stream_server_port: converted("websocket-server-listening-port", portOf),
  stream_idle_timeout: same("stream-idle-timeout"),
  "x509_key_pair_streaming/tls_cert_file": same("stream-tls-cert"),
  "x509_key_pair_streaming/tls_key_file": same("stream-tls-key"),
  enable_tls_streaming: none("stream-tls-cert and stream-tls-key enable TLS"),
  max_concurrent_downloads: same("max-concurrent-downloads"),
  image_pull_progress_timeout: same("pull-progress-timeout"),
  snapshotter: converted("storage-driver", (value) =>
    isOf(value, { overlayfs: "overlay2", native: "native" }),
  ),
  "containerd/snapshotter": converted("storage-driver", (value) =>
    isOf(value, { overlayfs: "overlay2", native: "native" }),
  ),
  "containerd/default_runtime_name": same("default-runtime"),
  "containerd/ignore_blockio_not_enabled_errors": same("ignore-blockio-not-enabled-errors"),
  "containerd/ignore_rdt_not_enabled_errors": same("ignore-rdt-not-enabled-errors"),
  "containerd/runtimes/*/options/SystemdCgroup": cgroupDriver,
  "containerd/runtimes/*/options/*": options,
  "containerd/runtimes/*/snapshotter": none("all runtimes share the driver of storage-driver"),
  "containerd/runtimes/*/sandboxer": none("a pod's sandbox is a container of its shim"),
  "containerd/runtimes/*/disable_pause_image_pull": none("no pod needs a pause image"),
  "containerd/runtimes/*/cgroup_writable": none("the cgroups of a container are read-only"),
  "containerd/runtimes/*/io_type": none("streams are FIFOs, or a terminal"),
  "containerd/runtimes/*/*": runtimes,
  "cni/bin_dir": same("cni-bin-dir"),
  "cni/bin_dirs": same("cni-bin-dir"),
  "cni/conf_dir": same("cni-conf-dir"),
  "cni/max_conf_num": same("max-conf-num"),
  "cni/conf_template": same("cni-conf-template"),
  "cni/ip_pref": same("ip-preference"),
  "cni/setup_serially": none("the networks of a pod are always attached one after the other"),
  "cni/use_internal_loopback": none("loopback is always brought up without the CNI plugin"),
  "registry/config_path": registryFolder,
  "registry/mirrors/docker.io/endpoint": added(
    "registry-mirrors",
    ({ value }) => value as string[],
  ),
  "registry/mirrors/**": none("write it as hosts.toml into registry-config-path"),
  "registry/configs/*/tls/insecure_skip_verify": added("insecure-registries", ({ path, value }) =>
    value === true ? [path.at(-3)!] : [],
  ),
  "registry/configs/*/tls/*": none("write it as hosts.toml into registry-config-path"),
  "registry/configs/*/auth/*": none(credentials),
  "registry/configs/**": none("it is empty, or written as hosts.toml into registry-config-path"),
  "registry/auths/**": none(credentials),
  "registry/headers/**": none("write it as hosts.toml into registry-config-path"),
  disable_snapshot_annotations: none(noRemote),
  discard_unpacked_layers: keepBlobs,
  "containerd/discard_unpacked_layers": keepBlobs,
  "containerd/disable_snapshot_annotations": none(noRemote),
  "containerd/no_pivot": none("the root is always changed by pivot_root"),
  "containerd/default_runtime/**": none("containerd has replaced it by default_runtime_name"),
  "containerd/untrusted_workload_runtime/**": none("containerd has replaced it by a handler"),
  disable_cgroup: none("every container has a cgroup"),
  systemd_cgroup: none("containerd has replaced it by SystemdCgroup of a runtime"),
  image_pull_with_sync_fs: none("layers are synced in the background, and checked after a crash"),
  "image_decryption/key_model": none("keys are those of the programs of stream-processors"),
  concurrent_layer_fetch_buffer: none("a layer is one request"),
  use_local_image_pull: none("there is one way to pull"),
  stats_retention_period: none("statistics are those of the moment"),
  enable_criu: none("a container can be checkpointed where criu works"),
  ignore_deprecation_warnings: none("no key is deprecated"),
  disable_tcp_service: none("streams have the server of stream-server-address"),
};

const nri: Rules = {
  disable: converted("nri-support", (value) => value === false),
  disable_connections: same("disable-connections"),
  socket_path: same("nri-socket-path"),
  plugin_path: same("plugin-path"),
  plugin_config_path: same("plugin-config-path"),
  plugin_registration_timeout: same("plugin-registration-timeout"),
  plugin_request_timeout: same("plugin-request-timeout"),
  "default_validator/required_plugins": same("nri-required-plugins"),
  "default_validator/**": none("a validator of your own can be required (nri-required-plugins)"),
};

const verifiers: Rules = {
  bin_dir: same("image-verifier-dir"),
  max_verifiers: same("max-verifiers"),
  per_verifier_timeout: same("per-verifier-timeout"),
};

function under(plugin: string, rules: Rules): Rules {
  const entries = Object.entries(rules).map(([path, rule]) => [`plugins/${plugin}/${path}`, rule]);
  return Object.fromEntries(entries) as Rules;
}

/** Root's group is the default, which a key cannot name. */
const group: Rule = {
  to: "group",
  apply: (leaf, values) =>
    leaf.value === 0
      ? { why: "only root and socket-uid may use the socket, by default" }
      : converted("group", String).apply(leaf, values),
};

/** Of the plugins that containerd's key can disable, only NRI has a key of isulad-ts that switches it off. */
const disabledPlugins: Rule = {
  to: "nri-support",
  apply: ({ value }, values) => {
    if (!(value as string[]).includes("io.containerd.nri.v1.nri")) return { why: partsHaveKeys };
    values["nri-support"] = false;
    return "nri-support";
  },
};

/** Returns the rule of a plugin whose keys all have no equivalent. */
function without(plugin: string, why: string): Rules {
  return { [`plugins/io.containerd.${plugin}/**`]: none(why) };
}

const mountOptions = ({ value }: Leaf) =>
  (value as string[]).map((option) => `overlay2.mountopt=${option}`);

const processors = inMap("stream-processors", ({ path, value }, entry) => {
  const field = path.at(-1)!;
  entry[field] = value;
  return field;
});

/** Tables of their own until version 3, plugins io.containerd.server.v1.NAME in version 4. */
const servers: Rules = {
  "grpc/address": none("hosts has the socket; name it in the kubelet's containerRuntimeEndpoint"),
  "grpc/uid": same("socket-uid"),
  "grpc/gid": group,
  "grpc/max_recv_message_size": same("max-recv-message-size"),
  "grpc/max_send_message_size": same("max-send-message-size"),
  "grpc/**": none(onlyUnix),
  "grpc-tcp/**": none(onlyUnix),
  "ttrpc/**": none("shims are called on their own sockets, without a sink for events"),
  "debug/address": none("isulad-ts debug uses the socket of hosts"),
  "debug/uid": none("isulad-ts debug uses the socket of hosts"),
  "debug/gid": none("isulad-ts debug uses the socket of hosts"),
  "metrics/address": metricsAddress,
};

/** Of containerd 2 (versions 3 and 4): docs/cri/config.md, docs/NRI.md. */
export const containerd2Defaults: readonly Default[] = [
  { from: "io.containerd.cri.v1.runtime.enable_cdi", to: "enable-cdi", value: true },
  { from: "io.containerd.nri.v1.nri.disable", to: "nri-support", value: true },
  { from: "io.containerd.nri.v1.nri.disable_connections", to: "disable-connections", value: false },
];

export const containerdRules: Rules = {
  version: none(gone),
  root: none("graph is isulad-ts's own folder: containerd's data is not read"),
  state: none("state is isulad-ts's own folder"),
  temp: none("TMPDIR of the service's environment names it"),
  plugin_dir: none("no plugins are loaded into the daemon"),
  disabled_plugins: disabledPlugins,
  required_plugins: none(partsHaveKeys),
  oom_score: same("oom-score"),
  imports: none("files of daemon.json.d are read after daemon.json"),
  ...servers,
  ...Object.fromEntries(
    Object.entries(servers).map(([path, rule]) => [
      `plugins/io.containerd.server.v1.${path}`,
      rule,
    ]),
  ),
  "debug/level": same("log-level"),
  "debug/format": same("log-format"),
  "debug/log_trace_id": none("lines of the log have no trace; spans name the call's objects"),
  "metrics/grpc_histogram": none("calls always have a histogram"),
  "cgroup/path": none("the service manager places the daemon"),
  "stream_processors/*/*": processors,
  ...Object.assign({}, ...criPlugins.map((plugin) => under(plugin, cri))),
  ...under("io.containerd.nri.v1.nri", nri),
  ...under("io.containerd.image-verifier.v1.bindir", verifiers),
  ...under("io.containerd.service.v1.tasks-service", {
    blockio_config_file: same("blockio-config-file"),
    rdt_config_file: same("rdt-config-file"),
  }),
  ...under("io.containerd.snapshotter.v1.overlayfs", {
    root_path: none("layers are in graph"),
    mount_options: added("storage-opts", mountOptions),
    upperdir_label: none("layers have no labels"),
    slow_chown: none("ids are mapped by the mount, or files copied with them"),
    sync_remove: none("the daemon removes unused layers itself"),
  }),
  "timeouts/**": none("start-timeout and runtime-timeout limit calls of a runtime and its shim"),
  "plugins/io.containerd.gc.v1.scheduler/**": none("unused layers are removed with their images"),
  "plugins/io.containerd.monitor.container.v1.restart/**": none("the kubelet restarts containers"),
  "proxy_plugins/**": none("other programs' snapshotters and content stores are not called"),
  ...without("internal.v1.restart", "the kubelet restarts containers"),
  ...without("monitor.v1.cgroups", "figures of containers are calls of CRI"),
  ...without("runtime.v1.linux", "containerd has replaced it by runtime v2"),
  ...without("snapshotter.v1.native", "layers are in graph"),
  ...without("snapshotter.v1.blockfile", noDriver),
  ...without("snapshotter.v1.btrfs", noDriver),
  ...without("snapshotter.v1.devmapper", noDriver),
  ...without("snapshotter.v1.zfs", noDriver),
  ...without("snapshotter.v1.erofs", noDriver),
  ...without("differ.v1.erofs", noDriver),
  ...without("mount-handler.v1.erofs", noDriver),
  ...without("metrics.v1.grpc-prometheus", "calls always have a histogram"),
  ...without("internal.v1.opt", "it is for ctr install"),
  ...without("internal.v1.tracing", otel),
  ...without("tracing.processor.v1.otlp", otel),
  ...without("metadata.v1.bolt", "there is one namespace, and no database"),
  ...without("monitor.task.v1.cgroups", "figures of containers are calls of CRI"),
  ...without("runtime.v2.task", "images are for this node's platform"),
  ...without("shim.v1.manager", "shims inherit the daemon's environment"),
  ...without("service.v1.diff-service", forOwnClients),
  ...without("transfer.v1.local", forOwnClients),
};
