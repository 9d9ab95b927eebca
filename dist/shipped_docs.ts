// Collects what ships beside the executable: licences, pages whose links lead somewhere, manual pages and completions.
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { manPages } from "../docs/man.ts";
import { bashScript, fishScript, zshScript } from "../src/cli/completion_scripts.ts";
import { licenseText } from "../src/cli/licenses.ts";
import * as bundled from "../src/proto/licenses.ts";
import { withoutDeadLinks } from "./links.ts";

const root = join(import.meta.dirname, "..");

/** By shell; zsh loads a completion as a function with the name of its file. */
export const completions = {
  bash: { file: "isulad-ts", text: bashScript },
  zsh: { file: "_isulad_ts", text: zshScript },
  fish: { file: "isulad-ts.fish", text: fishScript },
};

/** Pages for users by their paths in the sources; CONTRIBUTING.md is for developers. */
export function pageFiles(): string[] {
  const pages = readdirSync(join(root, "docs")).filter((name) => name.endsWith(".md"));
  return ["README.md", "CHANGELOG.md", "SECURITY.md", ...pages.map((name) => `docs/${name}`)];
}

/**
 * Writes LICENSE, LICENSES.txt, the pages with docs/monitoring, man/manN and completions/SHELL, which tarballs and
 * packages contain.
 */
export async function writeDocuments(folder: string): Promise<void> {
  const put = (path: string, text: string) => {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), text);
  };
  put("LICENSE", readFileSync(join(root, "LICENSE"), "utf8"));
  put("LICENSES.txt", `${licenseText(bundled)}\n`);
  cpSync(join(root, "docs/monitoring"), join(folder, "docs/monitoring"), { recursive: true });
  for (const [path, text] of shippedPages()) put(path, text);
  for (const [name, page] of await manPages()) put(`man/man${name.at(-1)}/${name}`, `${page}\n`);
  for (const [shell, { file, text }] of Object.entries(completions)) {
    put(`completions/${shell}/${file}`, `${text}\n`);
  }
}

/** Returns the pages' texts by their paths. */
export function shippedPages(): Map<string, string> {
  const files = pageFiles();
  const isShipped = (path: string) =>
    files.includes(path) ||
    path === "LICENSE" ||
    (path.startsWith("docs/monitoring") && existsSync(join(root, path)));
  return new Map(
    files.map((file) => {
      const text = readFileSync(join(root, file), "utf8");
      const leads = (target: string) => isShipped(normalize(join(dirname(file), target)));
      return [file, withoutDeadLinks(text, leads)];
    }),
  );
}
