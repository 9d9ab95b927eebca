// Lists iSulad's keys of daemon.json that have no effect here, with the reason.
import * as k from "./config_values.ts";

export type IdleKey = {
  key: string;
  kind: k.Kind<unknown>;
  why: string;
  also: readonly string[];
  /** The value that requests what happens anyway, and so needs no warning. */
  same?: unknown;
};

function idle(
  name: string,
  kind: k.Kind<unknown>,
  why: string,
  rest: { also?: readonly string[]; same?: unknown } = {},
): IdleKey {
  return { key: name, kind, why, also: [], ...rest };
}

const onlyUnix = "only unix sockets are served, which need no TLS";
const noRealTime = "real-time scheduling is not set for whole nodes";

/** Each causes a warning, unless its value is `same`, false, 0 or empty, which requests nothing. */
export const idleKeys: readonly IdleKey[] = [
  idle(
    "log-driver",
    k.choice(["stdout", "file"]),
    "the log goes to standard error, where systemd's journal keeps it",
    { same: "stdout" },
  ),
  idle("log-opts", k.textMap, "the log goes to standard error and to no file", {
    also: ["log-opt"],
  }),
  idle("container-log", k.anyMap, "the CRI client chooses the path of logs, in CRI's format"),
  idle(
    "hook-spec",
    k.text,
    "OCI hooks come from NRI plugins, CDI devices and the file base-runtime-spec of a runtime",
  ),
  idle("image-layer-check", k.flag, "every layer is checked against its digest when it is pulled"),
  idle("image-opt-timeout", k.text, "pull-progress-timeout limits a pull that makes no progress"),
  idle("image-server-sock-addr", k.text, "images are handled by the daemon itself"),
  idle("use-decrypted-key", k.flag, "credentials come with each pull from the CRI client"),
  idle(
    "insecure-skip-verify-enforce",
    k.flag,
    "name the registries in insecure-registries, or use skip_verify in hosts.toml",
  ),
  idle("cri-sandboxers", k.anyMap, "sandboxers are not supported"),
  idle("default-sandboxer", k.text, "sandboxers are not supported"),
  idle("enable-plugins", k.text, "Docker's plugins are not supported; NRI plugins are"),
  idle("features", k.anyMap, "Docker's features have keys of their own here: enable-cdi for cdi"),
  idle("authorization-plugin", k.text, "access is by the socket's owner and group alone"),
  idle("tls", k.flag, onlyUnix),
  idle("tls-verify", k.flag, onlyUnix, { also: ["tlsverify"] }),
  idle("tls-config", k.textMap, onlyUnix),
  idle("userns-remap", k.text, "each pod requests its user namespace (hostUsers: false)"),
  idle("cpu-rt-period", k.integer(0, 1_000_000), noRealTime),
  idle("cpu-rt-runtime", k.integer(0, 1_000_000), noRealTime),
  idle("sup-groups", k.texts, "the daemon takes no further groups"),
  idle("engine", k.text, "the runtime is chosen by default-runtime and by handlers"),
  idle("storage-enable-remote-layer", k.flag, "layers are local"),
];
