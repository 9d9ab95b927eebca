// Implements isulad-ts registry check: tries every endpoint of a pull and shows its TLS, auth and answer.
import { defineCommand } from "citty";
import { toBigInt } from "../base/int64.ts";
import { isulad } from "../proto/messages.js";
import type { EndpointCheck } from "../proto/types.ts";
import { credentialsOf, credsArg } from "./image_commands.ts";
import { print } from "./output.ts";
import { failureCode } from "./program.ts";
import { hostArg, outputArg, printJson, withClient } from "./daemon_command.ts";
import { lineText, protoJson } from "./text.ts";

const check = defineCommand({
  meta: { description: "Try each registry endpoint that a pull would use, and show its answer" },
  args: {
    image: {
      type: "positional",
      required: true,
      description: "Name, such as docker.io/library/busybox:1.37",
    },
    ...credsArg,
    ...outputArg,
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client) => {
      const image = args.image ?? "";
      const isTable = args.output !== "json";
      const all: EndpointCheck[] = [];
      for await (const found of client.CheckRegistry({ image, ...credentialsOf(args) })) {
        all.push(found);
        if (isTable) print(checkText(found, all.length));
      }
      if (!isTable) printJson(all.map(checkJson));
      const isPulled = canBePulled(all, image.includes("@"));
      if (isTable) print(isPulled ? "A pull would succeed." : "A pull would fail.");
      return isPulled ? 0 : failureCode;
    }),
});

export const registry = defineCommand({
  meta: { description: "Diagnose failing pulls" },
  subCommands: { check },
});

/** One endpoint can serve the content and, for a tag, one can resolve it to a digest. */
function canBePulled(checks: readonly EndpointCheck[], isDigest: boolean): boolean {
  const isGood = (capability: string) =>
    checks.some(({ code, capabilities }) => code === "OK" && capabilities?.includes(capability));
  return isGood("pull") && (isDigest || isGood("resolve"));
}

function checkText(found: EndpointCheck, number: number): string {
  const { url, role, from, capabilities = [], code, detail } = found;
  const ms = toBigInt(found.elapsed_ms ?? 0);
  const asked = found.authorization ? ` (${found.authorization})` : "";
  const result = code === "OK" ? "ok" : code ? `failed, ${code}` : "skipped";
  return [
    `${number}. ${url}`,
    `   what         ${role}, may ${capabilities?.join(" and ")}; from ${from}`,
    `   proxy        ${found.proxy}`,
    `   tls          ${found.tls}`,
    `   credentials  ${found.credentials}${asked}`,
    `   ${result} (${ms} ms): ${detail}`,
  ]
    .map(lineText)
    .join("\n");
}

function checkJson(found: EndpointCheck): unknown {
  const form = { longs: Number, defaults: true };
  return protoJson(isulad.v1.EndpointCheck.toObject(isulad.v1.EndpointCheck.create(found), form));
}
