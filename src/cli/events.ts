// isulad-ts events: pod events as they come, in crictl's form.
import { defineCommand } from "citty";
import { runtime } from "../proto/messages.js";
import { hostArg, printJson, withClient } from "./daemon_command.ts";
import { jsonForm, protoJson } from "./text.ts";

export const events = defineCommand({
  meta: { description: "Print what happens to pods and containers from now on" },
  args: { ...hostArg },
  run: ({ args }) =>
    withClient(args, async (client) => {
      for await (const event of client.GetContainerEvents({})) {
        printJson(protoJson(runtime.v1.ContainerEventResponse.toObject(event, jsonForm)));
      }
    }),
});
