// Implements isulad-ts pull, load, save and images prune.
import { resolve } from "node:path";
import { defineCommand } from "citty";
import { print, say } from "./output.ts";
import { repeatable, UsageError } from "./options.ts";
import { follow } from "./progress.ts";
import { withAdvice } from "./pull_advice.ts";
import { forEach, hostArg, withClient } from "./daemon_command.ts";
import { shortId, size } from "./text.ts";

const quietArg = {
  quiet: { type: "boolean", alias: "q", description: "Print only names or ids, and no progress" },
} as const;

export const credsArg = {
  creds: {
    type: "string",
    valueHint: "user:password",
    description: "Credentials; $ISULAD_CREDS keeps them out of the process list",
  },
} as const;

export const pull = defineCommand({
  meta: { description: "Pull images from registries" },
  args: {
    image: {
      type: "positional",
      description: "Names, such as docker.io/library/busybox:1.37",
      ...repeatable,
    },
    ...credsArg,
    ...quietArg,
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client) => {
      const auth = credentialsOf(args);
      return forEach(args._, async (image) => {
        const request = { image, auth };
        const quiet = args.quiet === true;
        const pulling = follow(client.Pull(request), { title: `Pulling ${image}`, quiet });
        const [id = ""] = await withAdvice(client, image, pulling);
        print(quiet ? id : `Image is up to date for ${id}`);
      });
    }),
});

/** Returns the credentials in `--creds`, else in $ISULAD_CREDS, if any. @throws UsageError */
export function credentialsOf(args: { creds?: string | undefined }) {
  const creds = args.creds || process.env["ISULAD_CREDS"];
  if (!creds) return undefined;
  const colon = creds.indexOf(":");
  if (colon < 1) throw new UsageError("--creds and $ISULAD_CREDS have the form user:password");
  return { username: creds.slice(0, colon), password: creds.slice(colon + 1) };
}

export const load = defineCommand({
  meta: {
    description: "Load images from OCI or docker archives, or OCI layout folders",
  },
  args: {
    file: {
      type: "positional",
      description: "Paths on the daemon's host; gzip and zstd are unpacked",
      ...repeatable,
    },
    name: {
      type: "string",
      description:
        "Name for the file's image, beside its own; without a tag, the repository of bare tags",
    },
    ...quietArg,
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client) =>
      forEach(args._, async (file) => {
        const request = { path: resolve(file), name: args.name };
        const quiet = args.quiet === true;
        const images = await follow(client.Load(request), { title: `Loading ${file}`, quiet });
        for (const image of images) {
          print(quiet ? image : `Loaded image: ${image}`);
          if (quiet || !/^sha\d+:/.test(image)) continue;
          say("It has no name, or only a tag: use --name to give it one");
        }
      }),
    ),
});

export const save = defineCommand({
  meta: {
    description: "Save images to an OCI archive for load, docker, podman or skopeo",
  },
  args: {
    image: {
      type: "positional",
      ...repeatable,
      valueHint: "image… file",
      description:
        "Names or ids, then the file's path on the daemon's host; compressed if it ends with .gz, .tgz, .zst or .tzst",
    },
    force: { type: "boolean", alias: "f", description: "Overwrite an existing file" },
    ...quietArg,
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const images = args._.slice(0, -1);
      const file = args._.at(-1)!;
      if (images.length === 0) throw new UsageError("save takes images, then the file's path");
      const request = { images, path: resolve(file), force: args.force };
      const quiet = args.quiet === true;
      await follow(client.Save(request), { title: `Saving into ${file}`, quiet });
      if (!quiet) print(`Saved ${images.join(", ")} into ${file}`);
    }),
});

export const prune = defineCommand({
  meta: { description: "Remove unused images, except pinned ones" },
  args: {
    "dry-run": { type: "boolean", description: "Only print the images that would be removed" },
    ...quietArg,
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const dryRun = args["dry-run"] === true;
      const answer = await client.PruneImages({ dry_run: dryRun }, { timeoutMs: 0 });
      for (const { id, repo_tags, repo_digests } of answer.images) {
        const [name = ""] = [...(repo_tags ?? []), ...(repo_digests ?? [])];
        print(args.quiet === true ? id! : `${shortId(id!)} ${name}`.trimEnd());
      }
      if (args.quiet === true) return;
      const verb = dryRun ? "Would remove" : "Removed";
      say(`${verb} ${answer.images.length} images, ${size(answer.freed_bytes)}`);
    }),
});
