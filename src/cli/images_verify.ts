// Implements isulad-ts images verify: compares layers on disk with the content that was unpacked.
import { defineCommand } from "citty";
import { toBigInt } from "../base/int64.ts";
import type { VerifiedLayer } from "../proto/types.ts";
import { print } from "./output.ts";
import { failureCode } from "./program.ts";
import { hostArg, withClient } from "./daemon_command.ts";
import { lineText } from "./text.ts";

export const verify = defineCommand({
  meta: { description: "Check layers on disk for damage; exits with 1 if a layer is damaged" },
  args: {
    image: { type: "positional", required: false, description: "Check only this image's layers" },
    repair: { type: "boolean", description: "Pull damaged layers again" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const counts = new Map<string, number>();
      const request = { image: args.image ?? "", repair: args.repair === true };
      for await (const layer of client.VerifyImages(request)) {
        const state = layer.state ?? "";
        counts.set(state, (counts.get(state) ?? 0) + 1);
        if (state !== "intact") print(layerReport(layer));
      }
      const all = [...counts].map(([state, count]) => `${count} ${state}`).join(", ");
      print(`Layers: ${all || "none"}`);
      return counts.has("damaged") ? failureCode : 0;
    }),
});

export function layerReport(layer: VerifiedLayer): string {
  const { chain_id, images = [], state, differences = [], note } = layer;
  const more = Number(toBigInt(layer.differences_count)) - differences!.length;
  const head = `${state} ${chain_id} of ${images!.join(", ")}${note ? `: ${note}` : ""}`;
  const lines = differences!.map((line) => `  ${line}`);
  const all = [head, ...lines, ...(more > 0 ? [`  and ${more} more`] : [])];
  return all.map(lineText).join("\n");
}
