// Tests the SELinux labels of pods and containers, and their levels.
import { describe, expect, test } from "bun:test";
import { containerSpec, sandboxSpec } from "../../../src/spec/oci.ts";
import {
  requestsLabels,
  containerLabels,
  levelOf,
  levelPattern,
  parsePolicy,
  podLabels,
  unusedLevel,
} from "../../../src/spec/selinux.ts";
import { codeAndMessage, host, noSettings, sandboxInfo, specInput } from "../../spec/inputs.ts";

const policy = {
  process: "system_u:system_r:container_t:s0",
  file: "system_u:object_r:container_file_t:s0",
};
const newLevel = () => "s0:c3,c7";
const pod = podLabels({}, { policy, newLevel });

describe("podLabels()", () => {
  test("are the policy's with a new level", () => {
    expect(pod).toEqual({
      process: "system_u:system_r:container_t:s0:c3,c7",
      mount: "system_u:object_r:container_file_t:s0:c3,c7",
    });
  });

  test("are as requested; mounts take only the user and the level", () => {
    const asked = { user: "u", role: "r", type: "spc_t", level: "s0:c1,c2" };
    expect(podLabels(asked, { policy, newLevel })).toEqual({
      process: "u:r:spc_t:s0:c1,c2",
      mount: "u:object_r:container_file_t:s0:c1,c2",
    });
    expect(podLabels({ type: "spc_t" }, { policy, newLevel }).process).toEndWith("spc_t:s0:c3,c7");
  });

  test("have no level in a policy without levels", () => {
    const plain = { process: "u:r:t", file: "u:object_r:f" };
    expect(podLabels(undefined, { policy: plain, newLevel })).toEqual({
      process: "u:r:t",
      mount: "u:object_r:f",
    });
  });
});

test("containerLabels() default to the pod's", () => {
  expect(containerLabels(undefined, pod)).toEqual(pod);
  expect(containerLabels({ type: "spc_t" }, pod)).toEqual({
    process: "system_u:system_r:spc_t:s0:c3,c7",
    mount: pod.mount,
  });
  expect(containerLabels({ level: "s0:c9" }, pod).mount).toEndWith(":s0:c9");
  expect([{}, null, { role: "" }, { role: "r" }].map(requestsLabels)).toEqual([
    false,
    false,
    false,
    true,
  ]);
});

describe("unusedLevel()", () => {
  test("is an unused pair of different categories", () => {
    const numbers = [5, 5, 9, 2, 4, 1].map((category) => (category + 0.5) / 1_022);
    const random = () => numbers.shift()!;
    expect(unusedLevel(new Set(["s0:c2,c9"]), { count: 1_022, random })).toBe("s0:c1,c4");
    const taken = new Set<string>();
    const range = { count: 1_022, random: Math.random };
    for (let i = 0; i < 500; i++) taken.add(unusedLevel(taken, range));
    expect(taken.size).toBe(500);
    for (const level of taken) {
      expect(level).toMatch(levelPattern);
      const [low = 0, high = 0] = level.match(/\d+/g)!.slice(1).map(Number);
      expect([low < high, high < 1_022]).toEqual([true, true]);
    }
  });

  test("has only the first categories of the range", () => {
    const two = { count: 2, random: Math.random };
    expect(unusedLevel(new Set(), two)).toBe("s0:c0,c1");
    const message = codeAndMessage(() => unusedLevel(new Set(["s0:c0,c1"]), two));
    expect(message).toContain("selinux-category-range");
  });

  test("fails if it finds none", () => {
    const numbers = () => (Math.random() < 0.5 ? 0 : 1 / 1_022 + 1e-9);
    const range = { count: 1_022, random: numbers };
    const message = codeAndMessage(() => unusedLevel(new Set(["s0:c0,c1"]), range));
    expect(message).toStartWith("RESOURCE_EXHAUSTED: found no unused SELinux level");
  });
});

test("levelPattern matches levels and ranges, and nothing else", () => {
  for (const level of ["s0", "s0:c1", "s0:c26,c5", "s0-s0:c0.c1023", "s0:c1,c3.c5", "s1-s2"]) {
    expect(level).toMatch(levelPattern);
  }
  for (const level of ["", "c1", "s0:", "s0:c1,", "s0:c12345", "s0:c1:c2", "s0\n", "s0-", "S0"]) {
    expect(level).not.toMatch(levelPattern);
  }
  expect(levelOf(pod.mount)).toBe("s0:c3,c7");
});

test("parsePolicy() reads a policy's contexts file", () => {
  const lines = [
    'process = "system_u:system_r:container_t:s0"',
    'file="system_u:object_r:container_file_t:s0"',
    "ro_file = system_u:object_r:container_ro_file_t:s0",
    "# process = no",
    "; file = no",
    'kvm_process = "system_u:system_r:container_kvm_t:s0"',
  ];
  expect(parsePolicy(lines.join("\n"))).toEqual(policy);
  expect(parsePolicy(lines.slice(1).join("\n"))).toBeUndefined();
  expect(parsePolicy('process = "one two"\nfile = "a:b:c"')).toBeUndefined();
});

describe("a labelled spec", () => {
  const labels = (privileged: boolean) => {
    const linux = { security_context: { privileged } };
    const sandbox = sandboxInfo({ linux });
    const spec = containerSpec(specInput({ linux }, { selinux: pod, sandbox }));
    const pause = sandboxSpec({
      ...specInput({}),
      sandbox,
      image: { Entrypoint: ["/pause"] },
      resolved: { passwd: "", group: "" },
      host,
      handler: noSettings,
      selinux: pod,
    });
    return [spec, pause].map(({ process, linux }) => [process.selinuxLabel, linux.mountLabel]);
  };

  test("labels processes and mounts of containers and pause containers", () => {
    expect(labels(false)).toEqual([
      [pod.process, pod.mount],
      [pod.process, pod.mount],
    ]);
  });

  test("leaves privileged containers unconfined", () => {
    expect(labels(true)).toEqual([
      [undefined, pod.mount],
      [undefined, pod.mount],
    ]);
  });
});
