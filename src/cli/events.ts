// Implements isulad-ts events: prints events of pods and containers in crictl's JSON.
import { defineCommand } from "citty";
import { runtime } from "../proto/messages.js";
import { hostArg, printJson, withClient } from "./daemon_command.ts";
import { jsonForm, protoJson } from "./text.ts";

export const events = defineCommand({
  meta: { description: "Print events of pods and containers as they happen" },
  args: { ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client) => {
      for await (const event of client.GetContainerEvents({})) {
        printJson(protoJson(runtime.v1.ContainerEventResponse.toObject(event, jsonForm)));
      }
    }),
});
