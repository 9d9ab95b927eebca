// Builds ocicrypt from the Go module proxy: a program that encrypts layers and serves as stream processor.
import { join } from "node:path";
import { buildGo, hasGo } from "../go.ts";

if (!hasGo) console.error("skipped, there is no Go: what ocicrypt encrypts");

/** The path of the program. */
export function buildOcicrypt(): string {
  return buildGo(join(import.meta.dirname, "ocicrypt"));
}
