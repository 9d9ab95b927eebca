// Tests host devices in containers, requested by path, by folder and by CDI name.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { execFileSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { ContainerConfig, PodSandboxConfig } from "../../src/proto/types.ts";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
beforeAll(async () => {
  daemon = await startDaemon();
  daemon.writeConfig({
    "enable-cdi": true,
    "cdi-spec-dirs": [join(daemon.dir, "cdi-low"), join(daemon.dir, "cdi-high")],
    "device-ownership-from-security-context": true,
  });
  await daemon.restart();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  await daemon.output(podId, pod, "true"); // systemd makes the pod's slice with its first container
  const folder = join(daemon.dir, "devices");
  mkdirSync(join(folder, "deep"), { recursive: true });
  // The kernel's zero, and one that no driver has: who may open it hears of that, others are refused.
  for (const [name, major, minor] of [
    ["zero", 1, 5],
    ["deep/none", 240, 7],
  ] as const) {
    execFileSync("mknod", ["-m", "660", join(folder, name), "c", String(major), String(minor)]);
  }
  writeFileSync(join(folder, "note"), "no device\n");
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const output = async (command: string, more: ContainerConfig) =>
  (await daemon.output(podId, pod, command, more)).text;

test("a folder gives all its devices, with the permissions that were asked for", async () => {
  const host_path = join(daemon.dir, "devices");
  const devices = [{ host_path, container_path: "/dev/own", permissions: "r" }];
  const script = `cd /dev/own; find . -type c | sort; ls | grep -c note; head -c 1 zero | wc -c
    dd if=deep/none 2>&1 | grep -o 'No such.*'; dd of=deep/none 2>&1 | grep -o 'Oper.*'`;
  expect(await output(script, { devices })).toBe(
    "./deep/none\n./zero\n0\n1\nNo such device or address\nOperation not permitted\n",
  );
});

test("devices are owned by the security context's user and group", async () => {
  const devices = [
    { host_path: join(daemon.dir, "devices/zero"), container_path: "/dev/mine", permissions: "r" },
  ];
  const who = { run_as_user: { value: toLong(1000) }, run_as_group: { value: toLong(2000) } };
  const script = "stat -c '%u %g %a' /dev/mine; head -c 1 /dev/mine | wc -c";
  const more = { devices, linux: { security_context: who } };
  expect(await output(script, more)).toBe("1000 2000 660\n1\n");
  expect(await output("stat -c '%u %g' /dev/mine", { devices })).toBe("0 0\n");
});

test("a path that is no device is refused, and nothing is created", async () => {
  const before = daemon.snapshot();
  for (const path of ["devices/note", "devices/none", "."]) {
    const host_path = join(daemon.dir, path === "." ? "graph" : path);
    const devices = [{ host_path, container_path: "/dev/x" }];
    const error = await failure(daemon.create(podId, pod, "true", { devices }));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain(host_path);
  }
  expect(await daemon.leaksSince(before)).toEqual([]);
});

const cdi = `
cdiVersion: "0.6.0"
kind: example.test/thing
containerEdits:
  env: ["THING=all"]
devices:
  - name: zero
    containerEdits:
      deviceNodes: [{ path: /dev/thing0, hostPath: DEVICES/zero, permissions: r }]
      mounts: [{ hostPath: DEVICES, containerPath: /opt/thing, options: [ro, rbind, nosuid] }]
      additionalGids: [4242]
      hooks:
        - { hookName: createRuntime, path: /bin/sh, args: [sh, -c, "cat > DEVICES/../hooked"] }
  - name: "1"
    containerEdits: { env: ["FROM_IMAGE=no", "ONE=1"] }
`;

test("CDI devices come by the field and by annotations, with all their edits", async () => {
  const devices = join(daemon.dir, "devices");
  mkdirSync(join(daemon.dir, "cdi-high"), { recursive: true });
  writeFileSync(join(daemon.dir, "cdi-high/thing.yaml"), cdi.replaceAll("DEVICES", devices));
  const script = `echo $THING $ONE; stat -c '%a %t:%T' /dev/thing0; head -c 1 /dev/thing0 | wc -c
    id -G; cat /opt/thing/note; { echo x > /opt/thing/new; } 2>&1 | grep -c Read-only`;
  const more: ContainerConfig = {
    CDI_devices: [{ name: "example.test/thing=zero" }],
    annotations: { "cdi.k8s.io/plugin": "example.test/thing=1,example.test/thing=zero" },
  };
  expect(await output(script, more)).toBe("all 1\n660 1:5\n1\n0 4242\nno device\n1\n");
  // The hook got the container's state.
  const hooked = await Bun.file(join(daemon.dir, "hooked")).json();
  expect(hooked).toMatchObject({ status: "creating" });
});

test("a missing CDI device is refused with the folders that were searched", async () => {
  const before = daemon.snapshot();
  const name = "example.test/other=0";
  for (const more of [{ CDI_devices: [{ name }] }, { annotations: { "cdi.k8s.io/x": name } }]) {
    const error = await failure(daemon.create(podId, pod, "true", more));
    expect(error.code).toBe("INVALID_ARGUMENT");
    for (const word of [name, "cdi-low", "cdi-high"]) expect(error.message).toContain(word);
  }
  const bad = { annotations: { "cdi.k8s.io/x": "not a name" } };
  const error = await failure(daemon.create(podId, pod, "true", bad));
  expect([error.code, error.message]).toEqual([
    "INVALID_ARGUMENT",
    expect.stringContaining("not a name"),
  ]);
  expect(await daemon.leaksSince(before)).toEqual([]);
});

test("without enable-cdi the field is refused, and annotations are only annotations", async () => {
  daemon.writeConfig({ "enable-cdi": false });
  await daemon.restart();
  const name = "example.test/thing=zero";
  const error = await failure(daemon.create(podId, pod, "true", { CDI_devices: [{ name }] }));
  expect(error.code).toBe("FAILED_PRECONDITION");
  expect(error.message).toContain("enable-cdi");
  const annotations = { "cdi.k8s.io/x": name };
  expect(await output("ls /dev/thing0 2>/dev/null || echo none", { annotations })).toBe("none\n");
});
