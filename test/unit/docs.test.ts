// Compares README.md and the pages of docs/ with the code: keys, defaults, RPCs, commands, paths and links.
import { describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, normalize, relative } from "node:path";
import type { CommandDef } from "citty";
import { generated, page } from "../../docs/generate.ts";
import { loadConfig } from "../../src/base/config.ts";
import { allKeys, findKey } from "../../src/base/config_keys.ts";
import { description, groups } from "../../src/cli/commands.ts";
import {
  argsOf,
  described,
  optionsOf,
  programHelp,
  resolve,
  ungrouped,
} from "../../src/cli/help.ts";
import { ImageService, RuntimeService } from "../../src/proto/services.ts";

const root = join(import.meta.dirname, "../..");
const guides = readdirSync(join(root, "docs")).filter((name) => name.endsWith(".md"));
const pages = [
  "README.md",
  "CONTRIBUTING.md",
  "CHANGELOG.md",
  "SECURITY.md",
  ...guides.map((name) => `docs/${name}`),
];
const textOf = (file: string) => readFileSync(join(root, file), "utf8");

describe("docs/configuration.md", () => {
  const text = readFileSync(page, "utf8");
  /** The rows of the key tables: key and default. */
  const rows = [...text.matchAll(/^\| `(.+?)`(?: \(or .+?\))* \| (.*?) \|.*\|.+\|$/gm)].map(
    ([, key, value]) => ({ key: key!, value: value! }),
  );

  test("is what docs/generate.ts writes of the key table: else run `bun docs/generate.ts`", () => {
    expect(text).toBe(generated(text));
  });

  test("has every key of daemon.json, with and without effect", () => {
    const active = allKeys.filter((key) => "about" in key).map(({ key }) => key);
    expect(rows.map(({ key }) => key).sort()).toEqual(active.sort());
    for (const { key } of allKeys) expect(text).toContain(`| \`${key}\``);
  });

  test("gives defaults that change nothing when they are written into a file", () => {
    const folder = mkdtempSync(join(tmpdir(), "isulad-docs-"));
    const configOf = (values: object) => {
      const file = join(folder, "daemon.json");
      writeFileSync(file, JSON.stringify(values));
      return loadConfig(file).config;
    };
    const quoted = rows.filter(({ value }) => value.startsWith("`"));
    const values = quoted.map(({ key, value }) => [key, JSON.parse(value.slice(1, -1)) as unknown]);
    try {
      expect(configOf(Object.fromEntries(values))).toEqual(configOf({}));
    } finally {
      rmSync(folder, { recursive: true });
    }
    const empty = rows.filter(({ value }) => value === "");
    for (const { key } of empty) expect([key, findKey(key)]).toMatchObject([key, { fallback: "" }]);
  });

  test("the daemon.json that is installed is accepted without a warning", () => {
    expect(loadConfig(join(root, "dist/daemon.json")).warnings).toEqual([]);
  });
});

test("docs/cri.md has every RPC of CRI once", () => {
  const text = textOf("docs/cri.md");
  const table = /\n\| RPC \|[^]*?\n\n/.exec(text)![0];
  const rpcs = [...table.matchAll(/`(\w+)`(?=[^|]*\|[^|]*\|$)/gm)].map((match) => match[1]!);
  expect(rpcs.sort()).toEqual(Object.keys({ ...RuntimeService, ...ImageService }).sort());
});

test("docs/cli.md names every command", async () => {
  const text = textOf("docs/cli.md");
  const names = (await described(ungrouped(groups))).map(([name]) => name);
  const missing = names.filter((name) => !text.includes(`\`${name}`));
  expect(missing).toEqual([]);
});

test("--help describes each command in one line", async () => {
  const help = await programHelp({ name: "isulad-ts", description, groups });
  const [, ...sections] = help.split(/^(?=\w+:$)/m);
  expect(sections.join("").match(/^ {4,}.*/gm)).toBeNull();
});

test("docs/cli_flags.md calls no flag the same that the command does not have", async () => {
  const rows = [...textOf("docs/cli_flags.md").matchAll(/^\| `([a-z-]+)` \| (`--.*?`) \|/gm)];
  expect(rows.length).toBeGreaterThan(30);
  for (const [, name = "", flags = ""] of rows) {
    const command = (await resolve(ungrouped(groups)[name])) as CommandDef;
    const own = optionsOf(await argsOf(command)).map(([option]) => /--[^=]+/.exec(option)![0]);
    expect([name, own]).toEqual([
      name,
      expect.arrayContaining([...flags.matchAll(/--[a-z-]+/g)].map(([flag]) => flag)),
    ]);
  }
});

test("README.md has at most 160 lines and links every page", () => {
  const readme = textOf("README.md");
  expect(readme.trimEnd().split("\n").length).toBeLessThanOrEqual(160);
  expect(pages.slice(1).filter((file) => !readme.includes(`](${file}`))).toEqual([]);
});

test.each(guides)("docs/%s begins with the task that it serves", (name) => {
  expect(textOf(`docs/${name}`)).toMatch(/^# .+\n\nUse this page to /);
});

describe.each(pages)("%s", (file) => {
  const text = textOf(file);

  test("links to files and headings that exist", () => {
    const links = [...prose(text).matchAll(/\]\(([^)\s]+)\)/g)].map((match) => match[1]!);
    const broken = links.filter((link) => !/^https?:/.test(link) && !leadsSomewhere(file, link));
    expect(broken).toEqual([]);
  });

  test("names only files of the project that exist", () => {
    const paths = text.matchAll(/(?<![\w./-])(?:src|test|docs|dist|proto)\/[\w./-]*\w/g);
    const made = /^(dist\/(isulad-ts|release)|src\/proto|test\/\.cache)/;
    const missing = [...paths].map(([path]) => path).filter((path) => !made.test(path));
    expect(missing.filter((path) => !existsSync(join(root, path)))).toEqual([]);
  });
});

/** Text without code blocks and code spans. */
function prose(text: string): string {
  return text.replaceAll(/^```[^]*?^```/gm, "").replaceAll(/`[^`\n]*`/g, "");
}

function leadsSomewhere(from: string, link: string): boolean {
  const [path = "", anchor] = link.split("#");
  const target = path === "" ? from : normalize(join(dirname(from), path));
  if (relative(root, join(root, target)).startsWith("..") || !existsSync(join(root, target))) {
    return false;
  }
  return anchor === undefined || anchorsOf(target).includes(anchor);
}

/** As GitHub makes them of headings. */
function anchorsOf(file: string): string[] {
  const text = textOf(file).replaceAll(/^```[^]*?^```/gm, "");
  return [...text.matchAll(/^#+ (.+)$/gm)].map(([, heading]) =>
    heading!
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N}\s_-]/gu, "")
      .replaceAll(" ", "-"),
  );
}
