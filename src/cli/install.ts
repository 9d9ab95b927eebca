// Implements isulad-ts install and uninstall: this executable, its configuration and its unit on a machine.
import { realpathSync, statSync } from "node:fs";
import { dirname, isAbsolute, join } from "node:path";
import { defineCommand } from "citty";
import { build } from "../base/build.ts";
import { CriError } from "../base/errors.ts";
import { quoted } from "../base/text.ts";
import { alone } from "../install/alone.ts";
import { install as installAll, installPrograms } from "../install/install.ts";
import { Manifest } from "../install/manifest.ts";
import { command, type Target } from "../install/target.ts";
import { uninstall as uninstallAll } from "../install/uninstall.ts";
import { UsageError } from "./options.ts";
import { print } from "./output.ts";

const commonArgs = {
  root: {
    type: "string",
    valueHint: "DIR",
    description: "Root folder of another system, such as an image: files only, nothing is started",
  },
  "dry-run": { type: "boolean", description: "Print each action, and do nothing" },
  packaged: {
    type: "boolean",
    description: "For package scripts: program, unit and dependencies belong to a package",
  },
} as const;

export const install = defineCommand({
  meta: { description: "Install or upgrade isulad-ts on this machine, and start it" },
  args: {
    ...commonArgs,
    offline: {
      type: "boolean",
      description: "Use no network: missing programs come from the bundle beside the executable",
    },
    "programs-only": {
      type: "boolean",
      description: "Install only missing programs (runc, CNI plugins, iptables)",
    },
  },
  run: async ({ args }) => {
    if (args["programs-only"] && args.packaged) {
      throw new UsageError(
        "--packaged excludes --programs-only: the package requires its programs",
      );
    }
    const target = targetOf(args);
    using _ = alone(target);
    const executable = ownFile();
    const options = {
      executable,
      bundle: join(dirname(executable), "bundle"),
      isOffline: args.offline === true,
      isPackaged: args.packaged === true,
    };
    if (args["programs-only"] !== true) return await installAll(target, options);
    await installPrograms(target, new Manifest(target.root), options);
  },
});

export const uninstall = defineCommand({
  meta: { description: "Remove installed files that nobody has changed; data stays" },
  args: {
    ...commonArgs,
    force: { type: "boolean", description: "Remove running pods first" },
    "abandon-pods": {
      type: "boolean",
      description: "Like --force, and go on although pods cannot be removed: their processes stay",
    },
    "keep-config": {
      type: "boolean",
      description: "Leave the files in /etc, but not the unit, to a later installation",
    },
  },
  run: async ({ args }) => {
    const target = targetOf(args);
    using _ = alone(target);
    await uninstallAll(target, {
      executable: ownFile(),
      isForced: args.force === true,
      abandonsPods: args["abandon-pods"] === true,
      keepsConfig: args["keep-config"] === true,
      isPackaged: args.packaged === true,
    });
  },
});

type Args = { root?: string | undefined; "dry-run"?: boolean | undefined };

/** @throws UsageError for a root that is no folder; CriError PERMISSION_DENIED without root privileges. */
export function targetOf({ root, "dry-run": isDryRun = false }: Args): Target {
  if (root !== undefined) {
    const isFolder = statSync(root, { throwIfNoEntry: false })?.isDirectory() === true;
    if (!isAbsolute(root) || !isFolder) {
      throw new UsageError(`--root takes the absolute path of a folder, not ${quoted(root)}`);
    }
  } else if (process.geteuid?.() !== 0 && !isDryRun) {
    const advice = "try sudo, or --dry-run";
    throw new CriError("PERMISSION_DENIED", `this needs root privileges: ${advice}`);
  }
  const folder = root === undefined ? "" : realpathSync(root);
  return { root: folder === "/" ? "" : folder, isDryRun, report: print, command };
}

function ownFile(): string {
  if (build !== undefined) return process.execPath;
  throw new CriError(
    "FAILED_PRECONDITION",
    "this runs from its source: build the executable first",
  );
}
