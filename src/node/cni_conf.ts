// CNI network lists: what a file of the conf dir may hold, and which file serves.
//
// Decision: the folder is looked at whenever a list is needed (a readdir and one stat, 30 µs) instead of
// being watched. Nothing is told before the next Status or RunPodSandbox anyway, and a look cannot miss
// a rename, a folder deleted and made again, or a file system without inotify.
import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import * as v from "valibot";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { readBounded } from "../sys/file.ts";

/** Versions of the CNI specification whose results and configurations are understood. */
const cniVersions = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

const maxConfBytes = 1 << 20;
const extensions = [".conflist", ".conf", ".json"];

const Name = v.pipe(
  v.string("must be a string"),
  v.regex(
    /^[A-Za-z0-9][A-Za-z0-9_.-]*$/,
    "must begin with a letter or digit and hold only letters, digits, '_', '.' and '-'",
  ),
);
const PluginConf = v.looseObject(
  {
    type: v.pipe(
      v.string("must name the plugin's executable"),
      v.regex(/^[^/\0]+$/, "must be a file name without '/'"),
    ),
    capabilities: v.optional(
      v.record(v.string(), v.boolean("must be true or false"), "must be an object"),
    ),
  },
  "must be an object",
);
const ConfListFile = v.looseObject({
  name: Name,
  cniVersion: v.optional(v.string("must be a string"), "0.1.0"),
  cniVersions: v.optional(v.array(v.string("must be a string"), "must be an array")),
  plugins: v.pipe(
    v.array(PluginConf, "must be an array of plugin configurations"),
    v.minLength(1, "must hold at least one plugin"),
  ),
});

export type PluginConf = v.InferOutput<typeof PluginConf>;

/** A network list as its plugins are run with it; kept with each pod, for DEL. */
export type ConfList = { name: string; cniVersion: string; plugins: PluginConf[] };

/**
 * Reads the text of a .conflist file, or of a .conf or .json file with one plugin.
 * @throws CriError INVALID_ARGUMENT with file, key and what is wrong.
 */
export function parseConfList(text: string, file: string): ConfList {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw invalid(file, `is no JSON: ${messageOf(error)}`, error);
  }
  if (typeof json !== "object" || json === null || Array.isArray(json)) {
    throw invalid(file, "must hold an object");
  }
  const parsed = v.safeParse(ConfListFile, file.endsWith(".conflist") ? json : listOfOne(json));
  if (!parsed.success) {
    const issue = parsed.issues[0];
    const key = v.getDotPath(issue);
    const message = issue.received === "undefined" ? "is missing" : issue.message;
    throw invalid(file, `${key} ${message}`);
  }
  const { name, cniVersion, cniVersions: offered, plugins } = parsed.output;
  return { name, cniVersion: chooseVersion(file, cniVersion, offered), plugins };
}

function listOfOne(json: object): object {
  if ("plugins" in json) return json;
  const { name, cniVersion } = json as { name?: unknown; cniVersion?: unknown };
  return { name, cniVersion, plugins: [json] };
}

/** Spec 1.1: a list that offers several versions is used with the newest that both sides know. */
function chooseVersion(file: string, version: string, offered: string[] | undefined): string {
  const newest = [version, ...(offered ?? [])]
    .filter((one) => cniVersions.includes(one))
    .sort((a, b) => cniVersions.indexOf(a) - cniVersions.indexOf(b))
    .at(-1);
  if (newest !== undefined) return newest;
  throw invalid(
    file,
    `cniVersion ${version} is not supported; known are ${cniVersions.join(", ")}`,
  );
}

function invalid(file: string, problem: string, cause?: unknown): CriError {
  return new CriError("INVALID_ARGUMENT", `CNI configuration ${file}: ${problem}`, { cause });
}

/** What the conf dir says now: list is the last good one when problem tells of a newer broken one. */
export type ConfState = { list?: ConfList; file?: string; problem?: string };

/** The conf dir: the first file in lexical order serves, and its last good content while it is broken. */
export class ConfDir {
  readonly path: string;
  #state: ConfState = {};
  #signature = "";

  constructor(path: string) {
    this.path = path;
  }

  /** Looks again when the first file is another one or has changed. */
  current(): ConfState {
    try {
      const file = firstConfFile(this.path);
      if (file === undefined) {
        this.#state = {};
        this.#signature = "";
        return this.#state;
      }
      const { ino, ctimeNs, size } = statSync(file, { bigint: true });
      const signature = `${file}:${ino}:${ctimeNs}:${size}`;
      if (signature === this.#signature) return this.#state;
      const bytes = readBounded(file, maxConfBytes + 1);
      if (bytes.length > maxConfBytes) throw invalid(file, `is over ${maxConfBytes} bytes`);
      this.#state = { list: parseConfList(Buffer.from(bytes).toString("utf8"), file), file };
      this.#signature = signature;
    } catch (error) {
      // No signature: a file that was caught half-written is read again at the next look.
      this.#signature = "";
      this.#state = { ...this.#state, problem: messageOf(error) };
    }
    return this.#state;
  }
}

function firstConfFile(dir: string): string | undefined {
  let names: string[];
  try {
    names = readdirSync(dir);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw error;
  }
  const isConf = (name: string) =>
    !name.startsWith(".") && extensions.some((extension) => name.endsWith(extension));
  for (const name of names.filter(isConf).sort()) {
    const path = join(dir, name);
    if (statSync(path, { throwIfNoEntry: false })?.isFile() === true) return path;
  }
  return undefined;
}
