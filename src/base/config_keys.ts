// Every key of daemon.json: its kind, its default, and for those that mean nothing here the reason.
// The names are iSulad's; those marked "ours" have no counterpart there.
import * as k from "./config_values.ts";
import type { Kind, Ulimit } from "./config_values.ts";

export type Key<Output = unknown> = {
  key: string;
  kind: Kind<Output>;
  fallback: Output;
  about: string;
  /** Other spellings, beside "_" for "-". */
  also: readonly string[];
};

function key<Output>(
  name: string,
  kind: Kind<Output>,
  rest: {
    fallback: NoInfer<Output>;
    about: string;
    also?: readonly string[];
  },
): Key<Output> {
  return { key: name, kind, also: [], ...rest };
}

const secondMs = 1000;
const minuteMs = 60 * secondMs;

export const daemonKeys = {
  hosts: key("hosts", k.sockets, {
    fallback: ["unix:///var/run/isulad.sock"],
    about: "sockets that CRI is served on",
    also: ["host"],
  }),
  group: key("group", k.text, {
    fallback: "",
    about:
      "group that may use the socket (then 0660, else 0600), which must lie outside of graph and state",
  }),
  graph: key("graph", k.folder, { fallback: "/var/lib/isulad", about: "what survives a boot" }),
  state: key("state", k.folder, {
    fallback: "/var/run/isulad",
    about: "what lasts until the next boot",
  }),
  pidfile: key("pidfile", k.folder, {
    fallback: "/var/run/isulad.pid",
    about: "the daemon's process id",
  }),
  logLevel: key("log-level", k.logLevel, {
    fallback: "info",
    about: "ERROR, WARN, INFO or DEBUG (iSulad's other levels are the next of these)",
  }),
  logFormat: key("log-format", k.choice(["text", "json"]), {
    fallback: "text",
    about: "ours: text or json",
  }),
  defaultRuntime: key("default-runtime", k.text, {
    fallback: "runc",
    about: "runtime of pods that name no handler",
  }),
  runtimes: key("runtimes", k.runtimes, {
    fallback: {},
    about: "OCI runtimes by handler; runc and crun are found by themselves",
  }),
  criRuntimes: key("cri-runtimes", k.handlerNames, {
    fallback: {},
    about: "further handler names of runtimes",
    also: ["cri-runtime"],
  }),
  cgroupParent: key("cgroup-parent", k.text, {
    fallback: "",
    about: "parent of pods that bring none (/isulad, or isulad.slice)",
  }),
  systemdCgroup: key("systemd-cgroup", k.flagOrAuto, {
    fallback: false,
    about: 'the systemd cgroup driver instead of cgroupfs; "auto": where systemd runs the host',
  }),
  podSandboxImage: key("pod-sandbox-image", k.text, {
    fallback: "",
    about: "image of the pause container, where one is needed; without it a built-in program",
  }),
  pinnedImages: key("pinned-images", k.imagePatterns, {
    fallback: [] as string[],
    about: "ours: images that the kubelet's garbage collection leaves; `*` for any characters",
  }),
  imagesDir: key("images-dir", k.folder, {
    fallback: "",
    about: "ours: a folder of image archives and OCI layouts that are loaded at the start",
  }),
  networkPlugin: key("network-plugin", k.choice(["cni"]), { fallback: "cni", about: "cni" }),
  cniBinDirs: key("cni-bin-dir", k.folders, {
    fallback: ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"],
    about: "where CNI plugins are looked for",
  }),
  cniConfDir: key("cni-conf-dir", k.folder, { fallback: "/etc/cni/net.d", about: "CNI lists" }),
  cniConfTemplate: key("cni-conf-template", k.folder, {
    fallback: "",
    about: "ours: template of the CNI list that is written when the kubelet tells the pod CIDR",
  }),
  registryMirrors: key("registry-mirrors", k.registries, {
    fallback: [] as string[],
    about: "asked before docker.io",
  }),
  insecureRegistries: key("insecure-registries", k.registries, {
    fallback: [] as string[],
    about: "registries by plain HTTP, or with a certificate nobody knows",
    also: ["insecure-registry"],
  }),
  registryConfigPath: key("registry-config-path", k.folder, {
    fallback: "/etc/isulad/certs.d",
    about: "ours: a certs.d tree with hosts.toml files",
  }),
  registryAuthFile: key("registry-auth-file", k.folder, {
    fallback: "",
    about: "ours: the node's own credentials, a file in the form of Docker's config.json",
  }),
  streamProcessors: key("stream-processors", k.streamProcessors, {
    fallback: {},
    about: "ours: programs that decode layers by media type, as containerd's stream_processors",
  }),
  storageDriver: key("storage-driver", k.storageDriver, {
    fallback: "auto",
    about: "overlay2 (overlayfs), native (a copy of the image for each container) or auto",
  }),
  storageOpts: key("storage-opts", k.texts, {
    fallback: [] as string[],
    about: "overlay2.size=10G (or basesize): what a container may write into its own layer",
    also: ["storage-opt"],
  }),
  defaultUlimits: key("default-ulimits", k.ulimits, {
    fallback: [] as Ulimit[],
    about: "resource limits of every container",
    also: ["default-ulimit"],
  }),
  nativeUmask: key("native.umask", k.meaning({ normal: 0o022, secure: 0o027 }), {
    fallback: 0o022,
    about: "umask of containers: normal (0022) or secure (0027)",
  }),
  startTimeoutMs: key("start-timeout", k.duration(secondMs), {
    fallback: 2 * minuteMs,
    about: "for a container to start",
  }),
  runtimeTimeoutMs: key("runtime-timeout", k.duration(secondMs), {
    fallback: minuteMs,
    about:
      "ours: for any other call of the OCI runtime, for a volume's remote disk to answer, and for processes to end of SIGKILL",
  }),
  maxConfNum: key("max-conf-num", k.integer(0, 16), {
    fallback: 1,
    about: "ours: how many CNI lists each pod is attached to (eth0, eth1, …); 0: all",
    also: ["cni-max-conf-num"],
  }),
  ipPreference: key("ip-preference", k.choice(["ipv4", "ipv6", "cni"]), {
    fallback: "ipv4",
    about: "ours: which of a pod's addresses is its ip: ipv4, ipv6, or cni: the first one there is",
    also: ["ip-pref"],
  }),
  cniTimeoutMs: key("cni-timeout", k.duration(secondMs), {
    fallback: minuteMs,
    about: "ours: for one CNI ADD or DEL, all plugins together",
  }),
  pullProgressTimeoutMs: key("pull-progress-timeout", k.duration(secondMs), {
    fallback: minuteMs,
    about: "ours: a pull ends when no byte came for so long",
  }),
  maxConcurrentDownloads: key("max-concurrent-downloads", k.integer(1, 32), {
    fallback: 3,
    about: "ours: layers of one image that are fetched at once",
  }),
  layerMaxMib: key("layer-max-mib", k.integer(1, 1 << 24), {
    fallback: 8192,
    about: "ours: what one layer may unpack to, in MiB",
  }),
  layerMaxEntries: key("layer-max-entries", k.integer(1, 4_000_000), {
    fallback: 500_000,
    about: "ours: files, folders and links that one layer may hold, and parts of its sparse files",
  }),
  layerMaxDepth: key("layer-max-depth", k.integer(1, 1000), {
    fallback: 256,
    about: "ours: how deep a layer's folders may lie",
  }),
  layerMaxRatio: key("layer-max-ratio", k.integer(1, 1_000_000), {
    fallback: 200,
    about: "ours: how many times its packed size a layer may unpack to, beyond 256 MiB",
  }),
  keepBlobs: key("keep-blobs", k.flag, {
    fallback: false,
    about: "ours: layers also stay as they came, for `images verify --repair` without a registry",
  }),
  metricsPort: key("metrics-port", k.integer(0, 65_535), {
    fallback: 0,
    about: "loopback port of Prometheus metrics, at /metrics; 0: none",
  }),
  streamPort: key("websocket-server-listening-port", k.integer(0, 65_535), {
    fallback: 0,
    about: "loopback port of exec, attach and port-forward streams; 0: one that is free",
  }),
  streamIdleMs: key("stream-idle-timeout", k.duration(secondMs), {
    fallback: 4 * 60 * minuteMs,
    about: "ours: a stream ends when no byte went either way for so long",
  }),
  streamTlsCert: key("stream-tls-cert", k.text, {
    fallback: "",
    about: "ours: PEM file with the certificate of the streams' server; then with TLS",
  }),
  streamTlsKey: key("stream-tls-key", k.text, {
    fallback: "",
    about: "ours: PEM file with the key of that certificate",
  }),
  restrictOomScoreAdj: key("restrict-oom-score-adj", k.flag, {
    fallback: false,
    about: "ours: no container gets a lower oom_score_adj than the daemon's",
  }),
  enableUnprivilegedPorts: key("enable-unprivileged-ports", k.flag, {
    fallback: true,
    about: "ours: any user of a pod may listen on ports below 1024",
  }),
  enableUnprivilegedIcmp: key("enable-unprivileged-icmp", k.flag, {
    fallback: true,
    about: "ours: any user of a pod may send pings",
  }),
  rejectMissingMountSources: key("reject-missing-mount-sources", k.flag, {
    fallback: false,
    about: "ours: a container whose host_path is missing is refused; else it becomes a folder",
  }),
  enableCriV1: key("enable-cri-v1", k.flag, {
    fallback: true,
    about: "true: CRI v1 is what is served",
  }),
  enablePodEvents: key("enable-pod-events", k.flag, {
    fallback: false,
    about: "GetContainerEvents; without it a kubelet polls",
  }),
  deviceOwnershipFromSecurityContext: key("device-ownership-from-security-context", k.flag, {
    fallback: false,
    about: "ours: devices belong to run_as_user and run_as_group, not to whom the node's do",
  }),
  selinuxEnabled: key("selinux-enabled", k.flag, {
    fallback: false,
    about: "containers get SELinux labels, where the kernel runs SELinux",
  }),
  enableCdi: key("enable-cdi", k.flag, {
    fallback: false,
    about: "devices by CDI names",
  }),
  blockioConfigFile: key("blockio-config-file", k.text, {
    fallback: "",
    about:
      "ours: classes of block I/O for NRI plugins, in the form of containerd's blockio_config_file",
  }),
  rdtConfigFile: key("rdt-config-file", k.text, {
    fallback: "",
    about:
      "ours: classes of cache and memory bandwidth for NRI plugins, in the form of containerd's rdt_config_file",
  }),
  cdiSpecDirs: key("cdi-spec-dirs", k.folders, {
    fallback: ["/etc/cdi", "/var/run/cdi"],
    about: "where CDI specs lie",
  }),
} as const;

