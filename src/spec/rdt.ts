// Computes resctrl schemata (Intel RDT, AMD QoS; kernel, resctrl.rst) of named classes from a configuration
// file in goresctrl's format (intel/goresctrl, doc/rdt.md), which containerd reads too.
//
// Each partition gets its own bits of a cache; classes get bits of their partition's, which may overlap. Memory
// bandwidth is not partitioned: a class gets its percentage of its partition's percentage.
import * as v from "valibot";
import { CriError } from "../base/errors.ts";
import { mapOf, objectOf } from "../base/schema.ts";

const Share = v.pipe(
  v.string("is not a string: quote it"),
  v.regex(
    /^(\d{1,3}(-\d{1,3})?%|0x[0-9a-f]{1,16}|\d\d?(-\d\d?)?)$/i,
    "is not a percentage, bit mask (0xf0) or range of bits (4-7)",
  ),
);
const Shares = v.pipe(
  v.strictObject({ unified: Share, code: v.optional(Share), data: v.optional(Share) }),
  v.check(({ code, data }) => (code === undefined) === (data === undefined), "code needs data"),
);
const OneShare = v.pipe(
  Share,
  v.transform((unified): v.InferOutput<typeof Shares> => ({ unified })),
);
const Rates = v.array(
  v.pipe(v.string(), v.regex(/^\d{1,9}(%|MBps)$/, "is neither a percentage nor MBps")),
);

const Ids = v.pipe(v.string(), v.regex(/^(all|[\d,-]{1,200})$/, 'is not "all" or a list of ids'));

/** Keyed by cache ids; a bare value applies to all caches. */
function byIds<Item extends v.GenericSchema>(item: Item) {
  const all = v.pipe(
    item,
    v.transform((all): Record<string, v.InferOutput<Item>> => ({ all })),
  );
  return v.optional(v.union([all, mapOf(Ids, item)]));
}

const allocations = {
  l2Allocation: byIds(v.union([OneShare, Shares])),
  l3Allocation: byIds(v.union([OneShare, Shares])),
  mbAllocation: byIds(Rates),
};
const Class = v.strictObject({ ...allocations, kubernetes: v.optional(v.unknown()) });
const Partition = v.strictObject({
  ...allocations,
  classes: v.optional(v.nullable(mapOf(v.string(), v.nullable(Class)))),
});
const Option = v.optional(objectOf({ optional: v.optional(v.boolean(), true) }), {});

export const RdtFile = v.object({
  options: v.optional(objectOf({ l2: Option, l3: Option, mb: Option }), {}),
  partitions: mapOf(v.string(), Partition),
});
type RdtConfig = v.InferOutput<typeof RdtFile>;
type CacheShares = v.InferOutput<(typeof allocations)["l3Allocation"]>;
type BandwidthShares = v.InferOutput<(typeof allocations)["mbAllocation"]>;

/** A line of the root group's schemata with the limits from its folder in info/. */
type RdtCache = {
  /** L2 or L3, with suffix CODE or DATA if code/data prioritization is on. */
  name: string;
  ids: number[];
  /** Width of the cache's bit mask. */
  bits: number;
  /** Fewest bits that the kernel accepts for a group. */
  bitsMin: number;
};

export type RdtHost = {
  caches: RdtCache[];
  /** percentMin: lower percentages are raised to it. inMBps: resctrl is mounted with mba_MBps. */
  bandwidth?: { ids: number[]; percentMin: number; inMBps: boolean };
};

/**
 * Returns the class's schemata; resources that neither it nor its partition configures are left out.
 * @throws CriError FAILED_PRECONDITION for an unknown class, shares that do not fit, and resources that the
 * file requires but this node lacks.
 */
