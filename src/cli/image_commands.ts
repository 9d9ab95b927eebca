// isulad-ts pull and load.
import { resolve } from "node:path";
import { defineCommand } from "citty";
import { CriError } from "../base/errors.ts";
import { print } from "./output.ts";
import { pullWithProgress } from "./progress.ts";
import { forEach, hostArg, withClient } from "./shared.ts";

export const pull = defineCommand({
  meta: { description: "Fetch images from their registries" },
  args: {
    image: { type: "positional", description: "Names, as docker.io/library/busybox:1.37" },
    creds: {
      type: "string",
      valueHint: "user:password",
      description: "For a registry that asks; $ISULAD_CREDS keeps it out of the process list",
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client) =>
      forEach(args._, async (image) => {
        const creds = args.creds || process.env["ISULAD_CREDS"];
        const id = creds
          ? (await client.PullImage({ image: { image }, auth: auth(creds) }, { timeoutMs: 0 }))
              .image_ref
          : await pullWithProgress(client, image);
        print(`Image is up to date for ${id}`);
      }),
    ),
});

function auth(creds: string): { username: string; password: string } {
  const colon = creds.indexOf(":");
  if (colon < 1) throw new CriError("INVALID_ARGUMENT", "credentials have the form user:password");
  return { username: creds.slice(0, colon), password: creds.slice(colon + 1) };
}

export const load = defineCommand({
  meta: { description: "Take images from OCI or docker archives, or OCI layout folders" },
  args: {
    file: { type: "positional", description: "Paths on the daemon's host" },
    name: { type: "string", description: "A name for an image that brings none" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client) =>
      forEach(args._, async (file) => {
        const request = { path: resolve(file), name: args.name };
        const { images } = await client.Load(request, { timeoutMs: 0 });
        for (const image of images ?? []) print(`Loaded image: ${image}`);
      }),
    ),
});
