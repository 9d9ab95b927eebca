// Decodes messages with the Go packages that kubelets use, if this machine has Go to build the decoder.
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { buildGo } from "../go.ts";

export type Named = { type: string; bytes: Uint8Array };

/** What Go refuses of the messages, a line each. */
export type GoDecoder = (messages: Named[]) => string[];

/** @returns one that refuses nothing where there is no Go of the version needed, and says so. */
export function buildGoDecoder(): GoDecoder {
  try {
    const program = buildGo(join(import.meta.dirname, "../proto/decode"));
    return (messages) => decode(program, messages);
  } catch (error) {
    console.log(`no message is decoded by Go: ${String(error)}`);
    return () => [];
  }
}

function decode(program: string, messages: Named[]): string[] {
  const lines = messages.map(
    ({ type, bytes }) => `${type} ${Buffer.from(bytes).toString("hex")}\n`,
  );
  const done = spawnSync(program, { input: lines.join(""), encoding: "utf8", maxBuffer: 64 << 20 });
  if (done.status !== 0) throw new Error(`${program} failed: ${done.error ?? done.stderr}`);
  return done.stdout.split("\n").filter((line) => line !== "");
}
