// Implements isulad-ts inspect, inspectp, inspecti, info and version.
import { defineCommand } from "citty";
import { CriError } from "../base/errors.ts";
import { runtime } from "../proto/messages.js";
import { repeatable } from "./options.ts";
import { print } from "./output.ts";
import {
  completes,
  containerOperand,
  forEach,
  hostArg,
  podOperand,
  printJson,
  withClient,
} from "./daemon_command.ts";
import { infoJson, jsonForm, protoJson, readableTimes } from "./text.ts";

type Answer = { status?: object; image?: object | null; info?: Record<string, string> | null };

function show(answer: Answer): void {
  const { info, ...rest } = answer;
  printJson({ ...infoJson(info), ...(readableTimes(protoJson(rest)) as object) });
}

export const inspect = defineCommand({
  meta: { description: "Show containers in full, as JSON" },
  args: { container: { ...containerOperand, ...repeatable }, ...hostArg },
  run: ({ args }) =>
    withClient(args, (client, find) =>
      forEach(args._, async (text) => {
        const { id } = await find.container(text);
        const response = await client.ContainerStatus({ container_id: id, verbose: true });
        show(runtime.v1.ContainerStatusResponse.toObject(response, jsonForm));
      }),
    ),
});

export const inspectp = defineCommand({
  meta: { description: "Show pods in full, as JSON" },
  args: { pod: { ...podOperand, ...repeatable }, ...hostArg },
  run: ({ args }) =>
    withClient(args, (client, find) =>
      forEach(args._, async (text) => {
        const { id } = await find.pod(text);
        const response = await client.PodSandboxStatus({ pod_sandbox_id: id, verbose: true });
        const { status, info } = runtime.v1.PodSandboxStatusResponse.toObject(response, jsonForm);
        show({ status, info });
      }),
    ),
});

export const inspecti = defineCommand({
  meta: { description: "Show images in full, as JSON" },
  args: {
    image: {
      type: "positional",
      description: "Name, digest or id",
      ...repeatable,
      ...completes.image,
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client) =>
      forEach(args._, async (image) => {
        const response = await client.ImageStatus({ image: { image }, verbose: true });
        if (!response.image) {
          throw new CriError("NOT_FOUND", `no such image; isulad-ts pull ${image} may fetch it`);
        }
        const { image: status, info } = runtime.v1.ImageStatusResponse.toObject(response, jsonForm);
        show({ status, info });
      }),
    ),
});

export const info = defineCommand({
  meta: { description: "Show the daemon's conditions, handlers and settings" },
  args: hostArg,
  run: ({ args }) =>
    withClient(args, async (client) => {
      const response = await client.Status({ verbose: true });
      show(runtime.v1.StatusResponse.toObject(response, jsonForm));
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