export const nriKeys = {
  support: key("nri-support", k.flag, { fallback: false, about: "NRI plugins" }),
  disableConnections: key("disable-connections", k.flag, {
    fallback: true,
    about: "only pre-installed NRI plugins; false opens the NRI socket",
  }),
  socketPath: key("nri-socket-path", k.folder, {
    fallback: "/var/run/nri/nri.sock",
    about: "the NRI socket",
    also: ["socket-path"],
  }),
  pluginPath: key("plugin-path", k.folder, {
    fallback: "/opt/nri/plugins",
    about: "pre-installed NRI plugins",
  }),
  pluginConfigPath: key("plugin-config-path", k.folder, {
    fallback: "/etc/nri/conf.d",
    about: "configuration of NRI plugins",
  }),
  registrationTimeoutMs: key("plugin-registration-timeout", k.duration(1), {
    fallback: 5 * secondMs,
    about: "for an NRI plugin to register",
  }),
  requestTimeoutMs: key("plugin-request-timeout", k.duration(1), {
    fallback: 2 * secondMs,
    about: "for an NRI plugin to answer",
    also: ["plugin-requst-timeout"],
  }),
  synchronizeTimeoutMs: key("plugin-synchronize-timeout", k.duration(1), {
    fallback: 30 * secondMs,
    about: "ours: for an NRI plugin to take note of all pods and containers",
  }),
  requiredPlugins: key("nri-required-plugins", k.texts, {
    fallback: [],
    about: "ours: NRI plugins (`10-name` or `name`) without which no pod or container is made",
  }),
} as const;

