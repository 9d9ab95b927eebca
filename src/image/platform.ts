// What this machine runs, and what of several suits it best.
import { readFileSync } from "node:fs";

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

/** What others call an architecture (uname, Debian), as containerd reads it. */
const spellings: Record<string, [architecture: string, variant?: string]> = {
  x86_64: ["amd64"],
  "x86-64": ["amd64"],
  aarch64: ["arm64"],
  armhf: ["arm", "v7"],
  armel: ["arm", "v6"],
  i386: ["386"],
};

type Described = { os?: string; architecture?: string; variant?: string | undefined };

function spelt({ architecture = "", variant = "" }: Described): [string, string] {
  const small = architecture.toLowerCase();
  const [name, implied] = spellings[small] ?? [small];
  return [name, implied ?? variant.toLowerCase().replace(/^(?=\d)/, "v")];
}

/** Whether it is for this architecture, whatever the variant. */
export function isArchitecture(has: Described, platform: Platform): boolean {
  return spelt(has)[0] === platform.architecture;
}

/** What suits a platform best of what is for some platform or other. */
export function bestFor<T>(
  list: T[],
  platform: Platform,
  of: (item: T) => Described | null | undefined,
): T | undefined {
  const suits = (item: T, wanted: string) => {
    const has = of(item) ?? {};
    const [architecture, variant] = spelt(has);
    const isLinux = (has.os || "linux").toLowerCase() === "linux";
    return isLinux && architecture === platform.architecture && variant === wanted;
  };
  for (const variant of platform.variants) {
    const match = list.find((item) => suits(item, variant));
    if (match !== undefined) return match;
  }
  return undefined;
}
