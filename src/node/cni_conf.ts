// Parses CNI network lists and chooses the default one of a conf dir.
//
// Decision: the folder is read whenever a list is needed (one readdir, two stats per file, 30 µs) instead of
// being watched. Nobody needs the result before the next Status or RunPodSandbox, and reading cannot miss
// a rename, a recreated folder, or changes on a file system without inotify.
import { readdirSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import * as v from "valibot";
import { CriError, errnoOf, messageOf } from "../base/errors.ts";
import { jsonValue } from "../base/json.ts";
import { check, mapOf } from "../base/schema.ts";
import { readTextBounded } from "../sys/file.ts";

/** Tells whether the list's version defines STATUS and GC. */
export function isSince11(list: ConfList): boolean {
  return !/^(0\.|1\.0\.)/.test(list.cniVersion);
}

/** CNI specification: DEL gets a prevResult since 0.4.0. */
export function delHasPrevResult(cniVersion: string): boolean {
  return !/^0\.[123]\./.test(cniVersion);
}

export function emptyMessage(confDir: string): string {
  return `no CNI network list in ${confDir} (*.conflist, *.conf or *.json): install the cluster's network add-on`;
}

/** Supported versions of the CNI specification, oldest first. */
const cniVersions = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

const maxConfBytes = 1 << 20;

const Name = v.pipe(
  v.string("must be a string"),
  v.regex(
    /^[A-Za-z0-9][A-Za-z0-9_.-]*$/,
    "must begin with a letter or digit and contain only letters, digits, '_', '.' and '-'",
  ),
);
const PluginConf = v.looseObject(
  {
    type: v.pipe(
      v.string("must name the plugin's executable"),
      v.regex(/^[^/\0]+$/, "must be a file name without '/'"),
    ),
    capabilities: v.optional(
      mapOf(v.string(), v.boolean("must be true or false"), "must be an object"),
    ),
  },
  "must be an object",
);
const Flag = v.optional(v.union([v.boolean(), v.picklist(["true", "false"])]), false);
const ConfListFile = v.looseObject({
  name: Name,
  cniVersion: v.optional(v.string("must be a string"), "0.1.0"),
  cniVersions: v.optional(v.array(v.string("must be a string"), "must be an array")),
  disableGC: Flag,
  loadOnlyInlinedPlugins: Flag,
  plugins: v.optional(
    v.pipe(
      v.array(PluginConf, "must be an array of plugin configurations"),
      v.minLength(1, "must contain at least one plugin"),
    ),
  ),
});

export type PluginConf = v.InferOutput<typeof PluginConf>;

/** A network list, normalized; recorded with each pod for its DEL. */
export type ConfList = {
  name: string;
  cniVersion: string;
  plugins: PluginConf[];
  /** Other runtimes share this network, so GC would free their attachments. */
  disableGC?: true;
};

/**
 * Parses a .conflist file, or a .conf or .json file with a single plugin. more: returns the plugins of the folder
 * that a .conflist file may have beside it under its network's name.
 * @throws CriError INVALID_ARGUMENT with file, key and reason.
 */
export function parseConfList(
  text: string,
  file: string,
  more: (name: string) => PluginConf[] = () => [],
): ConfList {
  const json = parseObject(text, file);
  const isList = file.endsWith(".conflist");
  const parsed = parseAs(ConfListFile, isList ? json : listOfOne(json), file);
  const { name, cniVersion, cniVersions: offered, disableGC } = parsed;
  const takesMore = isList && String(parsed.loadOnlyInlinedPlugins) !== "true";
  const plugins = [...(parsed.plugins ?? []), ...(takesMore ? more(name) : [])];
  if (plugins.length === 0) throw invalid(file, "plugins is missing");
  const list = { name, cniVersion: chooseVersion(file, cniVersion, offered), plugins };
  return String(disableGC) === "true" ? { ...list, disableGC: true } : list;
}

/** Returns the plugins of a network's folder, in the order of their files. @throws as parseConfList does. */
export function readPlugins(folder: string): PluginConf[] {
  return pluginFiles(folder).map((file) =>
    parseAs(PluginConf, parseObject(textOf(file), file), file),
  );
}

function parseObject(text: string, file: string): object {
  let json: unknown;
  try {
    json = jsonValue(text);
  } catch (error) {
    throw invalid(file, `is not JSON: ${messageOf(error)}`, error);
  }
  if (typeof json === "object" && json !== null && !Array.isArray(json)) return json;
  throw invalid(file, "must contain an object");
}

function parseAs<Schema extends v.GenericSchema>(
  schema: Schema,
  json: object,
  file: string,
): v.InferOutput<Schema> {
  const parsed = check(schema, json);
  if (parsed.success) return parsed.output;
  const issue = parsed.issues[0];
  const message = issue.received === "undefined" ? "is missing" : issue.message;
  throw invalid(file, `${v.getDotPath(issue)} ${message}`);
}

function listOfOne(json: object): object {
  if ("plugins" in json) return json;
  const { name, cniVersion } = json as { name?: unknown; cniVersion?: unknown };
  return { name, cniVersion, plugins: [json] };
}

/** CNI 1.1: of several offered versions the newest supported one is used. */
function chooseVersion(file: string, version: string, offered: string[] | undefined): string {
  const newest = cniVersions.findLast((one) => one === version || offered?.includes(one));
  if (newest !== undefined) return newest;
  const known = cniVersions.join(", ");
  throw invalid(file, `cniVersion ${version} is not supported (supported: ${known})`);
}

function invalid(file: string, problem: string, cause?: unknown): CriError {
  return new CriError("INVALID_ARGUMENT", `CNI configuration ${file}: ${problem}`, { cause });
}

/**
 * The state of a conf dir. list: the default one, or its last valid version while problem describes a broken
 * newer one. lists: the default one, then those of the other files; of equal names the first.
 */
export type ConfState = { list?: ConfList; file?: string; lists: ConfList[]; problem?: string };

/** folder: of more plugins of its list; it need not exist. */
type ConfFile = {
  path: string;
  signature: string;
  folder?: string;
  list?: ConfList;
  problem?: string;
};

/**
 * A conf dir: the first file in lexical order is the default list, in its last valid version while it is
 * broken; pods request the others by name.
 */
export class ConfDir {
  readonly path: string;
  #files = new Map<string, ConfFile>();
  #state: ConfState = { lists: [] };
  /** The state is that of the files; false: the folder could not be read. */
  #isRead = false;

  constructor(path: string) {
    this.path = path;
  }

  /** Reads new and changed files. Returns the same object while nothing has changed. */
  current(): ConfState {
    let paths: string[];
    try {
      paths = confFiles(this.path);
    } catch (error) {
      this.#isRead = false;
      this.#state = { ...this.#state, problem: messageOf(error) };
      return this.#state;
    }
    const files = paths.map((path) => readConfFile(path, this.#files.get(path)));
    const isKnown = (file: ConfFile) => file === this.#files.get(file.path);
    if (this.#isRead && files.length === this.#files.size && files.every(isKnown)) {
      return this.#state;
    }
    this.#isRead = true;
    this.#files = new Map(files.map((file) => [file.path, file]));
    this.#state = this.#stateOf(files);
    return this.#state;
  }

  #stateOf(files: ConfFile[]): ConfState {
    const [first] = files;
    if (first === undefined) return { lists: [] };
    const { list, file } = first.list ? { list: first.list, file: first.path } : this.#state;
    const valid = [list, ...files.map((one) => one.list)].filter((one) => one !== undefined);
    // The first of equal names, which a Map built in reverse keeps.
    const byName = new Map(valid.toReversed().map((one) => [one.name, one]));
    const lists = [...new Set(valid)].filter((one) => byName.get(one.name) === one);
    return { list, file, lists, problem: files.find((one) => one.problem)?.problem };
  }
}

/** before: the previous read of this file; its list is kept while the new content is invalid. */
function readConfFile(path: string, before: ConfFile | undefined): ConfFile {
  try {
    const own = signatureOf([path]);
    const isKnown = () => own + signatureOf(pluginFiles(before?.folder)) === before?.signature;
    if (before !== undefined && isKnown()) return before;
    const read: ConfFile = { path, signature: own };
    read.list = parseConfList(textOf(path), path, (name) => {
      read.folder = join(dirname(path), name);
      read.signature += signatureOf(pluginFiles(read.folder));
      return readPlugins(read.folder);
    });
    return read;
  } catch (error) {
    // No signature: the file may be half-written, so it is read again next time.
    const unread = { path, signature: "", problem: messageOf(error) };
    return before?.list === undefined ? unread : { ...unread, list: before.list };
  }
}

function signatureOf(paths: string[]): string {
  const parts = paths.map((path) => {
    const { ino, ctimeNs, size } = statSync(path, { bigint: true });
    return `${path}:${ino}:${ctimeNs}:${size};`;
  });
  return parts.join("");
}

function textOf(path: string): string {
  try {
    return readTextBounded(path, maxConfBytes);
  } catch (error) {
    throw invalid(path, messageOf(error), error);
  }
}

function pluginFiles(folder: string | undefined): string[] {
  const isFolder = folder && statSync(folder, { throwIfNoEntry: false })?.isDirectory() === true;
  return isFolder ? confFiles(folder, /^[^.].*\.conf$/s) : [];
}

function confFiles(dir: string, pattern = /^[^.].*\.(conflist|conf|json)$/s): string[] {
  let names: string[];
  try {
    names = readdirSync(dir);
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return [];
    throw error;
  }
  const confNames = names.filter((name) => pattern.test(name)).sort();
  const paths = confNames.map((name) => join(dir, name));
  return paths.filter((path) => statSync(path, { throwIfNoEntry: false })?.isFile() === true);
}

/** Returns the executables that plugins need: their own and those of their IPAM plugins. */
export function executables(plugins: PluginConf[]): string[] {
  const ipam = (plugin: PluginConf) => (plugin["ipam"] as { type?: unknown } | undefined)?.type;
  return plugins
    .flatMap((plugin) => [plugin.type, ipam(plugin)])
    .filter((type): type is string => typeof type === "string" && type !== "");
}
