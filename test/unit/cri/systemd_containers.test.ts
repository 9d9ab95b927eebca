// Tests which containers systemd-containers applies to.
import { expect, test } from "bun:test";
import type { Context } from "../../../src/cri/context.ts";
import { systemdRules } from "../../../src/cri/systemd_containers.ts";
import type { ImageRecord } from "../../../src/image/store.ts";
import { containerSpec } from "../../../src/spec/oci.ts";
import type { Sandbox } from "../../../src/state/sandbox.ts";
import { host, specInput } from "../../spec/inputs.ts";
import { capturedLog, sandboxRecord } from "../fakes.ts";

const image = { config: { Cmd: ["/sbin/init"] } } as ImageRecord;
const inUserns: Partial<Sandbox> = { namespaces: { user: { path: "/u" } as never } };
const config = { metadata: { name: "main" } };

function rules(systemdContainers: string, sandbox: Partial<Sandbox> = {}, command: string[] = []) {
  const { log, lines } = capturedLog("info");
  const context = {
    config: { systemdContainers },
    log,
    host: { ...host, cgroupOptions: ["nsdelegate"] },
    cgroup: { containerPaths: (...names: string[]) => ({ unified: `/cg/${names.join("/")}` }) },
  } as unknown as Context;
  const parts = { sandbox: sandboxRecord(sandbox), config: { ...config, command }, image };
  return { result: systemdRules(context, parts), lines };
}

test.each<[string, Partial<Sandbox>, boolean]>([
  ["off", inUserns, false],
  ["userns", {}, false],
  ["userns", inUserns, true],
  ["all", {}, true],
  ["all", { runtimeKind: "guest" }, false],
])("systemd-containers %s for the pod %j: %p", async (value, sandbox, expected) => {
  expect((await rules(value, sandbox).result) !== undefined).toBe(expected);
});

test("other containers get nothing", async () => {
  expect(await rules("all", {}, ["/app"]).result).toBeUndefined();
});

test("a container that runs systemd without a user namespace is named in the log", async () => {
  const { result, lines } = rules("userns");
  await result;
  expect(lines.join("")).toContain("a container without a user namespace runs like others");
});

test("the rules have systemd's stop signal, and change the spec for the container's cgroup", async () => {
  const found = await rules("all", { cgroup: { driver: "cgroupfs", parent: "kube" } }).result;
  expect(found?.stopSignal).toBe("SIGRTMIN+3");
  const spec = found!.apply(containerSpec(specInput({})), "c1");
  expect(spec.process.env).toContain("container=oci");
});
