// Implements isulad-ts inspect, inspectp, inspecti, info and version.
import { defineCommand } from "citty";
import { CriError } from "../base/errors.ts";
import { runtime } from "../proto/messages.js";
import {
  completes,
  containerOperand,
  forEach,
  hostArg,
  podOperand,
  withClient,
} from "./daemon_command.ts";
import {
  containerFilterArgs,
  hasFilter,
  imageFilterArgs,
  listContainers,
  listImages,
  listPods,
  podFilterArgs,
} from "./filters.ts";
import { checkFormat, type Format, jsonFormatArgs, propertyTable, show } from "./format.ts";
import { repeatable, UsageError } from "./options.ts";
import { print } from "./output.ts";
import { infoJson, jsonForm, protoJson, readableTimes } from "./text.ts";

type Answer = { status?: object; image?: object | null; info?: Record<string, string> | null };

async function showAnswer(format: Format, answer: Answer): Promise<void> {
  const { info, ...rest } = answer;
  const value = { ...infoJson(info), ...(readableTimes(protoJson(rest)) as object) };
  await show(format, value, () => propertyTable(value));
}

/** Checks the options before any call. @throws UsageError */
function check(args: Format & { _: string[] }, what: string, filters: object): void {
  checkFormat(args);
  const isFiltered = hasFilter(args, filters);
  if (args._.length === 0 && !isFiltered) throw new UsageError(`Specify ${what}, or a filter.`);
  if (args._.length > 0 && isFiltered)
    throw new UsageError(`Specify ${what} or a filter, not both.`);
}

const several = { required: false, ...repeatable } as const;

export const inspect = defineCommand({
  meta: { description: "Show containers in full" },
  args: {
    container: { ...containerOperand, ...several },
    ...containerFilterArgs,
    ...jsonFormatArgs,
    ...hostArg,
  },
  run: ({ args, rawArgs }) =>
    withClient(args, async (client, find) => {
      check(args, "a container", containerFilterArgs);
      const filtered = { args, rawArgs };
      const found =
        args._.length > 0
          ? []
          : (await listContainers({ client, find, all: true }, filtered)).containers;
      return await forEach([...args._, ...found.map(({ id }) => id ?? "")], async (text) => {
        const { id } = await find.container(text);
        const response = await client.ContainerStatus({ container_id: id, verbose: true });
        await showAnswer(args, runtime.v1.ContainerStatusResponse.toObject(response, jsonForm));
      });
    }),
});

export const inspectp = defineCommand({
  meta: { description: "Show pods in full" },
  args: { pod: { ...podOperand, ...several }, ...podFilterArgs, ...jsonFormatArgs, ...hostArg },
  run: ({ args, rawArgs }) =>
    withClient(args, async (client, find) => {
      check(args, "a pod", podFilterArgs);
      const found = args._.length > 0 ? [] : (await listPods(client, { args, rawArgs })).items;
      return await forEach([...args._, ...found.map(({ id }) => id ?? "")], async (text) => {
        const { id } = await find.pod(text);
        const response = await client.PodSandboxStatus({ pod_sandbox_id: id, verbose: true });
        const { status, info } = runtime.v1.PodSandboxStatusResponse.toObject(response, jsonForm);
        await showAnswer(args, { status, info });
      });
    }),
});

export const inspecti = defineCommand({
  meta: { description: "Show images in full" },
  args: {
    image: {
      type: "positional",
      description: "Name, digest or id",
      ...several,
      ...completes.image,
    },
    ...imageFilterArgs,
    ...jsonFormatArgs,
    ...hostArg,
  },
  run: ({ args, rawArgs }) =>
    withClient(args, async (client) => {
      check(args, "an image", imageFilterArgs);
      const found =
        args._.length > 0 ? [] : (await listImages(client, undefined, { args, rawArgs })).images;
      return await forEach([...args._, ...found.map(({ id }) => id ?? "")], async (image) => {
        const response = await client.ImageStatus({ image: { image }, verbose: true });
        if (!response.image) {
          throw new CriError("NOT_FOUND", `no such image; isulad-ts pull ${image} may fetch it`);
        }
        const { image: status, info } = runtime.v1.ImageStatusResponse.toObject(response, jsonForm);
        await showAnswer(args, { status, info });
      });
    }),
});

export const info = defineCommand({
  meta: { description: "Show the daemon's conditions, handlers and settings" },
  args: { ...jsonFormatArgs, ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client) => {
      checkFormat(args);
      const response = await client.Status({ verbose: true });
      await showAnswer(args, runtime.v1.StatusResponse.toObject(response, jsonForm));
    }),
});

export const version = defineCommand({
  meta: { description: "Show the running daemon's version" },
  args: hostArg,
  run: ({ args }) =>
    withClient(args, async (client) => {
      const answer = await client.Version({ version: "v1" });
      print(`Version:  ${answer.version}`);
      print(`RuntimeName:  ${answer.runtime_name}`);
      print(`RuntimeVersion:  ${answer.runtime_version}`);
      print(`RuntimeApiVersion:  ${answer.runtime_api_version}`);
    }),
});
