// Which of an index's images this machine runs.
import { readFileSync } from "node:fs";
import { CriError } from "../base/errors.ts";
import type { Descriptor, Index } from "./manifest.ts";

export type Platform = { architecture: string; variants: string[] };

/** What each level of amd64 needs beyond the one before, as /proc/cpuinfo names it (psABI). */
const amd64Levels = [
  ["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"],
  ["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"],
  ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"],
];

let known: ReadonlySet<string> | undefined;

function cpuFlags(): ReadonlySet<string> {
  if (known !== undefined) return known;
  const line = /^flags\s*:(.*)$/m.exec(readFileSync("/proc/cpuinfo", "utf8"))?.[1] ?? "";
  known = new Set(line.trim().split(/\s+/));
  return known;
}

/** A machine's architecture as image configs spell it, best variant first; by default this one's. */
export function hostPlatform(arch: string = process.arch, flags = cpuFlags()): Platform {
  switch (arch) {
    case "x64": {
      const lacking = amd64Levels.findIndex((level) => !level.every((flag) => flags.has(flag)));
      const level = lacking < 0 ? amd64Levels.length + 1 : lacking + 1;
      const better = Array.from({ length: level - 1 }, (_, i) => `v${level - i}`);
      return { architecture: "amd64", variants: [...better, "", "v1"] };
    }
    case "arm64":
      return { architecture: "arm64", variants: ["v8", ""] };
    case "arm":
      return { architecture: "arm", variants: ["v7", "v6", "v5", ""] };
    default:
      return { architecture: arch, variants: [""] };
  }
}

/** The index's entry for a platform. @throws CriError NOT_FOUND that lists what there is. */
export function choosePlatform(index: Index, platform: Platform, what: string): Descriptor {
  const linux = index.manifests.filter((entry) => (entry.platform?.os ?? "linux") === "linux");
  for (const variant of platform.variants) {
    const match = linux.find(
      ({ platform: has }) =>
        has?.architecture === platform.architecture && (has.variant ?? "") === variant,
    );
    if (match !== undefined) return match;
  }
  // A list of one image without a platform means that image.
  if (linux.length === 1 && !linux[0]!.platform?.architecture) return linux[0]!;
  const there = index.manifests
    .map(({ platform: has }) => [has?.os, has?.architecture, has?.variant].filter(Boolean))
    .filter((parts) => parts.length > 0 && !parts.includes("unknown"))
    .map((parts) => parts.join("/"));
  throw new CriError(
    "NOT_FOUND",
    `${what} has no image for linux/${platform.architecture}; it has ${there.join(", ") || "none"}`,
  );
}
