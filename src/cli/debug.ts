// Implements isulad-ts debug dump and debug profile, and isulad-ts support-bundle.
import { constants, fchmodSync, fstatSync, writeFileSync } from "node:fs";
import { defineCommand } from "citty";
import { loadConfig } from "../base/config.ts";
import { build, version } from "../base/build.ts";
import { supportBundle } from "../doctor/bundle.ts";
import { examine } from "../doctor/examine.ts";
import { thisNode } from "../doctor/node.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { configFileArg } from "./config.ts";
import { configTable } from "./config_text.ts";
import { hostArg, secondsOf, withClient } from "./daemon_command.ts";
import { findingsText } from "./doctor.ts";
import { UsageError } from "./options.ts";
import { print } from "./output.ts";
import { escapedControls } from "./text.ts";

/** A hung daemon must not keep a bundle from being made. */
const dumpMs = 10_000;
const profileSecondsMax = 300;
const ownerOnly = 0o600;

const dump = defineCommand({
  meta: {
    name: "dump",
    description: "Print what the daemon is doing: calls, steps, locks, queues, monitor, memory",
  },
  args: hostArg,
  run: ({ args }) =>
    withClient(args, async (client) => {
      process.stdout.write(escapedControls((await client.Dump({})).json ?? ""));
    }),
});

const profile = defineCommand({
  meta: { name: "profile", description: "Write a CPU profile of the daemon" },
  args: {
    file: {
      type: "positional",
      required: false,
      valueHint: "FILE",
      description: "Where to write it (default: isulad-ts-TIME.cpuprofile here)",
    },
    ...hostArg,
    seconds: { type: "string", default: "10", valueHint: "N", description: "How long, 1 to 300" },
  },
  run: ({ args }) => {
    const seconds = secondsOf(args.seconds, "--seconds");
    if (seconds < 1 || seconds > profileSecondsMax) {
      throw new UsageError(`--seconds takes 1 to ${profileSecondsMax}, not "${args.seconds}"`);
    }
    return withClient(args, async (client) => {
      const timeoutMs = (seconds + 30) * 1000;
      const { json } = await client.Profile({ seconds }, { timeoutMs });
      save(args.file || `isulad-ts-${timestamp()}.cpuprofile`, json ?? "");
    });
  },
});

export const debug = defineCommand({
  meta: { name: "debug", description: "Look into the running daemon" },
  subCommands: { dump, profile },
});

export const supportBundleCommand = defineCommand({
  meta: {
    name: "support-bundle",
    description: "Collect what explains this node's state, without secrets",
  },
  args: {
    file: {
      type: "positional",
      required: false,
      valueHint: "FILE",
      description: "Where to write it (default: isulad-ts-support-TIME.tar.gz here)",
    },
    ...configFileArg,
    ...hostArg,
  },
  run: async ({ args }) => {
    const node = thisNode();
    const load = () => loadConfig(args.config || undefined);
    const texts = {
      "version.txt": () => `isulad-ts ${version} (commit ${build?.commit ?? "none"})\n`,
      "config.txt": () => configTable(load()),
      "doctor.txt": async () => findingsText(await examine(node, load), Infinity),
      "dump.json": () =>
        withClient({ host: args.host || hostOf(load) }, async (client) => {
          return (await client.Dump({}, { timeoutMs: dumpMs })).json ?? "";
        }),
    };
    save(
      args.file || `isulad-ts-support-${timestamp()}.tar.gz`,
      await supportBundle({ node, load, texts }),
    );
  },
});

/** The configured socket; undefined where $ISULAD_HOST names one, or the configuration is bad. */
function hostOf(load: () => ReturnType<typeof loadConfig>): string | undefined {
  if (process.env["ISULAD_HOST"]) return undefined;
  try {
    return load().config.hosts[0];
  } catch {
    return undefined;
  }
}

function timestamp(): string {
  return new Date().toISOString().slice(0, 19).replaceAll(":", "");
}

/** Writes a file that only its owner may read, even if the file existed and was readable for others. */
export function save(path: string, content: string | Uint8Array): void {
  const { O_WRONLY, O_CREAT, O_TRUNC } = constants;
  using file = Descriptor.open(path, O_WRONLY | O_CREAT | O_TRUNC, ownerOnly);
  if (fstatSync(file.fd).isFile()) fchmodSync(file.fd, ownerOnly);
  writeFileSync(file.fd, content);
  print(path);
}
