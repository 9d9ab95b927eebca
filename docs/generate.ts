// Writes the generated parts of docs/configuration.md, from the key table, and of docs/observability.md, from the
// table of metrics: `bun docs/generate.ts`.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import type { IdleKey } from "../src/base/config_idle_keys.ts";
import type { Key } from "../src/base/config_key.ts";
import { containerdRules } from "../src/migrate/containerd.ts";
import { crioRules } from "../src/migrate/crio.ts";
import { dockerOwnRules } from "../src/migrate/docker.ts";
import type { Rules } from "../src/migrate/rules.ts";
import { allKeys, findKey } from "../src/base/config_keys.ts";
import { ownMetrics } from "../src/stats/own_metrics.ts";

export const page = join(import.meta.dirname, "configuration.md");
export const metricsPage = join(import.meta.dirname, "observability.md");

/** The page's sections and their keys, in the order of the page. */
const sections: Record<string, string> = {
  "Sockets, folders and log": `
    hosts group socket-uid max-recv-message-size max-send-message-size containerd-socket graph state pidfile
    oom-score log-level log-format max-container-log-line-size log-on-error log-drop-note runtime-name enable-cri-v1 enable-pod-events metrics-port
    metrics-address metrics-tls-cert metrics-tls-key stats-collect-period`,
  "Runtimes and cgroups": `
    default-runtime runtimes cri-runtimes cgroup-parent systemd-cgroup pod-sandbox-image start-timeout
    runtime-timeout`,
  "Containers and security": `
    default-ulimits native.umask selinux-enabled selinux-category-range unset-seccomp-profile
    disable-apparmor disable-proc-mount restrict-oom-score-adj enable-unprivileged-ports enable-unprivileged-icmp
    reject-missing-mount-sources ignore-image-defined-volumes device-ownership-from-security-context
    systemd-containers tolerate-missing-hugetlb-controller disable-hugetlb-controller
    enable-cdi cdi-spec-dirs blockio-config-file rdt-config-file ignore-blockio-not-enabled-errors
    ignore-rdt-not-enabled-errors`,
  "Images and registries": `
    registry-mirrors insecure-registries registry-config-path registry-auth-file pull-progress-timeout
    max-concurrent-downloads pinned-images images-dir image-verifier-dir image-verifier-required
    max-verifiers per-verifier-timeout stream-processors keep-blobs serve-blobs serve-blobs-clients serve-blobs-images
    serve-blobs-private serve-blobs-tls-cert serve-blobs-tls-key layer-max-mib
    layer-max-entries layer-max-depth layer-max-ratio`,
  Storage: "storage-driver storage-opts",
  Networking: `
    network-plugin cni-bin-dir cni-conf-dir cni-conf-template max-conf-num pod-networks ip-preference cni-timeout
    netns-mounts-under-state-dir`,
  "Exec, attach and port-forward": `
    drain-exec-sync-io-timeout stream-server-address websocket-server-listening-port stream-idle-timeout stream-tls-cert stream-tls-key`,
  NRI: `
    nri-support disable-connections nri-socket-path plugin-path plugin-config-path
    plugin-registration-timeout plugin-request-timeout plugin-synchronize-timeout nri-required-plugins`,
};

/** Longer texts about a key's values stand below the table. */
const cellCharsMax = 100;

/** Returns the page's text with its generated parts brought up to date. */
export function generated(text: string): string {
  return withParts(text, {
    keys: keyTables(),
    ignored: ignoredTable(),
    containerd: equivalents("containerd's config.toml", containerdRules),
    crio: equivalents("crio.conf", crioRules),
    docker: equivalents("Docker's daemon.json", dockerOwnRules),
  });
}

/** As generated(), of docs/observability.md. */
export function generatedMetrics(text: string): string {
  return withParts(text, { metrics: metricsTable() });
}

function withParts(text: string, parts: Record<string, string>): string {
  return Object.entries(parts).reduce((page, [name, part]) => {
    const between = new RegExp(`(<!-- begin ${name} -->\n)[^]*?(<!-- end ${name} -->)`);
    if (!between.test(page)) throw new Error(`the page has no part "${name}"`);
    return page.replace(between, (_, begin, end) => `${begin}\n${part}\n${end}`);
  }, text);
}

