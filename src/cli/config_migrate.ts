// Implements `isulad-ts config migrate`: converts another program's configuration to daemon.json. Loaded when it runs.
import { defineCommand } from "citty";
import { parse as parseToml } from "smol-toml";
import { clipped } from "../base/config_resolution.ts";
import { CriError, messageOf } from "../base/errors.ts";
import { trustedJsonValue } from "../base/json.ts";
import { printable } from "../base/text.ts";
import { readTextBounded } from "../sys/file.ts";
import { containerd2Defaults, containerdRules } from "../migrate/containerd.ts";
import { crioDefaults, crioRules } from "../migrate/crio.ts";
import { dockerRules } from "../migrate/docker.ts";
import { leavesOf, migrate, type Migration, type Tree } from "../migrate/rules.ts";
import { print, say } from "./output.ts";
import { shownJson } from "./text.ts";

const fileBytesMax = 4 << 20;

/**
 * Converts the text of a config.toml of containerd (version 2, 3 or 4), a crio.conf, or a daemon.json.
 * @throws CriError INVALID_ARGUMENT for what is none of these.
 */
export function migrated(text: string, file: string): Migration {
  if (/^\s*\{/.test(text)) {
    const tree = parsed(() => trustedJsonValue(text) as Tree, file);
    // Keys alone: maps such as default-ulimits are converted as a whole.
    const leaves = Object.entries(tree).map(([key, value]) => ({
      path: [key],
      value,
      table: tree,
    }));
    return migrate(leaves, { rules: dockerRules, fallback: "isulad-ts has no such setting" });
  }
  const tree = parsed(() => parseToml(text, { integersAsBigInt: "asNeeded" }), file);
  const leaves = leavesOf(tree);
  if (tree["crio"] !== undefined) {
    const fallback = "isulad-ts has no such setting";
    return migrate(leaves, { rules: crioRules, fallback, defaults: crioDefaults });
  }
  const { version } = tree;
  if (version === 2 || version === 3 || version === 4) {
    const fallback = "isulad-ts has no such part, or does it without a setting";
    const defaults = version === 2 ? [] : containerd2Defaults;
    return migrate(leaves, { rules: containerdRules, fallback, defaults });
  }
  const problem =
    version === undefined
      ? "it has neither a table crio nor a version: is it CRI-O's or containerd's configuration?"
      : `version ${clipped(version)} of containerd's configuration is unknown: versions 2 to 4 can be read`;
  const hint = "`containerd config migrate` converts older ones";
  throw new CriError("INVALID_ARGUMENT", `${file}: ${problem} (${hint})`);
}

function parsed(parse: () => Tree, file: string): Tree {
  try {
    return parse();
  } catch (cause) {
    throw new CriError("INVALID_ARGUMENT", `${file}: ${messageOf(cause)}`, { cause });
  }
}

/** A line for each key of the source. */
export function reportText({ report }: Migration): string {
  return report
    .map(({ key, to, why }) =>
      to === undefined ? `- ${key}: no equivalent: ${why}` : `+ ${key}: ${to}`,
    )
    .join("\n");
}

export const migrateCommand = defineCommand({
  meta: {
    name: "migrate",
    description: "Convert the configuration of containerd, CRI-O, Docker or iSulad to daemon.json",
  },
  args: {
    file: {
      type: "positional",
      required: true,
      valueHint: "FILE",
      description: "A config.toml (version 2 to 4), crio.conf or daemon.json",
    },
  },
  run: ({ args }) => {
    const migration = migrated(
      readTextBounded(args.file, fileBytesMax, { fatal: true }),
      args.file,
    );
    say(printable(reportText(migration)));
    print(shownJson(migration.values, 2));
  },
});
