// Tests the architecture: imports between rooms, no cycles, no dead files, limits of length, and banned code.
import { describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize, relative } from "node:path";

const root = join(import.meta.dirname, "..");

/** Room → the other rooms that it may import. "root" is src/*.ts. */
const mayImport: Record<string, string[]> = {
  base: [],
  proto: [],
  sys: ["base"],
  spec: ["base", "sys", "proto"],
  state: ["base", "sys", "proto"],
  node: ["base", "sys", "spec", "state", "proto"],
  registry: ["base", "sys"],
  layer: ["base", "sys", "registry"],
  image: ["base", "sys", "registry", "layer"],
  monitor_log: ["base", "sys", "node"],
  shim: ["base", "sys", "node", "proto"],
  monitor: ["base", "sys", "state", "node", "monitor_log", "shim"],
  monitor_client: ["base", "sys", "monitor"],
  stats: ["base", "sys", "node", "proto"],
  nri: ["base", "sys", "spec", "proto"],
  trace: ["base"],
  history: ["base", "state", "proto"],
  stream: ["base", "sys", "node", "monitor", "monitor_client", "shim"],
  cri: [
    "base",
    "sys",
    "spec",
    "state",
    "node",
    "registry",
    "layer",
    "image",
    "monitor",
    "monitor_client",
    "stats",
    "nri",
    "stream",
    "trace",
    "history",
    "shim",
    "proto",
  ],
  recovery: ["base", "sys", "state", "node", "monitor", "cri"],
  doctor: ["base", "sys", "node", "registry", "layer", "trace"],
  install: ["base", "sys", "node", "proto"],
  migrate: ["base"],
  cli: ["base", "sys", "doctor", "install", "migrate", "proto"],
};
/** Files that are started without an import: the program and its workers. */
const entries = [
  "src/main.ts",
  "src/monitor_log/log_worker.ts",
  "src/sys/poller_worker.ts",
  "src/sys/unmount_worker.ts",
];

/** Files that read only what isulad-ts has written: records, messages between its processes, answers to its commands. */
const trustedReaders = new RegExp(
  `^src/(?:base/json|cli/\\w+|cri/container_update|doctor/bundle|folders|image/(?:image_origin|images_dir|records)|` +
    `install/leftovers|layer/(?:layer_manifest|layer_record|unpack_helper|unpack_pool)|` +
    `monitor/(?:oci_exec|protocol|record_schemas)|node/cni_(?:cache|del_failures)|nri/container_changes|` +
    `shim/shim_file|spec/oci_types|state/store)\\.ts$`,
);

const sources = filesIn("src").filter((file) => !file.startsWith("src/proto/"));
const imports = new Map(sources.map((file) => [file, importsOf(file)]));

function filesIn(folder: string): string[] {
  return readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .map((name) => join(folder, name))
    .filter((name) => name.endsWith(".ts") && !name.includes("node_modules"))
    .sort();
}