function metricsTable(): string {
  const rows = Object.entries(ownMetrics).map(([name, { type, labels, help }]) =>
    row([`\`${name}\``, type, labels.map((label) => `\`${label}\``).join(" "), help]),
  );
  return [row(["metric", "type", "labels", "meaning"]), "|---|---|---|---|", ...rows, ""].join(
    "\n",
  );
}

function keyTables(): string {
  const placed = Object.entries(sections).map(
    ([heading, keys]) => [heading, keys.trim().split(/\s+/)] as const,
  );
  const all = placed.flatMap(([, keys]) => keys);
  for (const { key } of allKeys.filter((key) => "about" in key)) {
    const count = all.filter((other) => other === key).length;
    if (count !== 1)
      throw new Error(`${key} is in ${count} sections of docs/generate.ts, not in one`);
  }
  return placed
    .map(([heading, keys]) => `### ${heading}\n\n${keyTable(keys.map(activeKey))}`)
    .join("\n");
}

function activeKey(name: string): Key {
  const key = findKey(name);
  if (key === undefined || !("about" in key)) throw new Error(`no key of daemon.json: ${name}`);
  return key;
}

function keyTable(keys: readonly Key[]): string {
  const isLong = ({ kind }: Key) => kind.allowed.length > cellCharsMax;
  const rows = keys.map((key) => {
    const values = isLong(key) ? "see below" : allowed(key);
    const applies = key.live ? "reload" : "restart";
    return row([names(key), shownDefault(key), values, key.about, applies]);
  });
  const notes = keys.filter(isLong).map((key) => `- \`${key.key}\`: ${allowed(key)}`);
  const table = [
    row(["key", "default", "values", "meaning", "by"]),
    "|---|---|---|---|---|",
    ...rows,
  ];
  return [...table, ...(notes.length > 0 ? ["", ...notes] : []), ""].join("\n");
}

function row(cells: string[]): string {
  return `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
}

export function names({ key, also }: Key | IdleKey): string {
  return [`\`${key}\``, ...also.map((other) => `(or \`${other}\`)`)].join(" ");
}

export function allowed({ kind }: Key): string {
  return kind.allowed.replace(
    'seconds as a number, or a text such as "5s" or "2m", ',
    "duration, ",
  );
}

/** As it could stand in daemon.json; empty where the default is no value. */
export function shownDefault(key: Key): string {
  if (key.key === "runtimes") return "what is installed";
  if (key.key === "native.umask") return '`"normal"`';
  if (key.key === "default-ulimits") return "`{}`";
  if (key.fallback === "") return "";
  const isDuration = allowed(key).startsWith("duration");
  return `\`${JSON.stringify(isDuration ? durationText(Number(key.fallback)) : key.fallback)}\``;
}

function durationText(ms: number): string {
  for (const [unit, size] of [
    ["h", 3_600_000],
    ["m", 60_000],
    ["s", 1000],
  ] as const) {
    if (ms % size === 0 && ms >= 2 * size) return `${ms / size}${unit}`;
  }
  return `${ms}ms`;
}

function ignoredTable(): string {
  const rows = allKeys.filter((key) => "why" in key).map((key) => row([names(key), key.why]));
  return [row(["key", "why it has no effect"]), "|---|---|", ...rows, ""].join("\n");
}

function equivalents(source: string, rules: Rules): string {
  // Version 2 of containerd's configuration has one plugin for what version 3 has in three; version 4 has plugins for
  // tables.
  const isRepeated = (path: string) => /^plugins\/io\.containerd\.(cri|server)\./.test(path);
  const rows = Object.entries(rules).flatMap(([path, { to, why }]) => {
    if (isRepeated(path)) return [];
    const key = path.replace("plugins/io.containerd.grpc.v1.cri/", "CRI: ").replace("plugins/", "");
    return [row([`\`${key}\``, to === undefined ? `none: ${why}` : `\`${to}\``])];
  });
  return [row([source, "daemon.json"]), "|---|---|", ...rows, ""].join("\n");
}

if (import.meta.main) {
  writeFileSync(page, generated(readFileSync(page, "utf8")));
  writeFileSync(metricsPage, generatedMetrics(readFileSync(metricsPage, "utf8")));
  process.stdout.write(`wrote ${page} and ${metricsPage}\n`);
}
