// Implements isulad-ts licenses: lists the bundled packages and their licences.
import { defineCommand } from "citty";
import { print } from "./output.ts";
import { table } from "./text.ts";

export const licenses = defineCommand({
  meta: { description: "Show bundled packages and their licences" },
  run: async () => print(licenseText(await import("../proto/licenses.ts"))),
});

type Bundled = {
  bunVersion: string;
  packages: readonly { name: string; version: string; license: string; text: string }[];
};

/** Formats a table of all packages, then each licence text once under its packages' names. */
export function licenseText({ bunVersion, packages }: Bundled): string {
  const byText = new Map<string, string[]>();
  for (const { name, version, text } of packages) {
    byText.set(text, [...(byText.get(text) ?? []), `${name} ${version}`]);
  }
  const rows = packages.map(({ name, version, license }) => [name, version, license]);
  const rule = "-".repeat(72);
  return [
    "isulad-ts is under the Apache License, Version 2.0; its LICENSE file has the text.",
    "The executable contains these packages:",
    "",
    table([["PACKAGE", "VERSION", "LICENSE"], ["bun", bunVersion, "MIT"], ...rows]),
    `Bun ${bunVersion} statically links other libraries, among them JavaScriptCore (LGPL-2).`,
    `Their licences, and how to build Bun with a changed one:`,
    `https://github.com/oven-sh/bun/blob/bun-v${bunVersion}/LICENSE.md`,
    "`bun run build` rebuilds isulad-ts with your own Bun.",
    ...[...byText].map(([text, names]) => `\n${rule}\n${names.join(", ")}\n${rule}\n${text}`),
  ].join("\n");
}
