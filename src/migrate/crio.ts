// Lists the equivalents of CRI-O's crio.conf.
import { basename } from "node:path";
import { isShimType, shimProgram } from "../base/shim_program.ts";
import {
  added,
  converted,
  inMap,
  none,
  onlyWith,
  pauseImage,
  same,
  type Default,
  type Rule,
  type Rules,
} from "./rules.ts";

const oneMonitor = none("one monitor, a part of the executable, serves all containers");

const common: Record<string, string> = {
  allowed_annotations: "pod-annotations",
  privileged_without_host_devices: "privileged-without-host-devices",
};
const ofOci: Record<string, string> = { ...common, runtime_path: "path" };
const ofShim: Record<string, string> = {
  ...common,
  runtime_path: "runtime-path",
  runtime_config_path: "runtime-config-path",
};

const runtimes = inMap("runtimes", ({ path, value, table }, entry) => {
  const field = path.at(-1)!;
  const isShim = table["runtime_type"] === "vm";
  if (isShim) {
    const type = shimType(String(table["runtime_path"]));
    if (type === undefined) return { why: notOfShim };
    entry["runtime-type"] = type;
    // A bare name is looked for in the usual folders, as the type's is.
    if (field === "runtime_type" || (field === "runtime_path" && value === basename(String(value))))
      return "runtime-type";
  } else if (field === "runtime_type") {
    return { why: "runtimes other than shims (vm) are called by their command line" };
  }
  const name = (isShim ? ofShim : ofOci)[field];
  if (name === undefined || value === "" || value === false) return undefined;
  entry[name] = value;
  return name;
});

const notOfShim =
  "the program of a shim (vm) must be runtime_path, named containerd-shim-X-Y for io.containerd.X.Y";

/** io.containerd.X.Y, of which containerd makes the name of the executable. */
function shimType(path: string): string | undefined {
  const program = basename(path);
  const [, name, version] = /^containerd-shim-(.+)-([^-]+)$/.exec(program) ?? [];
  const type = `io.containerd.${name}.${version}`;
  return isShimType(type) && shimProgram(type) === program ? type : undefined;
}

/** Metrics are off by default, and on port 9090 where they are on. */
const enableMetrics: Rule = {
  to: "metrics-port",
  apply: (leaf, values) => {
    if (leaf.value !== true) return { why: "metrics-port, which is 0 by default, enables metrics" };
    if (leaf.table["metrics_port"] !== undefined) return "metrics-port";
    return converted("metrics-port", () => 9090).apply(leaf, values);
  },
};

const runtime: Rules = {
  default_runtime: same("default-runtime"),
  cgroup_manager: converted("systemd-cgroup", (value) => value === "systemd"),
  selinux: same("selinux-enabled"),
  log_level: same("log-level"),
  enable_pod_events: same("enable-pod-events"),
  device_ownership_from_security_context: same("device-ownership-from-security-context"),
  cdi_spec_dirs: same("cdi-spec-dirs"),
  blockio_config_file: same("blockio-config-file"),
  rdt_config_file: same("rdt-config-file"),
  seccomp_profile: none(
    "containers name their profile; unset-seccomp-profile is for those that do not",
  ),
  default_ulimits: converted("default-ulimits", (value) =>
    Object.fromEntries(
      (value as string[]).map((limit) => {
        const [, name = limit, soft, hard = soft] =
          /^(\w+)=(-?\d+)(?::(-?\d+))?$/.exec(limit) ?? [];
        return [name, { Name: name, Soft: Number(soft), Hard: Number(hard) }];
      }),
    ),
  ),
  "runtimes/*/*": runtimes,
  drop_infra_ctr: none("a pause container exists only where a pod shares its process ids"),
  conmon: oneMonitor,
  conmon_cgroup: oneMonitor,
};