export function rdtSchemata(config: RdtConfig, name: string, host: RdtHost): string[] {
  const partitions = Object.entries(config.partitions);
  const classes = partitions.flatMap(([partition, { classes }]) =>
    Object.entries(classes ?? {}).map(([key, one]) => ({ key, partition, own: one ?? {} })),
  );
  const [chosen, second] = classes.filter(({ key }) => key === name);
  if (chosen === undefined) {
    throw refused(`no such class; known: ${classes.map(({ key }) => key).join(", ") || "none"}`);
  }
  if (second !== undefined) throw refused(`it is in partition ${chosen.partition} and another one`);
  checkNeeded(config, host);
  const lines: string[] = [];
  for (const cache of host.caches) {
    const key = cache.name.startsWith("L2") ? "l2Allocation" : "l3Allocation";
    const given = partitions.map(([partition, one]): [string, CacheShares] => [
      partition,
      one[key],
    ]);
    const line = cacheLine(cache, given, { ...chosen, shares: chosen.own[key] });
    if (line !== undefined) lines.push(line);
  }
  const shared = config.partitions[chosen.partition]!.mbAllocation;
  const bandwidth = bandwidthLine(host, shared, chosen.own.mbAllocation);
  return bandwidth === undefined ? lines : [...lines, bandwidth];
}

function checkNeeded({ options, partitions }: RdtConfig, { caches, bandwidth }: RdtHost): void {
  const has = {
    l2: caches.some(({ name }) => name.startsWith("L2")),
    l3: caches.some(({ name }) => name.startsWith("L3")),
    mb: bandwidth !== undefined,
  };
  for (const key of ["l2", "l3", "mb"] as const) {
    if (options[key].optional || has[key]) continue;
    const isUsed = Object.values(partitions).some((one) => one[`${key}Allocation`] !== undefined);
    if (isUsed) throw refused(`it needs ${key.toUpperCase()} allocation, which this node lacks`);
  }
}

function cacheLine(
  cache: RdtCache,
  partitions: [name: string, shares: CacheShares][],
  chosen: { partition: string; shares: CacheShares },
): string | undefined {
  if (partitions.every(([, shares]) => shares === undefined)) return undefined;
  const without = partitions.find(([, shares]) => shares === undefined);
  if (without !== undefined) {
    throw refused(`partition ${without[0]} does not configure ${cache.name}, but others do`);
  }
  const kind = cache.name.slice(2).toLowerCase() as "" | "code" | "data";
  const share = (shares: CacheShares, id: number) => {
    const found = ofId(shares, id) ?? { unified: "100%" };
    return (kind === "" ? undefined : found[kind]) ?? found.unified;
  };
  const masks = cache.ids.map((id) => {
    const requested = partitions.map(([name, shares]) => ({ name, share: share(shares, id) }));
    const base = partitionMasks(cache, requested).get(chosen.partition)!;
    return `${id}=${classMask(share(chosen.shares, id), base, cache).toString(16)}`;
  });
  return `${cache.name}:${masks.join(";")}`;
}

/** Divides a cache's bits among partitions without overlap; the largest percentage also gets the bits left over. */
function partitionMasks(
  { name: cache, bits, bitsMin }: RdtCache,
  requested: { name: string; share: string }[],
): Map<string, bigint> {
  const masks = new Map<string, bigint>();
  if (!requested.some(({ share }) => share.endsWith("%"))) {
    let taken = 0n;
    for (const { name, share } of requested) {
      const mask = absoluteMask(share);
      if (mask >> BigInt(bits) !== 0n) throw refused(`${share} exceeds ${cache}'s ${bits} bits`);
      if ((mask & taken) !== 0n) throw refused(`partitions overlap in ${cache}: ${share}`);
      taken |= mask;
      masks.set(name, mask);
    }
    return masks;
  }
  const shares = requested.map(({ name, share }) => {
    if (!/^\d+%$/.test(share)) {
      throw refused(`${share} of ${cache}: partitions must be either all percentages or all bits`);
    }
    return { name, percent: Number.parseInt(share) };
  });
  const sum = shares.reduce((all, { percent }) => all + percent, 0);
  if (sum > 100) throw refused(`partitions take ${sum} % of ${cache}`);
  // Smallest first: they may have to be raised to bitsMin.
  shares.sort((a, b) => a.percent - b.percent);
  let from = 0;
  for (const [index, { name, percent }] of shares.entries()) {
    const left = bits - from;
    if (left < bitsMin) throw refused(`${cache} has only ${bits} bits`);
    const leftPercent = Math.floor((left * 100) / bits);
    const part = Math.max(bitsMin, Math.floor((percent * left) / leftPercent));
    const width = index === shares.length - 1 ? left : Math.min(part, left);
    masks.set(name, ones(width) << BigInt(from));
    from += width;
  }
  return masks;
}

