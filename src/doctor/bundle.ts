// Collects what explains a node's state into a support bundle, from the files themselves: the daemon may be dead.
import { constants, readdirSync, readFileSync, readlinkSync, readSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { gzipSync } from "node:zlib";
import type { Config, LoadedConfig } from "../base/config.ts";
import { messageOf } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { tarEnd, tarHeader, tarPadding } from "../layer/tar_write.ts";
import { Descriptor } from "../sys/descriptor.ts";
import type { Node } from "./node.ts";
import { redacted } from "./redact.ts";

/** Newest bytes of each log. */
const logBytesMax = 4 << 20;
const journalLines = "20000";
/** journalctl searches the files of all boots. */
const journalMs = 30_000;
const folder = "isulad-ts-support";

export type BundleSources = {
  node: Node;
  /** @throws for a bad configuration. */
  load: () => LoadedConfig;
  /** The texts of other commands, by file name: config.txt, doctor.txt, dump.json. @throws why there is none. */
  texts: Record<string, () => string | Promise<string>>;
};

type Section = [name: string, text: () => string | Promise<string>];

/** Returns a tar.gz. What cannot be collected says why, under its own name. */
export async function supportBundle({ node, load, texts }: BundleSources): Promise<Buffer> {
  const sections: Section[] = [...Object.entries(texts), ...nodeSections(node)];
  try {
    sections.push(...configSections(node, load()));
  } catch {
    // config.txt has the reason.
  }
  const parts: Uint8Array[] = [];
  for (const [name, text] of sections) {
    const content = Buffer.from(redacted(await textOf(text)));
    parts.push(tarHeader(`${folder}/${name}`, content.length), content, tarPadding(content.length));
  }
  return gzipSync(Buffer.concat([...parts, tarEnd]));
}

async function textOf(collect: Section[1]): Promise<string> {
  try {
    return await collect();
  } catch (error) {
    return `not collected: ${messageOf(error)}\n`;
  }
}

function nodeSections(node: Node): Section[] {
  const file = (path: string) => () => readFileSync(join(node.root, path), "utf8");
  return [
    ["kernel.txt", file("/proc/version")],
    ["os-release.txt", file("/etc/os-release")],
    ["mounts.txt", file("/proc/self/mountinfo")],
    ["journal.txt", () => journal(node)],
    ["processes.txt", () => processes(node)],
  ];
}

function configSections(node: Node, { config, files }: LoadedConfig): Section[] {
  const { state, runtimes } = config;
  const at = (path: string) => join(node.root, path);
  const dumps = join(state, "dumps");
  return [
    ...files.map((path, index): Section => [
      `config-${index}.json`,
      () => `// ${path}\n${readFileSync(path, "utf8")}`,
    ]),
    ["monitor.log", () => tail(at(join(state, "monitor.log")))],
    ["daemon.log", () => tail(at(join(dirname(config.graph), "daemon.log")))],
    ["runtimes.txt", () => runtimeVersions(node, runtimes)],
    ["records.txt", () => records(node, config)],
    ["cgroups.txt", () => cgroups(node, state)],
    ...namesIn(at(dumps)).map((name): Section => [
      `dumps/${name}`,
      () => readFileSync(at(join(dumps, name)), "utf8"),
    ]),
  ];
}

/** Returns the daemon's log in whole lines, the newest first: what is over the bound is the oldest. */
async function journal(node: Node): Promise<string> {
  const argv = ["journalctl", "--no-pager", "--reverse", "-u", "isulad-ts", "-n", journalLines];
  const text = await node.output(argv, { bytesMax: logBytesMax, timeoutMs: journalMs });
  return text.slice(0, text.lastIndexOf("\n") + 1);
}

/** Returns the end of a file, whole lines. */
function tail(path: string): string {
  const { size } = statSync(path);
  const bytes = Buffer.alloc(Math.min(size, logBytesMax));
  using log = Descriptor.open(path, constants.O_RDONLY);
  readSync(log.fd, bytes, 0, bytes.length, size - bytes.length);
  const text = bytes.toString("utf8");
  return size > bytes.length ? text.slice(text.indexOf("\n") + 1) : text;
}

function namesIn(path: string): string[] {
  try {
    return readdirSync(path).sort();
  } catch {
    return [];
  }
}

async function runtimeVersions(node: Node, runtimes: Config["runtimes"]): Promise<string> {
  const texts = Object.entries(runtimes).map(async ([name, { path }]) => {
    const version = await textOf(() => node.output([path, "--version"]));
    return `${name}: ${path}\n${version.trim()}\n`;
  });
  return (await Promise.all(texts)).join("\n");
}

/** Lists the records without their configurations, whose variables and arguments have secrets. */
function records(node: Node, { graph, state }: Config): string {
  const at = (...path: string[]) => join(node.root, ...path);
  const folders = { sandbox: "sandboxes", container: "containers" };
  const lines = Object.entries(folders).flatMap(([kind, name]) =>
    namesIn(at(graph, name)).map((id) => {
      const own = at(graph, name, id);
      const files = [
        at(state, "records", `${kind}-${id}.json`),
        join(own, `${kind}.settled.json`),
        join(own, `${kind}.json`),
      ];
      return `${kind} ${id} ${recordText(files)}`;
    }),
  );
  return `${lines.join("\n")}\n`;
}

/** files: newest first. */
function recordText(files: string[]): string {
  for (const path of files) {
    try {
      const { name, phase, image, createdAtNs } = trustedJsonValue(
        readFileSync(path, "utf8"),
      ) as Record<string, unknown>;
      return jsonText({ name, phase, image, createdAtNs });
    } catch {
      // the next one
    }
  }
  return "no readable record";
}

/** The limits and figures of the running containers' cgroups, as the monitor has recorded them. */
function cgroups(node: Node, state: string): string {
  const runs = join(node.root, state, "monitor", "containers");
  const paths = namesIn(runs).flatMap((name) => {
    const { id, cgroup = {} } = trustedJsonValue(readFileSync(join(runs, name), "utf8")) as {
      id: string;
      cgroup?: Record<string, string>;
    };
    return [...new Set(Object.values(cgroup))].map((path) => ({ id, path }));
  });
  const blocks = paths.map(({ id, path }) => {
    const own = join(node.root, path);
    const wanted = namesIn(own).filter((name) => /^(memory|cpu|pids|io|cgroup)\./.test(name));
    const lines = wanted.flatMap((name) => {
      const text = kernelText(join(own, name));
      return text === undefined || text === "" ? [] : [`${name}: ${text.replaceAll("\n", " | ")}`];
    });
    return `container ${id}\n${path}\n${lines.map((line) => `  ${line}`).join("\n")}\n`;
  });
  return blocks.join("\n") || "no running container\n";
}

/** What the processes of daemon and monitor do and wait for, by the kernel. */
function processes(node: Node): string {
  const proc = join(node.root, "/proc");
  const ours = namesIn(proc).filter((pid) => /^\d+$/.test(pid) && isOurs(join(proc, pid)));
  const blocks = ours.map((pid) => {
    const files = ["cmdline", "status", "limits", "cgroup", "oom_score_adj"];
    const texts = files.map((name) => `${name}:\n${kernelText(join(proc, pid, name)) ?? ""}`);
    const threads = namesIn(join(proc, pid, "task")).map((thread) => {
      const own = join(proc, pid, "task", thread);
      const [comm, wchan] = ["comm", "wchan"].map((name) => kernelText(join(own, name)));
      return `thread ${thread} ${comm} waits in ${wchan}`;
    });
    return `process ${pid}\n${[...texts, ...threads].join("\n").replaceAll("\0", " ")}\n`;
  });
  return blocks.join("\n") || "no process of isulad-ts\n";
}

function isOurs(path: string): boolean {
  try {
    return /\/isulad-ts[^/]*$/.test(readlinkSync(join(path, "exe")).replace(/ \(deleted\)$/, ""));
  } catch {
    return false; // it has ended, or is a thread of the kernel
  }
}

/** undefined for files that cannot be read, such as those of absent controllers. */
function kernelText(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8").trim();
  } catch {
    return undefined;
  }
}
