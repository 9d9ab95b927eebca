// Lists the keys of daemon.json with kind and default; config_nri_keys.ts has NRI's, config_idle_keys.ts those without
// effect.
import { idleKeys, type IdleKey } from "./config_idle_keys.ts";
import { key, minuteMs, secondMs, seconds, type Key } from "./config_key.ts";
import { nriKeys } from "./config_nri_keys.ts";
import * as k from "./config_values.ts";
import { handlerNames, runtimes } from "./runtime_values.ts";

/** From what a kubelet's calls may take up to what the daemon can hold. */
const messageBytes = k.integer(16 << 20, 256 << 20);

const emptyMap = {};

export const daemonKeys = {
  hosts: key("hosts", k.sockets, ["unix:///var/run/isulad.sock"], {
    about: "sockets that CRI is served on",
    also: ["host"],
  }),
  group: key("group", k.text, "", {
    about:
      "group that may use the socket (mode 0660, else 0600), which must be outside of graph and state",
  }),
  socketUid: key("socket-uid", k.integer(0, 2 ** 32 - 2), 0, {
    about: "user that owns the socket, and may use it as root may",
  }),
  maxRecvBytes: key("max-recv-message-size", messageBytes, 16 << 20, {
    about: "bytes of a request, beyond which a call is refused",
  }),
  maxSendBytes: key("max-send-message-size", messageBytes, 16 << 20, {
    about:
      "bytes of a response, beyond which a call fails; kubelets accept no more than the default",
  }),
  containerdSocket: key("containerd-socket", k.socketPath, "", {
    about:
      "socket of a read-only part of containerd's API, by which a kubelet's cAdvisor names pods and containers in its metrics; empty: none",
  }),
  graph: key("graph", k.absolutePath, "/var/lib/isulad", { about: "folder of persistent data" }),
  state: key("state", k.absolutePath, "/var/run/isulad", {
    about: "folder of runtime state, cleared at boot",
  }),
  pidfile: key("pidfile", k.absolutePath, "/var/run/isulad.pid", {
    about: "the daemon's process id",
  }),
  logLevel: key("log-level", k.logLevel, "info", {
    live: true,
    about: "ERROR, WARN, INFO or DEBUG (iSulad's other levels are the next of these)",
  }),
  logFormat: key("log-format", k.choice(["text", "json"]), "text", { about: "text or json" }),
  defaultRuntime: key("default-runtime", k.text, "runc", {
    live: true,
    about: "runtime of pods that name no handler",
  }),
  runtimes: key("runtimes", runtimes, emptyMap, {
    live: true,
    about: "OCI runtimes and shims by handler; installed runc and crun are always included",
  }),
  criRuntimes: key("cri-runtimes", handlerNames, emptyMap, {
    live: true,
    about: "further handler names of runtimes and shims",
    also: ["cri-runtime"],
  }),
  cgroupParent: key("cgroup-parent", k.text, "", {
    about: "parent of pods without a cgroup_parent (/isulad, or isulad.slice)",
  }),
  systemdCgroup: key("systemd-cgroup", k.flagOrAuto, false, {
    about: 'the systemd cgroup driver instead of cgroupfs; "auto": if systemd is the init',
  }),
  podSandboxImage: key("pod-sandbox-image", k.text, "", {
    live: true,
    about: "image of the pause container, if a pod needs one; default: a built-in program",
  }),
  pinnedImages: key("pinned-images", k.imagePatterns, [], {
    live: true,
    about: "images excluded from the kubelet's garbage collection; `*` for any characters",
  }),
  imagesDir: key("images-dir", k.absolutePath, "", {
    about: "folder of image archives and OCI layouts that are loaded at the start",
  }),
  networkPlugin: key("network-plugin", k.choice(["cni"]), "cni", { about: "cni" }),
  cniBinDirs: key("cni-bin-dir", k.folders, ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"], {
    live: true,
    about: "folders searched for CNI plugins",
  }),
  cniConfDir: key("cni-conf-dir", k.absolutePath, "/etc/cni/net.d", {
    live: true,
    about: "CNI lists",
  }),
  cniConfTemplate: key("cni-conf-template", k.absolutePath, "", {
    live: true,
    about: "template of the CNI list that is written when the kubelet reports the pod CIDR",
  }),
  registryMirrors: key("registry-mirrors", k.registries, [], {
    live: true,
    about: "mirrors, tried before docker.io",
  }),
  insecureRegistries: key("insecure-registries", k.registries, [], {
    live: true,
    about: "registries with plain HTTP, or with an unverified certificate",
    also: ["insecure-registry"],
  }),
  registryConfigPath: key("registry-config-path", k.absolutePath, "/etc/isulad/certs.d", {
    live: true,
    about: "a certs.d tree with hosts.toml files",
  }),
  registryAuthFile: key("registry-auth-file", k.absolutePath, "", {
    live: true,
    about: "the node's own credentials, a file in the format of Docker's config.json",
  }),
  imageVerifierDir: key("image-verifier-dir", k.absolutePath, "", {
    live: true,
    about: "folder of programs that must all accept an image before it is pulled; empty: none",
  }),
  imageVerifierRequired: key("image-verifier-required", k.flag, false, {
    live: true,
    about: "refuse every pull while image-verifier-dir is absent or empty",
  }),
  maxVerifiers: key("max-verifiers", k.integer(1, 100), 10, {
    live: true,
    about: "number of programs in image-verifier-dir over which every pull is refused",
  }),
  perVerifierTimeoutMs: key(
    "per-verifier-timeout",
    k.duration(secondMs, 10 * minuteMs),
    10 * secondMs,
    {
      live: true,
      about: "timeout of each program of image-verifier-dir",
    },
  ),
  streamProcessors: key("stream-processors", k.streamProcessors, emptyMap, {
    live: true,
    about: "programs that decode layers by media type, as containerd's stream_processors",
  }),
  storageDriver: key("storage-driver", k.storageDriver, "auto", {
    about: "overlay2 (overlayfs), native (a copy of the image for each container) or auto",
  }),
  storageOpts: key("storage-opts", k.texts, [], {
    about:
      "overlay2.size=10G (or basesize): limit of a container's writable layer; overlay2.mountopt=metacopy=on: option of its overlayfs mount",
    also: ["storage-opt"],
  }),
  defaultUlimits: key("default-ulimits", k.ulimits, [], {
    live: true,
    about:
      "resource limits of every container; the soft limit of nofile is usually 1024 without it",
    also: ["default-ulimit"],
  }),
  nativeUmask: key("native.umask", k.meaning({ normal: 0o022, secure: 0o027 }), 0o022, {
    live: true,
    about: "umask of containers: normal (0022) or secure (0027)",
  }),
  startTimeoutMs: key("start-timeout", seconds, 2 * minuteMs, {
    live: true,
    about: "timeout of a container's start",
  }),
  runtimeTimeoutMs: key("runtime-timeout", seconds, minuteMs, {
    live: true,
    about:
      "timeout of any other call of the OCI runtime, of a volume's remote disk, and of processes to end after SIGKILL",
  }),
  maxConfNum: key("max-conf-num", k.integer(0, 16), 1, {
    live: true,
    about: "number of CNI lists that each pod is attached to (eth0, eth1, …); 0: all",
    also: ["cni-max-conf-num"],
  }),
  podNetworks: key("pod-networks", k.texts, ["*"], {
    live: true,
    about:
      "CNI lists that pods may ask for by annotation, besides their own; `*` for any characters, an empty list for none",
  }),
  ipPreference: key("ip-preference", k.choice(["ipv4", "ipv6", "cni"]), "ipv4", {
    live: true,
    about: "address family of a pod's ip: ipv4, ipv6, or cni: the first address of the result",
    also: ["ip-pref"],
  }),
  netnsUnderState: key("netns-mounts-under-state-dir", k.flag, false, {
    live: true,
    about:
      "network namespaces of new pods are files of the state folder, instead of /var/run/netns, where ip-netns(8) lists them",
  }),
  cniTimeoutMs: key("cni-timeout", seconds, minuteMs, {
    live: true,
    about: "timeout of a CNI ADD or DEL, all plugins together",
  }),
  pullProgressTimeoutMs: key("pull-progress-timeout", seconds, minuteMs, {
    live: true,
    about: "timeout of a pull without progress: 64 bytes a second",
  }),
  maxConcurrentDownloads: key("max-concurrent-downloads", k.integer(1, 32), 3, {
    about: "layers of one image that are fetched concurrently",
  }),
  layerMaxMib: key("layer-max-mib", k.integer(1, 1 << 24), 8192, {
    about: "limit of a layer's unpacked size, in MiB",
  }),
  layerMaxEntries: key("layer-max-entries", k.integer(1, 4_000_000), 500_000, {
    about: "limit of a layer's files, folders, links, and parts of sparse files",
  }),
  layerMaxDepth: key("layer-max-depth", k.integer(1, 1000), 256, {
    about: "limit of the depth of a layer's folders",
  }),
  layerMaxRatio: key("layer-max-ratio", k.integer(1, 1_000_000), 200, {
    about: "limit of a layer's unpacked size in multiples of its packed size, beyond 256 MiB",
  }),
  keepBlobs: key("keep-blobs", k.flag, false, {
    about:
      "keep layers also in packed form, for `images verify --repair` without a registry and for serve-blobs",
  }),
  serveBlobs: key("serve-blobs", k.listenAddress, "", {
    about: "address of a read-only registry mirror for other nodes; needs keep-blobs; empty: none",
  }),
  serveBlobsClients: key("serve-blobs-clients", k.networks, [], {
    live: true,
    about: "networks whose clients are served",
  }),
  serveBlobsImages: key("serve-blobs-images", k.repositoryPatterns, ["*"], {
    live: true,
    about: "repositories that are served; `*` for any characters",
  }),
  serveBlobsPrivate: key("serve-blobs-private", k.flag, false, {
    live: true,
    about: "serve images that were pulled with credentials, too; needs TLS",
  }),
  serveBlobsTlsCert: key("serve-blobs-tls-cert", k.absolutePath, "", {
    live: true,
    about: "PEM file with the certificate of the mirror; enables TLS",
  }),
  serveBlobsTlsKey: key("serve-blobs-tls-key", k.absolutePath, "", {
    live: true,
    about: "PEM file with the key of that certificate",
  }),
  statsCollectMs: key("stats-collect-period", k.duration(secondMs, 60 * minuteMs), 10 * secondMs, {
    about:
      "time between two measurements of running containers and of their writable layers, while a client asks for statistics",
  }),
  metricsPort: key("metrics-port", k.integer(0, 65_535), 0, {
    about: "port of Prometheus metrics, /healthz and /readyz; 0: none",
  }),
  metricsAddress: key("metrics-address", k.nodeAddress, "127.0.0.1", {
    about: "address of metrics-port; whoever reaches it may read",
  }),
  metricsTlsCert: key("metrics-tls-cert", k.text, "", {
    live: true,
    about: "PEM file with the certificate of metrics-port; enables TLS",
  }),
  metricsTlsKey: key("metrics-tls-key", k.text, "", {
    live: true,
    about: "PEM file with its key",
  }),
  maxContainerLogLineSize: key("max-container-log-line-size", k.integer(256, 65_536), 16_384, {
    live: true,
    about: "bytes of a line in a container's log; a longer one is written in parts",
  }),
  logOnError: key("log-on-error", k.choice(["drop", "block"]), "drop", {
    live: true,
    about:
      "what happens to a container's output while its log cannot be written: drop it, after 5 s where the disk is full, or block the container",
  }),
  logDropNote: key("log-drop-note", k.flag, true, {
    live: true,
    about: "a line in a container's log, on stderr, says how much output was dropped",
  }),
  drainExecSyncIoMs: key("drain-exec-sync-io-timeout", k.duration(1, 60 * minuteMs), 100, {
    live: true,
    about:
      "timeout, after the end of an ExecSync's process, of the output of those that it has left behind",
  }),
  streamServerAddress: key("stream-server-address", k.nodeAddress, "127.0.0.1", {
    about: "address of exec, attach and port-forward streams",
  }),
  streamPort: key("websocket-server-listening-port", k.integer(0, 65_535), 0, {
    about: "port of exec, attach and port-forward streams; 0: any free port",
  }),
  streamIdleMs: key("stream-idle-timeout", seconds, 4 * 60 * minuteMs, {
    about: "timeout of a stream without a byte in either direction",
  }),
  streamTlsCert: key("stream-tls-cert", k.text, "", {
    live: true,
    about: "PEM file with the certificate of the stream server; enables TLS",
  }),
  streamTlsKey: key("stream-tls-key", k.text, "", {
    live: true,
    about: "PEM file with the key of that certificate",
  }),
  oomScore: key("oom-score", k.integer(-1000, 1000), 0, {
    about: "oom_score_adj of the daemon and the monitor; 0: as they were started",
  }),
  restrictOomScoreAdj: key("restrict-oom-score-adj", k.flag, false, {
    live: true,
    about: "raise a lower oom_score_adj of a container to the daemon's",
  }),
  unsetSeccompProfile: key("unset-seccomp-profile", k.seccompProfile, "", {
    live: true,
    about: "seccomp profile of pods and containers that request none; empty: unconfined",
  }),
  disableProcMount: key("disable-proc-mount", k.flag, false, {
    live: true,
    about: "mask the usual paths of /proc and /sys in containers that request fewer",
  }),
  disableApparmor: key("disable-apparmor", k.flag, false, {
    about:
      "run containers without AppArmor; those that name a profile, even RuntimeDefault, are refused",
  }),
  tolerateMissingHugetlbController: key("tolerate-missing-hugetlb-controller", k.flag, true, {
    live: true,
    about: "ignore limits of huge pages on a node without the hugetlb controller",
  }),
  disableHugetlbController: key("disable-hugetlb-controller", k.flag, false, {
    live: true,
    about: "ignore limits of huge pages on every node",
  }),
  systemdContainers: key("systemd-containers", k.choice(["off", "userns", "all"]), "off", {
    live: true,
    about:
      "containers whose command is systemd or /sbin/init get a writable cgroup and folders in memory: none, those in user namespaces, or all",
  }),
  ignoreImageDefinedVolumes: key("ignore-image-defined-volumes", k.flag, false, {
    live: true,
    about: "make no folder for the volumes that an image defines",
  }),
  enableUnprivilegedPorts: key("enable-unprivileged-ports", k.flag, true, {
    live: true,
    about: "any user of a pod may listen on ports below 1024",
  }),
  enableUnprivilegedIcmp: key("enable-unprivileged-icmp", k.flag, true, {
    live: true,
    about: "any user of a pod may send pings",
  }),
  rejectMissingMountSources: key("reject-missing-mount-sources", k.flag, false, {
    live: true,
    about: "refuse a container whose host_path does not exist, instead of making a folder",
  }),
  enableCriV1: key("enable-cri-v1", k.flag, true, { about: "true: the daemon serves CRI v1" }),
  runtimeName: key("runtime-name", k.choice(["isulad-ts", "containerd"]), "isulad-ts", {
    about:
      "the runtime's name in CRI's Version; containerd: for programs that choose by name and need only CRI, NRI or cgroups",
    restartEffect:
      "at the kubelet's next start the container ids in pod statuses begin with the new name; no container restarts",
  }),
  enablePodEvents: key("enable-pod-events", k.flag, false, {
    about: "GetContainerEvents; without it a kubelet polls",
  }),
  deviceOwnershipFromSecurityContext: key("device-ownership-from-security-context", k.flag, false, {
    live: true,
    about: "devices belong to run_as_user and run_as_group instead of the owner on the node",
  }),
  selinuxEnabled: key("selinux-enabled", k.flag, false, {
    about: "containers get SELinux labels, if the kernel has SELinux enabled",
  }),
  selinuxCategoryRange: key("selinux-category-range", k.integer(2, 1024), 1022, {
    live: true,
    about: "number of SELinux categories, from c0, of which each pod gets two",
  }),
  enableCdi: key("enable-cdi", k.flag, false, { live: true, about: "devices by CDI names" }),
  blockioConfigFile: key("blockio-config-file", k.text, "", {
    live: true,
    about:
      "classes of block I/O for annotations and NRI plugins, in the form of containerd's blockio_config_file",
  }),
  rdtConfigFile: key("rdt-config-file", k.text, "", {
    live: true,
    about:
      "classes of cache and memory bandwidth for annotations and NRI plugins, in the form of containerd's rdt_config_file",
  }),
  ignoreBlockioErrors: key("ignore-blockio-not-enabled-errors", k.flag, false, {
    live: true,
    about:
      "ignore annotations that name a class of block I/O while blockio-config-file is unset, instead of refusing the container",
  }),
  ignoreRdtErrors: key("ignore-rdt-not-enabled-errors", k.flag, false, {
    live: true,
    about:
      "ignore annotations that name an RDT class while rdt-config-file is unset or the node has no resctrl, instead of refusing the container",
  }),
  cdiSpecDirs: key("cdi-spec-dirs", k.folders, ["/etc/cdi", "/var/run/cdi"], {
    live: true,
    about: "folders of CDI specs",
  }),
} as const;

/** The servers that can use TLS: each NAME has the fields NAMETlsCert and NAMETlsKey. */
export const tlsServerNames = ["stream", "metrics", "serveBlobs"] as const;
export type TlsServerName = (typeof tlsServerNames)[number];

export const allKeys: readonly (Key | IdleKey)[] = [
  ...Object.values<Key>(daemonKeys),
  ...Object.values<Key>(nriKeys),
  ...idleKeys,
];

const bySpelling = new Map(
  allKeys.flatMap((one) => [one.key, ...one.also].map((spelling) => [spelling, one])),
);

/** Every spelling that findKey accepts with "-"; it takes "_" for "-", too. */
export const spellings: readonly string[] = [...bySpelling.keys()];

export function findKey(spelling: string): Key | IdleKey | undefined {
  return bySpelling.get(spelling.replaceAll("_", "-"));
}
