// Decodes messages with the Go packages that kubelets use, where there is a Go to build that with.
import { spawnSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { join } from "node:path";

export type Named = { type: string; bytes: Uint8Array };

const program = join(import.meta.dirname, "../.cache/cri-decode");

/** What Go refuses of the messages, a line each. */
export type GoDecoder = (messages: Named[]) => string[];

/** @returns one that refuses nothing where there is no Go of the version needed, and says so. */
export function buildGoDecoder(): GoDecoder {
  const cwd = join(import.meta.dirname, "../proto");
  mkdirSync(join(program, ".."), { recursive: true });
  // One package at a time: grpc is among them, and other tests may be running.
  const argv = ["build", "-p", "1", "-trimpath", "-o", program, "./decode"];
  const built = spawnSync("go", argv, {
    cwd,
    encoding: "utf8",
    env: { ...process.env, CGO_ENABLED: "0" },
  });
  if (built.status !== 0) {
    console.log(`no message is decoded by Go: ${built.error ?? built.stderr}`);
    return () => [];
  }
  return decode;
}

function decode(messages: Named[]): string[] {
  const lines = messages.map(
    ({ type, bytes }) => `${type} ${Buffer.from(bytes).toString("hex")}\n`,
  );
  const done = spawnSync(program, { input: lines.join(""), encoding: "utf8", maxBuffer: 64 << 20 });
  if (done.status !== 0) throw new Error(`${program} failed: ${done.error ?? done.stderr}`);
  return done.stdout.split("\n").filter((line) => line !== "");
}