export type IdleKey = {
  key: string;
  kind: Kind<unknown>;
  why: string;
  also: readonly string[];
  /** The value that is how it is here anyway, and so needs no warning. */
  same?: unknown;
};

function idle(
  name: string,
  kind: Kind<unknown>,
  why: string,
  rest: { also?: readonly string[]; same?: unknown } = {},
): IdleKey {
  return { key: name, kind, why, also: [], ...rest };
}

const onlyUnix = "only unix sockets are served, which need no TLS";

/** iSulad's keys that mean nothing here. Each gets one warning, unless it asks for nothing. */
const idleKeys: readonly IdleKey[] = [
  idle(
    "log-driver",
    k.choice(["stdout", "file"]),
    "the log goes to standard error, where systemd's journal keeps it",
    { same: "stdout" },
  ),
  idle("log-opts", k.textMap, "the log goes to standard error and to no file", {
    also: ["log-opt"],
  }),
  idle("container-log", k.anyMap, "logs lie where the CRI client says, in CRI's format"),
  idle("hook-spec", k.text, "OCI hooks come from NRI plugins and CDI devices, not from a file"),
  idle("image-layer-check", k.flag, "every layer is checked against its digest when it is pulled"),
  idle("use-decrypted-key", k.flag, "credentials come with each pull from the CRI client"),
  idle(
    "insecure-skip-verify-enforce",
    k.flag,
    "name the registries in insecure-registries, or use skip_verify in hosts.toml",
  ),
  idle("cri-sandboxers", k.anyMap, "sandboxers are not supported"),
  idle("default-sandboxer", k.text, "sandboxers are not supported"),
  idle("enable-plugins", k.text, "Docker's plugins are not supported; NRI plugins are"),
  idle("authorization-plugin", k.text, "access is by the socket's owner and group alone"),
  idle("tls", k.flag, onlyUnix),
  idle("tls-verify", k.flag, onlyUnix, { also: ["tlsverify"] }),
  idle("tls-config", k.textMap, onlyUnix),
  idle("userns-remap", k.text, "user namespaces are asked for by each pod (hostUsers: false)"),
  idle("cpu-rt-period", k.integer(0, 1_000_000), "real-time scheduling is not set for whole nodes"),
  idle(
    "cpu-rt-runtime",
    k.integer(0, 1_000_000),
    "real-time scheduling is not set for whole nodes",
  ),
  idle("sup-groups", k.texts, "the daemon takes no further groups"),
  idle("engine", k.text, "the runtime is chosen by default-runtime and by handlers"),
  idle("storage-enable-remote-layer", k.flag, "layers are local"),
];

export const allKeys: readonly (Key | IdleKey)[] = [
  ...Object.values<Key>(daemonKeys),
  ...Object.values<Key>(nriKeys),
  ...idleKeys,
];

const bySpelling = new Map(allKeys.flatMap((k) => [k.key, ...k.also].map((name) => [name, k])));

/** Every name that findKey knows, "_" not counted. */
export const spellings: readonly string[] = [...bySpelling.keys()];

export function findKey(spelling: string): Key | IdleKey | undefined {
  return bySpelling.get(spelling.replaceAll("_", "-"));
}
