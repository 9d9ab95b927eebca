// Tests that every field which plugins can adjust reaches the container's OCI spec, or is rejected if this
// host or runtime does not support it. Uses real plugins with the oldest and the newest stub.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { cgroupMounts } from "../../src/node/cgroup.ts";
import { readHostInfo } from "../../src/node/host_probe.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, ociRuntime, startDaemon } from "../harness.ts";
import {
  adjustableFields,
  blockioClass,
  cdiDevice,
  isInOldest,
  leaves,
  type Need,
} from "./fields.ts";
import { buildPlugin, hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
/** Built by test/run from the Go module proxy. */
const newRunc = join(import.meta.dirname, "../.cache/runc");
const handlers = [ociRuntime, ...(existsSync(newRunc) ? ["runc-new"] : [])];
let daemon: Daemon;
let pod: PodSandboxConfig;
const pods: Record<string, string> = {};

beforeAll(async () => {
  if (!hasGo) return;
  for (const version of ["v061", "v0125"] as const) buildPlugin(version);
  const [cdiDir, blockio] = ["cdi", "blockio.yaml"].map((name) => join(plugins.dir, name));
  mkdirSync(cdiDir!);
  const [kind, name] = cdiDevice.split("=");
  const devices = [{ name, containerEdits: { env: ["CDI=yes"] } }];
  writeFileSync(join(cdiDir!, "one.json"), JSON.stringify({ cdiVersion: "0.5.0", kind, devices }));
  writeFileSync(blockio!, `Classes: {${blockioClass}: [{Weight: 77}]}`);
  const keys = {
    "enable-cdi": true,
    "cdi-spec-dirs": [cdiDir],
    "blockio-config-file": blockio,
    runtimes: handlers.includes("runc-new") ? { "runc-new": { path: newRunc } } : {},
  };
  daemon = await startDaemon({ config: plugins.config(keys) });
  pod = daemon.podConfig();
  for (const handler of handlers) {
    pods[handler] = await daemon.runPod(daemon.podConfig(), handler === ociRuntime ? "" : handler);
  }
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

const mounts = cgroupMounts();
const versions = new Map(
  handlers.map((handler) => {
    const program = handler === "runc-new" ? newRunc : handler;
    const { ociVersionMax } = JSON.parse(execFileSync(program, ["features"], { encoding: "utf8" }));
    return [handler, Number(/^\d+\.\d+/.exec(ociVersionMax as string)![0])];
  }),
);

/** Returns the expected error text of an unsupported field; undefined: it is supported. */
function refusal(need: Need | undefined, handler: string): string | undefined {
  const texts: Record<Need, [has: boolean, text: string]> = {
    "OCI 1.1": [versions.get(handler)! >= 1.1, "specification 1.1"],
    "OCI 1.3": [versions.get(handler)! >= 1.3, "specification 1.3"],
    resctrl: [existsSync("/sys/fs/resctrl/schemata"), "resctrl is not mounted"],
    "cgroup v2": [mounts.version === 2, "it needs cgroup v2"],
    hugetlb: [readHostInfo(mounts, {}).hugepageSizes.includes("2MB"), "controller lacks it"],
  };
  if (need === undefined || texts[need][0]) return undefined;
  return texts[need][1];
}

/** Returns a matcher of objects and lists that contain at least value. */
function atLeast(value: unknown): unknown {
  if (Array.isArray(value)) return expect.arrayContaining(value.map(atLeast));
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).map(([name, inner]) => [name, atLeast(inner)]);
  return expect.objectContaining(Object.fromEntries(entries) as object);
}

test.each(adjustableFields)("%s reaches the spec, or is refused", async (_, field) => {
  for (const version of isInOldest(field) ? (["v061", "v0125"] as const) : (["v0125"] as const)) {
    await plugins.adjusting([["10", version, { adjust: field.adjust }]], async (name) => {
      for (const handler of handlers) {
        const more = { metadata: { name, attempt: handlers.indexOf(handler) } };
        const coming = daemon.create(pods[handler]!, pod, ["true"], more);
        const text = refusal(field.need, handler);
        if (text !== undefined) {
          const error = await failure(coming);
          expect(error.code).toBe("FAILED_PRECONDITION");
          expect(error.message).toContain(text);
          continue;
        }
        const id = await coming;
        const path = join(daemon.dir, "graph/containers", id, "config.json");
        expect(JSON.parse(readFileSync(path, "utf8"))).toEqual(atLeast(field.spec) as object);
        await daemon.client.RemoveContainer({ container_id: id });
      }
    });
  }
});

test("every field of an adjustment is tested", () => {
  const tried = new Set(adjustableFields.flatMap(([, { adjust }]) => leaves(adjust)));
  expect(leaves().filter((path) => !tried.has(path))).toEqual([]);
});
