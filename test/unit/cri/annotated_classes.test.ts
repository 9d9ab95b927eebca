// Tests the classes of block I/O and RDT that annotations name. A plain folder replaces resctrl.
import { afterAll, beforeEach, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { withAnnotatedClasses, withClasses } from "../../../src/cri/annotated_classes.ts";
import type { OciSpec } from "../../../src/spec/oci.ts";
import { codeAndMessage } from "../../spec/inputs.ts";
import { capturedLog, containerRecord } from "../fakes.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-classes-"));
const [blockioConfigFile, rdtConfigFile] = [join(dir, "blockio.yaml"), join(dir, "rdt.yaml")];
const resctrl = join(dir, "resctrl");
afterAll(() => rmSync(dir, { recursive: true }));

beforeEach(() => {
  writeFileSync(blockioConfigFile, "Classes: {slow: [{Weight: 80}], fast: [{Weight: 900}]}");
  writeFileSync(rdtConfigFile, 'partitions: {a: {l3Allocation: "60%", classes: {gold: }}}');
  rmSync(resctrl, { recursive: true, force: true });
  mkdirSync(join(resctrl, "info/L3"), { recursive: true });
  writeFileSync(join(resctrl, "schemata"), "L3:0=fffff\n");
  writeFileSync(join(resctrl, "info/L3/cbm_mask"), "fffff\n");
  writeFileSync(join(resctrl, "info/L3/min_cbm_bits"), "2\n");
});

const files = { blockioConfigFile, rdtConfigFile };
const strict = { ignoreBlockioErrors: false, ignoreRdtErrors: false };
const ignoring = { ignoreBlockioErrors: true, ignoreRdtErrors: true };

type Annotations = { container?: Record<string, string>; pod?: Record<string, string> };

async function made({ container: annotations = {}, pod = {} }: Annotations, config = {}) {
  const container = containerRecord({ config: { metadata: { name: "app" }, annotations } });
  const spec = { linux: { resources: { devices: [] } } } as unknown as OciSpec;
  const { log } = capturedLog("error");
  const node = { config: { ...files, ...strict, ...config }, log };
  const sandbox = { config: { annotations: pod } };
  const result = await withAnnotatedClasses(node, sandbox, { container, spec, resctrl });
  const { intelRdt, resources } = result.spec.linux;
  const weight = resources.blockIO?.weight;
  return { weight, closID: intelRdt?.closID, classes: result.container.classes };
}

async function failureOf(refused: Promise<unknown>): Promise<string> {
  const error = await refused.then(
    () => new Error("expected a rejection"),
    (reason: unknown) => reason,
  );
  return codeAndMessage(() => {
    throw error;
  });
}

const none = { weight: undefined, closID: undefined, classes: undefined };
const ofPod = {
  "blockio.resources.beta.kubernetes.io/pod": "slow",
  "rdt.resources.beta.kubernetes.io/pod": "gold",
};

describe("an annotation", () => {
  test("of the pod gives each container its class", async () => {
    const classes = { blockio: "slow", rdt: "gold" };
    expect(await made({ pod: ofPod })).toEqual({ weight: 80, closID: "gold", classes });
    expect(readFileSync(join(resctrl, "gold/schemata"), "utf8")).toStartWith("L3:0=");
  });

  test("for one container precedes the pod's, and the container's own precedes both", async () => {
    const named = "blockio.resources.beta.kubernetes.io/container";
    const pod = { [`${named}.app`]: "fast", "blockio.resources.beta.kubernetes.io/pod": "slow" };
    expect((await made({ pod })).weight).toBe(900);
    expect(await made({ pod: { [`${named}.other`]: "fast" } })).toEqual(none);
    const container = { "io.kubernetes.cri.blockio-class": "slow" };
    expect((await made({ pod, container })).weight).toBe(80);
  });

  test("that is empty, or absent, gives none", async () => {
    expect(await made({})).toEqual(none);
    expect(await made({ pod: { "blockio.resources.beta.kubernetes.io/pod": "" } })).toEqual(none);
  });

  test.each([
    ["blockio", "blockioConfigFile"],
    ["rdt", "rdtConfigFile"],
  ] as const)(
    "of %s without its file refuses the container, unless it is ignored",
    async (kind, file) => {
      const pod = { [`${kind}.resources.beta.kubernetes.io/pod`]: "../x" };
      expect(await failureOf(made({ pod }, { [file]: "" }))).toBe(
        `FAILED_PRECONDITION: an annotation names the ${kind} class "../x", but no "${kind}-config-file" is set: set it, remove the annotation, or let "ignore-${kind}-not-enabled-errors" be true`,
      );
      expect(await made({ pod }, { [file]: "", ...ignoring })).toEqual(none);
      const unknown = await failureOf(made({ pod }, ignoring));
      expect(unknown).toStartWith(`FAILED_PRECONDITION: ${kind}_class ../x: `);
    },
  );

  test("of rdt is refused or ignored without resctrl", async () => {
    rmSync(resctrl, { recursive: true });
    const pod = { "rdt.resources.beta.kubernetes.io/pod": "gold" };
    expect(await failureOf(made({ pod }))).toContain(`${resctrl} is not mounted`);
    expect(await made({ pod }, ignoring)).toEqual(none);
  });
});

test("withClasses() keeps, replaces and removes the classes of an annotation", () => {
  const container = containerRecord({ classes: { blockio: "slow", rdt: "gold" } });
  const classes = (blockio?: string, rdt?: string) =>
    withClasses(container, { blockio, rdt }).classes;
  expect(classes()).toEqual({ blockio: "slow", rdt: "gold" });
  expect(classes("fast")).toEqual({ blockio: "fast", rdt: "gold" });
  expect(classes("", "")).toBeUndefined();
});
