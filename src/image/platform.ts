// Detects the platforms whose programs this machine runs, and chooses the best match for them.
import { readFileSync } from "node:fs";

export type Platform = { architecture: string; variants: string[] };

/** CPU flags that each amd64 level adds to the previous one, in the names of /proc/cpuinfo (psABI). */
const amd64Levels = [
  ["cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"],
  ["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"],
  ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"],
];

let cached: ReadonlySet<string> | undefined;

function cpuFlags(): ReadonlySet<string> {
  if (cached !== undefined) return cached;
  const line = /^flags\s*:(.*)$/m.exec(readFileSync("/proc/cpuinfo", "utf8"))?.[1] ?? "";
  cached = new Set(line.trim().split(/\s+/));
  return cached;
}

const arm: Platform = { architecture: "arm", variants: ["v7", "v6", "v5", ""] };

/**
 * Returns architectures in the spelling of image configs, best first: this machine's, then, as in containerd's
 * platforms.Only, its 32-bit one. On a machine that runs no 32-bit programs, the container then fails to start.
 */
export function hostPlatforms(arch: string = process.arch, flags = cpuFlags()): Platform[] {
  switch (arch) {
    case "x64": {
      const unsupported = amd64Levels.findIndex((level) => !level.every((flag) => flags.has(flag)));
      const level = unsupported < 0 ? amd64Levels.length + 1 : unsupported + 1;
      const better = Array.from({ length: level - 1 }, (_, i) => `v${level - i}`);
      return [
        { architecture: "amd64", variants: [...better, "", "v1"] },
        { architecture: "386", variants: [""] },
      ];
    }
    case "arm64":
      return [
        { architecture: "arm64", variants: ["v8", ""] },
        { ...arm, variants: ["v8", ...arm.variants] },
      ];
    case "arm":
      return [arm];
    default:
      return [{ architecture: arch, variants: [""] }];
  }
}

/** Other names of architectures (uname, Debian) that containerd accepts. */
const aliases: Record<string, [architecture: string, variant?: string]> = {
  x86_64: ["amd64"],
  "x86-64": ["amd64"],
  aarch64: ["arm64"],
  armhf: ["arm", "v7"],
  armel: ["arm", "v6"],
  i386: ["386"],
};

type Described = {
  os?: string;
  architecture?: string;
  variant?: string | undefined;
  "os.features"?: string[];
};

function normalized({ architecture = "", variant = "" }: Described): [string, string] {
  const lower = architecture.toLowerCase();
  const [name, implied] = aliases[lower] ?? [lower];
  return [name, implied ?? variant.toLowerCase().replace(/^(?=\d)/, "v")];
}

/** Returns the normalized architecture; "" if none is stated. */
export function architectureOf(has: Described | null | undefined): string {
  return normalized(has ?? {})[0];
}

export function isForLinux(has: Described | null | undefined): boolean {
  return (has?.os || "linux").toLowerCase() === "linux";
}

/** Returns the features that an image requires of its system; this runtime has none of those that exist for Linux. */
export function requiredFeatures(has: Described | null | undefined): string[] {
  return (has?.["os.features"] ?? []).filter((feature) => feature !== "");
}

/** Returns the items for the platforms, the best first. */
export function allFor<T>(
  list: T[],
  platforms: Platform[],
  of: (item: T) => Described | null | undefined,
): T[] {
  const isFor = (item: T, wanted: string) =>
    isForLinux(of(item)) &&
    requiredFeatures(of(item)).length === 0 &&
    normalized(of(item) ?? {}).join("/") === wanted;
  const wanted = platforms.flatMap(({ architecture, variants }) =>
    variants.map((variant) => `${architecture}/${variant}`),
  );
  return wanted.flatMap((one) => list.filter((item) => isFor(item, one)));
}

/** Returns the item for the best of the platforms; undefined if there is none for them. */
export function bestFor<T>(...of: Parameters<typeof allFor<T>>): T | undefined {
  return allFor(...of)[0];
}
