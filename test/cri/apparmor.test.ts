// Tests AppArmor profiles of containers. On a kernel without AppArmor (the guest has it), it tests
// only the refusals.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { runtime } from "../../src/proto/messages.js";
import type { LinuxContainerSecurityContext, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const { RuntimeDefault, Unconfined, Localhost } = runtime.v1.SecurityProfile.ProfileType;
const enabled = "/sys/module/apparmor/parameters/enabled";
const hasApparmor = existsSync(enabled) && readFileSync(enabled, "utf8").startsWith("Y");
if (!hasApparmor) console.error("skipped, this kernel runs without AppArmor: its profiles");

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  await daemon.output(podId, pod, "true"); // systemd makes the pod's slice with its first container
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const current = "cat /proc/self/attr/current";
const named = (localhost_ref: string): LinuxContainerSecurityContext => ({
  apparmor: { profile_type: Localhost, localhost_ref },
});

async function text(command: string, security_context: LinuxContainerSecurityContext) {
  const config = { linux: { security_context } };
  return (await daemon.output(podId, pod, command, config)).text;
}

/** The refusal of a CreateContainer, after which nothing is left. */
async function refusal(security_context: LinuxContainerSecurityContext) {
  const before = daemon.snapshot();
  const error = await failure(daemon.create(podId, pod, "true", { linux: { security_context } }));
  expect(await daemon.leaksSince(before)).toEqual([]);
  return error;
}

test("a profile that is not loaded is refused", async () => {
  for (const security of [
    named("no-such-profile"),
    { apparmor_profile: "localhost/no-such-profile" },
  ]) {
    const error = await refusal(security);
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("no-such-profile");
    expect(error.message).toContain(hasApparmor ? "apparmor_parser" : "without AppArmor");
  }
  const bad = await refusal({ apparmor_profile: "x" });
  expect(bad.code).toBe("INVALID_ARGUMENT");
});

test.skipIf(!hasApparmor)("the default profile is loaded and enforced", async () => {
  expect(await text(current, {})).toBe("isulad-ts-default (enforce)\n");
  const admin = { capabilities: { add_capabilities: ["SYS_ADMIN"] }, masked_paths: [] };
  const script =
    "mount -t tmpfs none /tmp 2>/dev/null || echo refused; echo x > /tmp/file && cat /tmp/file";
  expect(await text(script, { ...admin, readonly_paths: [] })).toBe("refused\nx\n");
  const sysctl =
    "exec 2>/dev/null; (echo 0 > /proc/sys/kernel/panic) || echo refused; echo 1 > /dev/null && sleep 9 & kill $! && echo killed";
  expect(await text(sysctl, { ...admin, readonly_paths: [] })).toBe("refused\nkilled\n");
  const free = await text(current, { apparmor: { profile_type: Unconfined } });
  expect(free).toBe("unconfined\n");
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  expect((await daemon.exec(id, current)).stdout).toBe("isulad-ts-default (enforce)\n");
  await daemon.client.StopContainer({ container_id: id });
});

test.skipIf(!hasApparmor)("the default profile is loaded again after it was unloaded", async () => {
  spawnSync("apparmor_parser", ["-R"], { input: "profile isulad-ts-default {}" });
  expect(readFileSync("/sys/kernel/security/apparmor/profiles", "utf8")).not.toContain(
    "isulad-ts-default ",
  );
  expect(await text(current, {})).toBe("isulad-ts-default (enforce)\n");
});

test.skipIf(!hasApparmor)("a profile loaded after the daemon's start is applied", async () => {
  const name = `${daemon.token}-mine`;
  const rules = `profile ${name} flags=(attach_disconnected) { file, signal, deny /tmp/** w, }`;
  const load = (option: string) => spawnSync("apparmor_parser", [option], { input: rules });
  expect(load("-a").status).toBe(0);
  try {
    const script = `${current}; (echo x > /tmp/x) 2>/dev/null || echo refused`;
    const applied = `${name} (enforce)\nrefused\n`;
    expect(await text(script, named(name))).toBe(applied);
    const old = { apparmor_profile: `localhost/${name}` };
    expect(await text(script, old)).toBe(applied);
  } finally {
    load("-R");
  }
});

test("disable-apparmor runs containers unconfined and refuses a profile", async () => {
  daemon.writeConfig({ "disable-apparmor": true });
  await daemon.restart();
  const command = hasApparmor ? current : "echo unconfined";
  const unconfined = [{}, { apparmor_profile: "unconfined" }];
  for (const security of [...unconfined, { apparmor: { profile_type: Unconfined } }]) {
    expect(await text(command, security)).toBe("unconfined\n");
  }
  for (const security of [
    named("isulad-ts-default"),
    { apparmor: { profile_type: RuntimeDefault } },
    { apparmor_profile: "runtime/default" },
  ]) {
    const { code, message } = await refusal(security);
    expect([code, message]).toEqual([
      "FAILED_PRECONDITION",
      expect.stringContaining("disable-apparmor"),
    ]);
  }
});