function specifiersOf(file: string): string[] {
  const text = readFileSync(join(root, file), "utf8");
  const found = text.matchAll(
    /(?:^|\n)\s*(?:import|export)\b[^;'"]*?from\s*["']([^"']+)["']|\bimport\s*\(?\s*["']([^"']+)["']/g,
  );
  return [...found].map((match) => (match[1] ?? match[2])!);
}

function importsOf(file: string): string[] {
  return specifiersOf(file)
    .filter((name) => name.startsWith("."))
    .map((name) => normalize(join(dirname(file), name)));
}

/** The files with all that they import, and so on. */
function reachedFrom(files: string[], importsOf: (file: string) => string[]): Set<string> {
  const reached = new Set<string>();
  const open = [...files];
  for (let file = open.pop(); file !== undefined; file = open.pop()) {
    if (reached.has(file)) continue;
    reached.add(file);
    open.push(...importsOf(file));
  }
  return reached;
}

function roomOf(file: string): string {
  const [, room, rest] = file.split("/");
  return rest === undefined ? "root" : room!;
}

/** The first words of test files, and those of the other files in test/. Add a verb that fits, not a noun. */
const testVerbs = ["Tests", "Compares", "Runs"];
const verbs = new Set(
  `Builds Changes Checks Computes Connects Decodes Defines Describes Detects Disturbs Encodes Finds Fuzzes
  Generates Inspects Interrupts Kills Lists Makes Measures Mounts Opens Provides Reads Records Sends Sets
  Starts Stresses Subscribes`.split(/\s+/),
);

/** True when a file of test/ begins with a comment whose first word is such a verb, with an object. */
function hasVerb(file: string, firstLine: string): boolean {
  const verb = /^\/\/ (\w+) \S/.exec(firstLine)?.[1] ?? "";
  return testVerbs.includes(verb) || (verbs.has(verb) && !file.endsWith(".test.ts"));
}

/** Finds an import cycle through `file`. */
function cycleAt(file: string): string[] | undefined {
  const stack = (imports.get(file) ?? []).map((next) => [file, next]);
  const seen = new Set<string>();
  for (let way = stack.pop(); way !== undefined; way = stack.pop()) {
    const last = way.at(-1)!;
    if (last === file) return way;
    if (seen.has(last)) continue;
    seen.add(last);
    for (const next of imports.get(last) ?? []) stack.push([...way, next]);
  }
  return undefined;
}

describe("rooms", () => {
  test("src has the rooms of the table, one level deep", () => {
    const deep = sources.filter((file) => file.split("/").length > 3);
    const strange = sources.filter((file) => {
      const room = roomOf(file);
      return room !== "root" && mayImport[room] === undefined;
    });
    expect({ deep, strange }).toEqual({ deep: [], strange: [] });
  });

  test("a room imports only the rooms below it", () => {
    const wrong: string[] = [];
    for (const [file, targets] of imports) {
      const room = roomOf(file);
      if (room === "root") continue;
      for (const target of targets) {
        const other = roomOf(target);
        if (!target.startsWith("src/")) wrong.push(`${file} → ${target}`);
        else if (other !== room && !mayImport[room]?.includes(other)) {
          wrong.push(`${file} → ${target}`);
        }
      }
    }
    expect(wrong).toEqual([]);
  });

  test("every relative import names a file, with its extension", () => {
    const all = [...sources, ...filesIn("test"), ...["proto", "dist", "docs"].flatMap(filesIn)];
    const broken = all.flatMap((file) =>
      importsOf(file)
        .filter((target) => !target.startsWith("src/proto/"))
        .filter((target) => !existsSync(join(root, target)) || !/\.\w+$/.test(target))
        .map((target) => `${file} → ${target}`),
    );
    expect(broken).toEqual([]);
  });

  test("imports have no cycles", () => {
    const cycles = sources.map(cycleAt).filter((way) => way !== undefined);
    expect(cycles.map((way) => way.join(" → "))).toEqual([]);
  });

  test("every file is reached from the program or its worker", () => {
    const own = entries.filter((file) => sources.includes(file));
    const reached = reachedFrom(own, (file) => imports.get(file) ?? []);
    expect(sources.filter((file) => !reached.has(file))).toEqual([]);
  });

  test("the unpack helper loads nothing slow at its start, which each pull waits for", () => {
    const textOf = (file: string) => readFileSync(join(root, file), "utf8");
    const reached = reachedFrom(["src/layer/unpack_helper.ts"], (file) => {
      const own = textOf(file).matchAll(/^import (?!type\b)[^;]*?"(\.[^"]+)";/gm);
      return Array.from(own, ([, name]) => normalize(join(dirname(file), name!)));
    });
    const slow = /^import (?!type\b)[^;]*?"(?:node:tls|node:worker_threads|valibot|smol-toml)";/m;
    expect([...reached].filter((file) => slow.test(textOf(file)))).toEqual([]);
    expect(reached.size).toBeGreaterThan(30);
  });
});

describe("style", () => {
  /** Patterns banned in sources, and the files excepted. */
  const bans: { what: RegExp; why: string; except?: RegExp }[] = [
    { what: /["']bun:/, why: "Bun's own modules: only sys/libc.ts", except: /^src\/sys\/libc/ },
    { what: /\bDeno\./, why: "Deno's own interface: only sys/libc.ts", except: /^src\/sys\/libc/ },
    {
      what: /\b(open|close)Sync\(|\bnew Descriptor\(|\b\w*[fF]ds?\??: (readonly )?number/,
      why: "a descriptor has an owner: Descriptor.open or .adopt of sys/descriptor.ts",
      except: /^src\/sys\//,
    },
    { what: /^export default\b/, why: "named exports only" },
    { what: /\bwaitpid\(\s*-1/, why: "it steals Bun's children" },
    {
      what: /\/proc\/\$\{[^}]*\}\/(cmdline|environ|auxv|maps|smaps\w*|mem|pagemap|cwd|root)\b/,
      why: "it hangs while that process waits for a server that does not answer: sys/command_lines.ts; commands harm only who runs them",
      except: /^src\/(sys\/command_lines|sys\/program_pages|cli\/\w+|doctor\/\w+|install\/\w+)\.ts/,
    },
    {
      what: /^import (?!type )[^;]*["']node:child_process["']/,
      why: "sys/children.ts: a subreaper must know its children",
      except: /^src\/sys\/children/,
    },
    {
      what: /\bJSON\.(stringify|parse)\(/,
      why: "jsonText and jsonValue: bigint throws, a lone surrogate gets in",
      except: /^src\/base\/(json|text)\.ts/,
    },
    {
      what: /\bv\.(parse|safeParse|parser|safeParser|parseAsync|safeParseAsync|is|assert)\(/,
      why: "check, checked and parseAs of base/schema.ts: valibot collects every issue, which can take gigabytes",
      except: /^src\/base\/schema\.ts/,
    },
    {
      what: /\b(trusted|verbatim)JsonValue\(/,
      why: "jsonValue and parseDocument have bounds; only what isulad-ts has written needs none",
      except: trustedReaders,
    },
    {
      what: /^import (?!type )[^;]*["'](yaml|smol-toml)["']|\bimport\(["'](yaml|smol-toml)["']\)/,
      why: "node/yaml_file.ts and registry/hosts_toml.ts have bounds; commands harm only who runs them",
      except: /^src\/(node\/yaml_file|registry\/hosts_toml|cli\/\w+)\.ts/,
    },
    {
      what: /\bv\.record\(/,
      why: "mapOf of base/schema.ts: valibot's record takes a list for a map",
      except: /^src\/base\/schema\.ts/,
    },
    {
      what: /\.slice\((0, |-)(\d{3,}|[4-9]0|\w*(Chars|Bytes|Text|[sS]tderr|[sS]hown)Max)\)|\.(substring|substr)\(/,
      why: "clip and clipStart of base/text.ts: a cut by UTF-16 length splits characters",
      except: /^src\/base\/text\.ts/,
    },
    {
      what: /\.encode\(.*\)\.finish\(\)/,
      why: "encodeMessage of base/protobuf.ts: others write lone surrogates, which no Go client reads",
      except: /^src\/base\/protobuf\.ts/,
    },
    {
      what: /\bprocess\.(umask|chdir)\(/,
      why: "they belong to the whole process: sys/umask.ts, never across an await",
      except: /^src\/sys\/(umask|path)/,
    },
    {
      what: /\b(rm|rmdir)(Sync)?\([^;]*?\brecursive: true/,
      why: "the engine's may never end: removeTree of sys/remove_tree.ts",
    },
    {
      what: /\bsetPipeSize\(/,
      why: "pages of pipes are charged to uid 0, for all pods: LargePipes of sys/large_pipes.ts has few large ones",
      except: /^src\/(sys\/(descriptor|large_pipes)|monitor_log\/container_log)\.ts$/,
    },
    {
      what: /\breadNow\(/,
      why: "a peer may always have more: read() or chunks() of sys/byte_stream.ts, which give way",
      // These read once at a time.
      except:
        /^src\/(sys\/(byte_stream|descriptor|program_pipes)|stream\/copy_output|monitor\/exec_fifo|layer\/processor_chain|monitor_log\/\w+)\.ts$/,
    },
    {
      what: /\bfor \(const [^;]* of [\w.#]*push\(/,
      why: "a chunk may have 10,000 frames: ask a PeerTurn (base/time_slices.ts) for each of them",
      except: /^src\/sys\/(spdy|websocket)\.ts$/,
    },
    { what: /\bconsole\.(log|error|warn|info)\(/, why: "base/log.ts, or process.stdout in cli" },
    { what: /\b(TODO|FIXME|XXX)\b/, why: "finish it, or write an issue" },
    { what: /@ts-(ignore|nocheck)/, why: "use @ts-expect-error with a reason" },
  ];

  test.each(bans)("no source has $what ($why)", ({ what, except }) => {
    const found: string[] = [];
    for (const file of sources) {
      if (except?.test(file)) continue;
      const lines = readFileSync(join(root, file), "utf8").split("\n");
      lines.forEach((line, index) => {
        if (what.test(line) && !/^\s*(\/\/|\*|\/\*)/.test(line))
          found.push(`${file}:${index + 1}: ${line.trim()}`);
      });
    }
    expect(found).toEqual([]);
  });

  test("no test has a limit of its own under two minutes: only a hang may exceed it", () => {
    const limit = /^\s*(?:\}, (?:testMs\()?(\d[\d_]*)|(?:testMs\()?(\d+_\d{3}))\)?(?:,|\);)$/;
    const found = filesIn("test").flatMap((file) => {
      if (!file.endsWith(".test.ts")) return [];
      const lines = readFileSync(join(root, file), "utf8").split("\n");
      return lines.flatMap((line, index) => {
        const [, closing, own] = limit.exec(line) ?? [];
        const ms = Number((closing ?? own ?? "Infinity").replaceAll("_", ""));
        return ms >= 1_000 && ms < 120_000 ? [`${file}:${index + 1}: ${line.trim()}`] : [];
      });
    });
    expect(found).toEqual([]);
  });

  test("a file's first line names the thing and says what it does", () => {
    const clause = /^(?:\/\/|\/\*\*) (?:What|Who|Whose|How|Whether|Where|Which|When|Of|That|If)\b/;
    const all = [...sources, ...filesIn("test"), ...filesIn("proto"), ...filesIn("dist")];
    const found = all.flatMap((file) => {
      const [first = ""] = readFileSync(join(root, file), "utf8").split("\n", 1);
      const lacksHeader = file.startsWith("src/") && !first.startsWith("//");
      return clause.test(first) || lacksHeader ? [`${file}: ${first}`] : [];
    });
    expect(found).toEqual([]);
  });

  test("a test's first line says what it does, from its verb on", () => {
    const files = filesIn("test").filter((file) => !file.startsWith("test/.cache/"));
    const firstLine = (file: string) => readFileSync(join(root, file), "utf8").split("\n", 1)[0]!;
    const headless = files.filter((file) => !hasVerb(file, firstLine(file)));
    expect(headless.map((file) => `${file}: ${firstLine(file)}`)).toEqual([]);
  });

  test.each([
    ["test/a.test.ts", "// Tests the stop signal.", true],
    ["test/a.ts", "// Records events.", true],
    ["test/a.test.ts", "// Records that were cut off.", false],
    ["test/a.test.ts", "// Host devices in containers: by path, by folder, by CDI name.", false],
    ["test/a.test.ts", "// Tests", false],
    ["test/a.ts", "// Tested by b.test.ts.", false],
    ["test/a.ts", "// A client of numbered channels.", false],
    ["test/a.ts", 'import { join } from "node:path";', false],
  ])("%s may begin with %j: %p", (file, line, may) => {
    expect(hasVerb(file, line)).toBe(may);
  });

  test("comments and messages have no private words for the field's terms", () => {
    const privateWords =
      /\b(?:is|are|was|were|be|been|being) told\b|\btaken over\b|\bwhat lacks\b|\bours:|\bthe person's\b|\bbehind everything else\b|\bmade anew\b/;
    const found = sources.flatMap((file) => {
      const lines = readFileSync(join(root, file), "utf8").split("\n");
      return lines.flatMap((line, index) =>
        privateWords.test(line) ? [`${file}:${index + 1}: ${line.trim()}`] : [],
      );
    });
    expect(found).toEqual([]);
  });

  test("no promise passed to inTime() or untilAborted() has a .then() or .finally()", () => {
    // That step would run after the waiter rolled back; it is awaited separately instead.
    const chain = /\b(?:inTime|untilAborted)\(\s*[^;"`]*?\.(?:then|finally)\(/;
    const found = sources.filter((file) => chain.test(readFileSync(join(root, file), "utf8")));
    expect(found).toEqual([]);
  });

  test("files stay under 600 lines and functions under 70", () => {
    const argv = ["--format", "json", "-c", "test/tidy_oxlint.json"];
    const folders = ["src", "test", "proto", "dist", "docs"];
    const bin = join(root, "node_modules/.bin/oxlint");
    const done = spawnSync(bin, [...argv, ...folders], { cwd: root, encoding: "utf8" });
    const report = JSON.parse(done.stdout) as {
      diagnostics: Diagnostic[];
      number_of_files: number;
    };
    expect(report.number_of_files).toBeGreaterThan(5);
    expect(report.diagnostics.map(place)).toEqual([]);
  });
});

type Diagnostic = { message: string; filename: string; labels: { span: { line: number } }[] };

function place({ filename, labels, message }: Diagnostic): string {
  return `${relative(root, join(root, filename))}:${labels[0]?.span.line}: ${message}`;
}
