// Implements isulad-ts runtime-config, imagefsinfo, metricsp and metricdescs: the daemon's answers as they are.
import { type CommandDef, defineCommand } from "citty";
import { runtime } from "../proto/messages.js";
import type { Client } from "./client.ts";
import { hostArg, withClient } from "./daemon_command.ts";
import { checkFormat, jsonFormatArgs, propertyTable, show } from "./format.ts";
import { jsonForm, protoJson } from "./text.ts";

const v1 = runtime.v1;

export const runtimeConfig = answerCommand("Show the cgroup driver", async (client) =>
  v1.RuntimeConfigResponse.toObject(await client.RuntimeConfig({}), jsonForm),
);

export const imagefsinfo = answerCommand(
  "Show how full the images' file system is",
  async (client) => v1.ImageFsInfoResponse.toObject(await client.ImageFsInfo({}), jsonForm),
);

export const metricsp = answerCommand("Show the pods' CRI metrics", async (client) =>
  v1.ListPodSandboxMetricsResponse.toObject(await client.ListPodSandboxMetrics({}), jsonForm),
);

export const metricdescs = answerCommand(
  "Show names and labels of the CRI metrics",
  async (client) =>
    v1.ListMetricDescriptorsResponse.toObject(await client.ListMetricDescriptors({}), jsonForm),
);

function answerCommand(description: string, ask: (client: Client) => Promise<object>): CommandDef {
  return defineCommand({
    meta: { description },
    args: { ...jsonFormatArgs, ...hostArg },
    run: ({ args }) =>
      withClient(args, async (client) => {
        checkFormat(args);
        const value = protoJson(await ask(client));
        await show(args, value, () => propertyTable(value));
      }),
  }) as CommandDef;
}