const image: Rules = {
  pause_image: pauseImage,
  pinned_images: same("pinned-images"),
  insecure_registries: same("insecure-registries"),
  global_auth_file: same("registry-auth-file"),
  pull_progress_timeout: same("pull-progress-timeout"),
  image_volumes: converted(
    "ignore-image-defined-volumes",
    (value) => ({ mkdir: false, bind: false, ignore: true })[String(value)],
  ),
  signature_policy: none("image-verifier-dir has programs that accept or refuse images"),
};

/** Of CRI-O's pkg/config and internal/config/nri: the systemd driver, CDI without a switch, and NRI. */
export const crioDefaults: readonly Default[] = [
  { from: "crio.runtime.cgroup_manager", to: "systemd-cgroup", value: "auto" },
  { from: "crio.runtime.cdi_spec_dirs", to: "enable-cdi", value: true },
  { from: "crio.nri.enable_nri", to: "nri-support", value: true },
  { from: "crio.nri.nri_disable_connections", to: "disable-connections", value: false },
];

function under(table: string, rules: Rules): Rules {
  const entries = Object.entries(rules).map(([path, rule]) => [`crio/${table}/${path}`, rule]);
  return Object.fromEntries(entries) as Rules;
}

export const crioRules: Rules = {
  "crio/root": none("graph is isulad-ts's own folder: CRI-O's data is not read"),
  "crio/runroot": none("state is isulad-ts's own folder"),
  "crio/storage_driver": converted("storage-driver", (value) =>
    value === "overlay" || value === "vfs" ? { overlay: "overlay2", vfs: "native" }[value] : value,
  ),
  "crio/storage_option": added("storage-opts", ({ value }) =>
    (value as string[]).map((option) => option.replace(/^overlay2?\./, "overlay2.")),
  ),
  "crio/api/listen": none(
    "hosts has the socket; name it in the kubelet's containerRuntimeEndpoint",
  ),
  "crio/api/stream_address": same("stream-server-address"),
  "crio/api/stream_port": converted("websocket-server-listening-port", Number),
  "crio/api/stream_enable_tls": none("stream-tls-cert enables TLS"),
  "crio/api/stream_tls_cert": onlyWith("stream_enable_tls", same("stream-tls-cert")),
  "crio/api/stream_tls_key": onlyWith("stream_enable_tls", same("stream-tls-key")),
  "crio/api/stream_idle_timeout": same("stream-idle-timeout"),
  "crio/api/grpc_max_recv_msg_size": same("max-recv-message-size"),
  "crio/api/grpc_max_send_msg_size": same("max-send-message-size"),
  ...under("runtime", runtime),
  ...under("image", image),
  "crio/network/network_dir": same("cni-conf-dir"),
  "crio/network/plugin_dirs": same("cni-bin-dir"),
  "crio/network/cni_default_network": none("the first CNI list of cni-conf-dir is the pods'"),
  "crio/metrics/enable_metrics": enableMetrics,
  "crio/metrics/metrics_port": onlyWith("enable_metrics", same("metrics-port")),
  "crio/metrics/metrics_host": onlyWith("enable_metrics", same("metrics-address")),
  "crio/metrics/metrics_cert": onlyWith("enable_metrics", same("metrics-tls-cert")),
  "crio/metrics/metrics_key": onlyWith("enable_metrics", same("metrics-tls-key")),
  "crio/tracing/**": none("tracing is set by the OTEL_ variables of the environment"),
  "crio/nri/enable_nri": same("nri-support"),
  "crio/nri/nri_disable_connections": same("disable-connections"),
  "crio/nri/nri_listen": same("nri-socket-path"),
  "crio/nri/nri_plugin_dir": same("plugin-path"),
  "crio/nri/nri_plugin_config_dir": same("plugin-config-path"),
  "crio/nri/nri_plugin_registration_timeout": same("plugin-registration-timeout"),
  "crio/nri/nri_plugin_request_timeout": same("plugin-request-timeout"),
};
