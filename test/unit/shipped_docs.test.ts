// Tests what ships beside the executable: its pages have no dead links, and packages put each file into its place.
import { expect, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { withoutDeadLinks } from "../../dist/links.ts";
import { sharedPath } from "../../dist/packages.ts";
import { pageFiles, shippedPages, writeDocuments } from "../../dist/shipped_docs.ts";
import { guide } from "../../src/proto/installed_files.ts";

const links = (page: string) =>
  [...page.matchAll(/\]\(([^)\s]+)\)/g)]
    .map(([, target]) => target!)
    .filter((target) => !/^(#|[a-z]+:)/.test(target));

test("a link to what is not there becomes its text and its path, any other stays", () => {
  const page = "[a](b.md#c), [d](#e), [f](https://g), [h](../i.ts)";
  expect(withoutDeadLinks(page, (path) => path === "b.md")).toBe(
    "[a](b.md#c), [d](#e), [f](https://g), h (../i.ts)",
  );
});

test("the page that isulad-ts install writes stands alone, without links to others", () => {
  expect(links(guide)).toEqual([]);
  expect(guide).toContain("copied (images.md)");
  expect(guide).toContain("# Installation\n");
});

test("each link of a shipped page leads to a shipped file", async () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-documents-"));
  using _ = { [Symbol.dispose]: () => rmSync(folder, { recursive: true }) };
  await writeDocuments(folder);
  let count = 0;
  for (const file of pageFiles()) {
    for (const target of links(readFileSync(join(folder, file), "utf8"))) {
      count++;
      const path = join(folder, dirname(file), target.split("#")[0]!);
      expect({ file, target, exists: existsSync(path) }).toEqual({ file, target, exists: true });
    }
  }
  expect(count).toBeGreaterThan(100);
  for (const file of [
    "LICENSES.txt",
    "man/man1/isulad-ts-ps.1",
    "man/man5/isulad-ts-daemon.json.5",
  ]) {
    expect(existsSync(join(folder, file))).toBe(true);
  }
});

test("links between shipped pages stay links", () => {
  expect(shippedPages().get("docs/installation.md")).toContain(
    "[copied](images.md#storage-drivers)",
  );
});

test.each([
  ["LICENSE", "doc/isulad-ts/copyright"],
  ["docs/nri.md", "doc/isulad-ts/docs/nri.md"],
  ["man/man1/isulad-ts.1", "man/man1/isulad-ts.1"],
  ["completions/bash/isulad-ts", "bash-completion/completions/isulad-ts"],
  ["completions/zsh/_isulad_ts", "zsh/vendor-completions/_isulad_ts"],
  ["completions/fish/isulad-ts.fish", "fish/vendor_completions.d/isulad-ts.fish"],
])("a package puts %s into /usr/share/%s", (file, place) => {
  expect(sharedPath(file, "zsh/vendor-completions")).toBe(`usr/share/${place}`);
});