/** Returns a class's part of its partition's bits; bit 0 is the partition's first bit. */
function classMask(share: string, base: bigint, { name, bitsMin }: RdtCache): bigint {
  let first = 0;
  while (((base >> BigInt(first)) & 1n) === 0n) first++;
  const bits = base.toString(2).length - first;
  if (!share.endsWith("%")) {
    const mask = absoluteMask(share) << BigInt(first);
    if ((mask | base) !== base) throw refused(`${share} is not within its partition of ${name}`);
    return mask;
  }
  const [low, high] = share.includes("-")
    ? (share.match(/\d+/g)!.map(Number) as [number, number])
    : [1, Number.parseInt(share)];
  if (low > high || high > 100 || high < 1) throw refused(`${share} is not a percentage`);
  let from = Math.floor(((Math.max(low, 1) - 1) * bits) / 100);
  let to = Math.floor(((high - 1) * bits) / 100);
  while (to - from + 1 < bitsMin && from > 0) from--;
  while (to - from + 1 < bitsMin && to < bits - 1) to++;
  if (to - from + 1 < bitsMin) throw refused(`its partition has only ${bits} bits of ${name}`);
  return ones(to - from + 1) << BigInt(first + from);
}

function absoluteMask(share: string): bigint {
  const isMask = share.startsWith("0x");
  const [from = 0, to = from] = isMask ? [] : share.split("-").map(Number);
  const mask = isMask ? BigInt(share) : ones(to - from + 1) << BigInt(from);
  if (!/^1+0*$/.test(mask.toString(2))) throw refused(`${share} has no contiguous bits`);
  return mask;
}

function ones(count: number): bigint {
  return count < 1 ? 0n : (1n << BigInt(count)) - 1n;
}

function bandwidthLine(
  { bandwidth }: RdtHost,
  partition: BandwidthShares,
  own: BandwidthShares,
): string | undefined {
  if (bandwidth === undefined || (partition ?? own) === undefined) return undefined;
  const { ids, percentMin, inMBps } = bandwidth;
  const unit = inMBps ? "MBps" : "%";
  const rate = (shares: BandwidthShares, id: number, all: number) => {
    const rates = ofId(shares, id);
    if (rates === undefined) return all;
    const found = rates.find((one) => one.endsWith(unit));
    if (found === undefined)
      throw refused(`mbAllocation [${rates.join(", ")}] has none in ${unit}`);
    return Number.parseInt(found);
  };
  const values = ids.map((id) => {
    if (inMBps) {
      const most = 0xffff_ffff; // "no limit" for the kernel
      return `${id}=${Math.min(rate(partition, id, most), rate(own, id, most))}`;
    }
    const percent = Math.floor((rate(partition, id, 100) * rate(own, id, 100)) / 100);
    if (percent > 100) throw refused(`${percent} % of the memory bandwidth`);
    return `${id}=${Math.max(percent, percentMin)}`;
  });
  return `MB:${values.join(";")}`;
}

function ofId<Item>(shares: Record<string, Item> | undefined, id: number): Item | undefined {
  const named = Object.entries(shares ?? {}).find(([ids]) => ids !== "all" && holds(ids, id));
  return named?.[1] ?? shares?.["all"];
}

function holds(ids: string, id: number): boolean {
  return ids.split(",").some((range) => {
    const [from = -1, to = from] = range.split("-").map(Number);
    return from <= id && id <= to;
  });
}

function refused(why: string): CriError {
  return new CriError("FAILED_PRECONDITION", why);
}
