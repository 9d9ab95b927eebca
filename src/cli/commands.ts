// Table of the CLI's commands by name; program.ts finds and runs them.
import type { SubCommandsDef } from "citty";
import { configCommand } from "./config.ts";
import { logs } from "./logs.ts";
import { rm, rmi, rmp, stop, stopp } from "./stop_remove.ts";
import { load, pull, save } from "./image_commands.ts";
import { info, inspect, inspecti, inspectp, version } from "./inspect.ts";
import { events } from "./events.ts";
import { licenses } from "./licenses.ts";
import { images, pods, ps } from "./list.ts";
import { nri } from "./nri.ts";
import type { PassThrough } from "./program.ts";
import { reload } from "./reload.ts";
import { registry } from "./registry_check.ts";
import { run } from "./run.ts";
import { attach, exec, portForward } from "./stream_commands.ts";
import { isuladFailureCode } from "./start_exit_code.ts";
import { stats, top } from "./stats.ts";

export const commands: SubCommandsDef = {
  run,
  pods,
  ps,
  images,
  pull,
  load,
  import: load, // ctr's name for load
  save,
  logs,
  exec,
  attach,
  "port-forward": portForward,
  events,
  stop,
  rm,
  stopp,
  rmp,
  rmi,
  inspect,
  inspectp,
  inspecti,
  info,
  stats,
  top,
  nri,
  registry,
  reload,
  version,
  config: configCommand,
  // Loaded when they run: they need rooms that no other command needs.
  doctor: async () => (await import("./doctor.ts")).doctor,
  debug: async () => (await import("./debug.ts")).debug,
  "support-bundle": async () => (await import("./debug.ts")).supportBundleCommand,
  licenses,
};

export const passthrough: Record<string, PassThrough> = {
  run: { operands: 1, failureCode: isuladFailureCode },
  exec: { operands: 1, failureCode: isuladFailureCode },
};
