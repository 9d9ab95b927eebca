// Fuzzes plugins' answers through decoding, checks, merging and the spec: each mutated answer must be applied
// or rejected with a CriError, and the resulting spec must be serializable.
import { CriError } from "../../src/base/errors.ts";
import { toLong } from "../../src/base/int64.ts";
import { checkAdjustment, checkUpdate } from "../../src/nri/check_answers.ts";
import { toCri } from "../../src/nri/convert.ts";
import { AdjustmentMerge } from "../../src/nri/merge_adjustments.ts";
import { nri } from "../../src/proto/nri.js";
import type { CreateContainerResponse } from "../../src/proto/nri_types.ts";
import { adjustedSpec } from "../../src/spec/nri_adjustment.ts";
import { containerSpec, ociJson, parseOciSpec } from "../../src/spec/oci.ts";
import { host, specInput } from "../spec/inputs.ts";

const api = nri.pkg.api.v1alpha1;
const int = (value: number) => ({ value: toLong(value) });
const hook = { path: "/h", args: ["h"], env: ["A=1"], timeout: int(3) };

/** An adjustment with every field. */
const answer: CreateContainerResponse = {
  adjust: {
    annotations: { a: "1", "-b": "" },
    mounts: [
      { destination: "/m", type: "bind", source: "/s", options: ["rbind", "rslave"] },
      { destination: "-/n" },
    ],
    env: [
      { key: "A", value: "1" },
      { key: "-B", value: "" },
    ],
    args: ["", "run"],
    hooks: { prestart: [hook], create_runtime: [hook], poststop: [hook] },
    rlimits: [{ type: "RLIMIT_CORE", soft: toLong(1), hard: toLong(2) }],
    CDI_devices: [{ name: "v/c=x" }],
    linux: {
      devices: [{ path: "/dev/x", type: "c", major: toLong(1), minor: toLong(3), file_mode: {} }],
      resources: {
        memory: { limit: int(9), swap: int(10), swappiness: int(5), disable_oom_killer: {} },
        cpu: { shares: int(2), quota: int(-1), period: int(9), cpus: "0-1", mems: "0" },
        hugepage_limits: [{ page_size: "2MB", limit: toLong(1) }],
        unified: { "memory.high": "1" },
        pids: { limit: toLong(4) },
        devices: [{ allow: true, type: "c", major: int(1), access: "rw" }],
        blockio_class: { value: "x" },
        rdt_class: { value: "y" },
      },
      cgroups_path: "/c",
      oom_score_adj: int(5),
      io_priority: { class: 1, priority: 3 },
      seccomp_policy: {
        default_action: "SCMP_ACT_ALLOW",
        syscalls: [{ names: ["a"], action: "SCMP_ACT_ERRNO", args: [{ op: "SCMP_CMP_EQ" }] }],
      },
      namespaces: [{ type: "ipc" }, { type: "-uts" }],
      sysctl: { "kernel.x": "1" },
      net_devices: { eth1: { name: "in" } },
      scheduler: { policy: 4, flags: [0, 1], runtime: toLong(3) },
      rdt: { clos_id: { value: "a" }, schemata: { value: ["MB:0=1"] }, remove: true },
      memory_policy: { mode: 2, nodes: "0", flags: [0] },
    },
  },
  update: [{ container_id: "c2", linux: { resources: { cpu: { cpus: "0" } } } }],
  evict: [{ container_id: "c3", reason: "r" }],
};

const bytes = api.CreateContainerResponse.encode(answer).finish();
const spec = containerSpec(specInput({}));
const options = { host, ociVersion: "1.3.0", resctrl: true, restrictOomScoreAdj: false };

/** @throws errors other than CriError, which are bugs. */
export function fuzzAnswer(next: () => number): "garbage" | "refused" | "applied" {
  const mutated = Buffer.from(bytes);
  mutate(mutated, next);
  let response: nri.pkg.api.v1alpha1.CreateContainerResponse;
  try {
    response = api.CreateContainerResponse.decode(mutated);
  } catch {
    return "garbage";
  }
  try {
    if (response.adjust) checkAdjustment(response.adjust);
    for (const update of response.update) checkUpdate(update);
    const creation = new AdjustmentMerge({ id: "c1" });
    creation.apply("10-fuzz", response);
    api.Container.encode(creation.container()).finish();
    toCri(creation.adjustment().linux?.resources ?? {});
    parseOciSpec(ociJson(adjustedSpec(spec, creation.adjustment(), options)));
    return "applied";
  } catch (error) {
    if (!(error instanceof CriError)) throw error;
    return "refused";
  }
}

/** Changes up to three bytes. */
export function mutate(bytes: Buffer, next: () => number): void {
  const pick = (n: number) => Math.floor(next() * n);
  for (let i = pick(4); i > 0; i--) bytes[pick(bytes.length)] = pick(256);
}
