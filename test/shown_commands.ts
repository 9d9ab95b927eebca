// Finds the command lines of isulad-ts in README.md, CONTRIBUTING.md, SECURITY.md and docs/.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dirname, "..");

/** Returns the words behind `isulad-ts` of each command line, with its page. */
export function shownCommands(): { page: string; words: string[] }[] {
  const guides = readdirSync(join(root, "docs")).filter((name) => name.endsWith(".md"));
  const pages = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    ...guides.map((name) => `docs/${name}`),
  ];
  return pages.flatMap((page) =>
    commandLines(readFileSync(join(root, page), "utf8")).map((words) => ({ page, words })),
  );
}

/** Returns the words behind `isulad-ts` of each command line in ```sh blocks, which may be indented, then of those in code spans. */
export function commandLines(text: string): string[][] {
  const blocks = [...text.matchAll(/^( *)```sh\n([^]*?)^\1```/gm)].map((match) => match[2]!);
  const lines = blocks.flatMap((block) => block.replaceAll(/\\\n/g, " ").split("\n"));
  const prose = text.replaceAll(/^( *)```[^]*?^\1```/gm, "");
  const spans = [...prose.matchAll(/`([^`\n]+)`/g)].map(([, span]) =>
    span!.replaceAll(/[[\]]/g, ""),
  );
  return [...lines, ...spans]
    .flatMap(commandsOf)
    .filter((words) => words.length > 0 && words[0] !== "COMMAND");
}

/** Splits a line of a shell into its commands, and keeps the arguments of ours. */
function commandsOf(line: string): string[][] {
  const inner = [...line.matchAll(/\$\(([^()]*)\)/g)].flatMap((match) => commandsOf(match[1]!));
  const outer = line.replaceAll(/\$\([^()]*\)/g, "VALUE").replaceAll(/\d?>+&?\s*\S+/g, "");
  const found: string[][] = [[]];
  for (const [token] of outer.matchAll(/#.*|[|;&]+|(?:'[^']*'|"[^"]*"|[^\s'"|;&])+/g)) {
    if (token.startsWith("#")) break;
    if (/^[|;&]/.test(token)) found.push([]);
    else found.at(-1)!.push(token.replaceAll(/['"]/g, ""));
  }
  return [...found.map(ownArguments), ...inner].filter((words) => words !== undefined);
}

function ownArguments(words: string[]): string[] | undefined {
  const first = words.findIndex((word) => !/^(\$|sudo|[A-Z_]+=.*)$/.test(word));
  return /^(.*\/)?isulad-ts(-VERSION-TARGET)?$/.test(words[first] ?? "")
    ? words.slice(first + 1).filter((word) => word !== "…")
    : undefined;
}
