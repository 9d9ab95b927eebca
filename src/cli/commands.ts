// Table of the CLI's commands in the groups of its help; program.ts finds and runs them.
import { defineCommand } from "citty";
import { completeCommand, completion } from "./completion.ts";
import { configArgs, configCommand } from "./config.ts";
import { logs } from "./logs.ts";
import { rm, rmi, rmp, stop, stopp } from "./stop_remove.ts";
import type { CommandGroups } from "./help.ts";
import { load, pull, save } from "./image_commands.ts";
import { info, inspect, inspecti, inspectp, version } from "./inspect.ts";
import { events } from "./events.ts";
import { kill, wait } from "./kill_wait.ts";
import { licenses } from "./licenses.ts";
import { images, pods, ps } from "./list.ts";
import { imagefsinfo, metricdescs, metricsp, runtimeConfig } from "./node_commands.ts";
import { nri } from "./nri.ts";
import type { PassThrough } from "./program.ts";
import { reload } from "./reload.ts";
import { registry } from "./registry_check.ts";
import { run } from "./run.ts";
import { attach, exec, portForward } from "./stream_commands.ts";
import { isuladFailureCode } from "./start_exit_code.ts";
import { stats, statsp } from "./stats.ts";
import { checkpoint, create, runp, start, update } from "./step_commands.ts";
import { top } from "./top.ts";
import { why } from "./why.ts";

/** For help and completion; main.ts runs the daemon before any command is loaded. */
const daemon = defineCommand({
  meta: { description: "Run the daemon, as isulad-ts does without a command" },
  args: configArgs,
});

export const description =
  "isulad-ts runs containers for Kubernetes: a daemon, and commands to look at it.";

export const groups: CommandGroups = {
  Pods: { run, runp, pods, why, inspectp, statsp, "port-forward": portForward, stopp, rmp },
  Containers: {
    ps,
    logs,
    exec,
    attach,
    inspect,
    stats,
    top,
    wait,
    kill,
    create,
    start,
    update,
    checkpoint,
    stop,
    rm,
  },
  Images: {
    images,
    pull,
    load,
    import: { ...load, meta: { description: "Load images, as ctr names it" } },
    save,
    inspecti,
    rmi,
    registry,
  },
  Node: {
    info,
    version,
    events,
    nri,
    imagefsinfo,
    metricsp,
    metricdescs,
    "runtime-config": runtimeConfig,
  },
  Daemon: {
    daemon,
    config: configCommand,
    reload,
    // These and the next import what they need when they run: other commands do not need it.
    debug: async () => (await import("./debug.ts")).debug,
    "support-bundle": async () => (await import("./debug.ts")).supportBundleCommand,
  },
  Installation: {
    doctor: async () => (await import("./doctor.ts")).doctor,
    install: async () => (await import("./install.ts")).install,
    uninstall: async () => (await import("./install.ts")).uninstall,
    completion,
    licenses,
    complete: completeCommand(() => groups),
  },
};

export const passthrough: Record<string, PassThrough> = {
  run: { operands: 1, failureCode: isuladFailureCode },
  exec: { operands: 1, failureCode: isuladFailureCode },
  complete: { operands: 1, failureCode: 1 },
};
