// Tests the manual pages that docs/man.ts generates from the command tree.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { manPages } from "../../docs/man.ts";
import { allKeys } from "../../src/base/config_keys.ts";
import { groups } from "../../src/cli/commands.ts";
import { described, ungrouped } from "../../src/cli/help.ts";

const pages = await manPages();

test("each command has a page, and the main page names it", async () => {
  for (const [name, about] of await described(ungrouped(groups))) {
    const page = pages.get(`isulad-ts-${name}.1`)!;
    expect(page).toContain(about.replaceAll("-", "\\-"));
    expect(pages.get("isulad-ts.1")).toContain(
      `.B isulad\\-ts\\-${name.replaceAll("-", "\\-")}(1)`,
    );
  }
  expect(pages.has("isulad-ts-complete.1")).toBe(false); // hidden
  expect(pages.get("isulad-ts-ps.1")).toContain(".TP\n.B \\-a, \\-\\-all\nInclude");
  expect(pages.has("isulad-ts-config-check.1")).toBe(true);
});

test("daemon.json has a page with each key, its values and its default", () => {
  const page = pages.get("isulad-ts-daemon.json.5")!;
  expect(page).toStartWith(".TH ISULAD-TS-DAEMON.JSON 5 ");
  for (const key of allKeys) {
    expect(page.includes(`.B ${key.key.replaceAll("-", "\\-")}`)).toBe(!("why" in key));
  }
  expect(page).toContain("Default: false.");
});

test("mandoc finds no error in a page, where it is installed", () => {
  for (const page of pages.values()) {
    const { error, stdout } = spawnSync("mandoc", ["-T", "lint", "-W", "error"], {
      input: page,
      encoding: "utf8",
    });
    if (error === undefined) expect(stdout).toBe("");
  }
});
