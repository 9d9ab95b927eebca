// Tests the options that a shim's Create gets.
import { expect, test } from "bun:test";
import { task } from "../../../src/proto/task.js";
import { taskOptions } from "../../../src/shim/task_options.ts";

const command = { path: "/shim", args: [], root: "/state/runtime/x", systemdCgroup: true };
const shim = (type: string, configPath = "", options = {}) => ({ type, configPath, options });

test("runc's shim gets the daemon's cgroup driver and a state folder of the daemon", () => {
  const given = { binary_name: "/usr/bin/crun", io_uid: 7 };
  const any = taskOptions({ ...command, shim: shim("io.containerd.runc.v2", "", given) })!;
  expect(any.type_url).toBe("containerd.runc.v1.Options");
  const decoded = task.RuncOptions.decode(any.value!);
  expect(task.RuncOptions.toObject(decoded)).toEqual({
    ...given,
    root: "/state/runtime/x",
    systemd_cgroup: true,
  });
});

test("runc's shim keeps its state where runtime-options say", () => {
  const any = taskOptions({ ...command, shim: shim("io.containerd.runc.v2", "", { root: "/r" }) })!;
  expect(task.RuncOptions.decode(any.value!).root).toBe("/r");
});

test("another shim gets the path of its configuration file, or nothing", () => {
  const any = taskOptions({ ...command, shim: shim("io.containerd.runsc.v1", "/etc/runsc.toml") })!;
  expect(any.type_url).toBe("runtimeoptions.v1.Options");
  expect(task.RuntimeOptions.decode(any.value!).config_path).toBe("/etc/runsc.toml");
  expect(taskOptions({ ...command, shim: shim("io.containerd.runsc.v1") })).toBeUndefined();
});

test("only gVisor gets the type of that file, without which its releases refuse it", () => {
  const typeFor = (type: string) => {
    const any = taskOptions({ ...command, shim: shim(type, "/etc/x.toml") })!;
    return task.RuntimeOptions.decode(any.value!).type_url;
  };
  expect(typeFor("io.containerd.runsc.v1")).toBe("io.containerd.runsc.v1.options");
  expect(typeFor("io.containerd.kata.v2")).toBe("");
});

test("an OCI runtime gets none", () => {
  expect(taskOptions(command)).toBeUndefined();
});
