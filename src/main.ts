// Starts isulad-ts, a container runtime daemon for Kubernetes nodes. The rooms, from the bottom up:
//
//   base      errors, configuration, log, locks      sys       the kernel's interface, files, processes
//   proto     (generated) CRI's messages             spec      pure: CRI → OCI runtime spec
//   state     records, their phases, the store       node      cgroups, namespaces, CNI, OCI runtime
//   registry  references, credentials, transfers     layer     tar, unpacking helper, overlay
//   image     manifests, archives, pull, the store   stats     statistics and metrics
//   monitor_log     reads containers' output         nri       plugins that see and change containers
//   monitor         parent of all containers         stream    exec, attach, port-forward
//   monitor_client  the daemon's side of both        cri       one file an RPC, or a few small ones
//   shim      starts shims, calls their Task service cli       the commands of a terminal
//   recovery  records, monitor, node: reconciled     doctor    finds what keeps pods from running
//   install   the executable, put on a machine       trace     calls as spans, for a collector
//   migrate   configurations of other runtimes       history   what happened to each pod
//
// Each process runs its own rooms: monitor, shim and monitor_log run in the monitor (the last in a thread),
// layer/unpack_helper.ts, node/netns_sockets.ts and sys/command_lines.ts in short-lived helpers, cli, doctor, install and migrate in
// the commands, all else in the daemon. daemon.ts puts the daemon together, folders.ts claims its folders,
// debug.ts looks into it.
//
// This file only chooses which of these processes this one is. Each loads no more than it needs.
import { isAbsolute } from "node:path";
import { build, version } from "./base/build.ts";
import { messageOf } from "./base/errors.ts";
import { isJournal } from "./base/journal.ts";
import { createLog, type Log } from "./base/log.ts";
import { removeEngineOptions, restartWithEngineOptions } from "./sys/engine_options.ts";
import { ignoreStraySignals } from "./sys/stray_signals.ts";
import { runBeforeChildren } from "./sys/process.ts";
import { setUmask, usualUmask } from "./sys/umask.ts";

/** For tests: ISULAD_FAILPOINTS (base/failpoints.ts) stops the start without this flag. */
const allowFailpoints = "--allow-failpoints";

const name = "isulad-ts";

process.exitCode = await main(process.argv.slice(2));

async function main(args: string[]): Promise<number> {
  // Set by a parent that is a Bun program; they would affect our children.
  delete process.env["BUN_OPTIONS"];
  delete process.env["BUN_BE_BUN"];
  const [first, ...rest] = args;
  if (isHelper(args)) {
    if (first === "monitor") return runMonitor(rest);
    ignoreStraySignals(createLog({ level: "info", format: "text" }).child(first!));
    const { nameProcess } = await import("./sys/process.ts");
    nameProcess(name); // the kernel named it "exe", after the path in /proc that started it
    if (first === "command-lines")
      return (await import("./sys/command_lines.ts")).commandLinesMain(rest);
    if (first === "unpack") return (await import("./layer/unpack_helper.ts")).unpackMain(rest);
    return (await import("./node/netns_sockets.ts")).netnsSocketsMain(rest);
  }
  const isInfo = args.length === 1 && /^(--help|-h|--version|-V|-v)$/.test(args[0]!);
  const isCommand = first !== undefined && !first.startsWith("-") && first !== "daemon";
  if (isCommand || isInfo) return runCommand(args);
  restartWithEngineOptions();
  if (first === "daemon") return runDaemonCommand(rest);
  return (await commandBehind(args)) ?? runDaemonCommand(args);
}

/**
 * Runs a command that comes after its options (`-H unix:///run/x.sock ps`), or prints that these options belong
 * after the command. undefined: the arguments are flags of the daemon, right or wrong.
 */
async function commandBehind(args: string[]): Promise<number | undefined> {
  const { parseFlags } = await import("./cli/config.ts");
  try {
    parseFlags(name, withoutOwn(args));
    return undefined;
  } catch (error) {
    const { groups } = await import("./cli/commands.ts");
    const { commandFirst } = await import("./cli/leading_options.ts");
    const { argv, command } = await commandFirst(groups, args);
    if (argv !== undefined) return runCommand(argv);
    if (command === undefined || !messageOf(error).includes(`"${command}"`)) return undefined;
    const hint = `Options of a command stand behind it: see ${name} ${command} --help.`;
    process.stderr.write(`${name}: ${messageOf(error)} ${hint}\n`);
    return 2;
  }
}

function withoutOwn(args: readonly string[]): string[] {
  return args.filter((word) => word !== allowFailpoints);
}

/** True for the exact arguments with which the daemon starts a helper; others are mistyped commands. */
function isHelper([first, second, third]: string[]): boolean {
  if (first === "command-lines") return second?.startsWith("{") === true && third === undefined;
  if (first === "unpack") return second === "native" || second === "overlay";
  if (first === "netns-sockets") return isAbsolute(second ?? "") && third === undefined;
  const isMonitor = first === "monitor" && /^--(check-)?state$/.test(second ?? "");
  return isMonitor && isAbsolute(third ?? "");
}

async function runCommand(args: string[]): Promise<number> {
  const { description, groups, passthrough } = await import("./cli/commands.ts");
  const { configShowName } = await import("./cli/config.ts");
  const { endAtFailedOutput } = await import("./cli/output.ts");
  const { runProgram } = await import("./cli/program.ts");
  endAtFailedOutput();
  const parseThemselves = [configShowName];
  const version = versionText();
  return runProgram({ name, version, description, groups, passthrough, parseThemselves }, args);
}

function versionText(): string {
  const engine = process.versions["bun"] ? `bun ${process.versions["bun"]}` : "deno";
  return `isulad-ts ${version} (commit ${build?.commit ?? "none"}, ${engine})`;
}

/** Runs `--state DIR` with what an upgrade inherits, or `--check-state DIR`: can this build read it? */
async function runMonitor(args: string[]): Promise<number> {
  const state = args[1] ?? "";
  if (args[0] === "--check-state") return checkMonitorState(state);
  // After an upgrade, another start would lose the inherited descriptors; the earlier build has passed the options.
  if (args.includes("--lock")) removeEngineOptions();
  else restartWithEngineOptions();
  const { inheritedFrom } = await import("./monitor/upgrade.ts");
  const { monitorMain } = await import("./monitor/monitor.ts");
  const log = createLog({ level: "info", format: "text" });
  prepareProcess(log);
  await armFailpoints(true, log); // the daemon, which starts the monitor, has checked that they are allowed
  process.on("uncaughtException", (error) => {
    log.error("the monitor failed", { error: messageOf(error), stack: error.stack });
    process.exit(1); // The daemon starts another monitor, which adopts the containers.
  });
  await monitorMain(state, inheritedFrom(args.slice(2)), log);
  process.exit(0); // Its worker still waits in the kernel.
}

/** Sets umask, priority and signal handlers independently of the parent process, before any file is made. */
function prepareProcess(log: Log): void {
  setUmask(usualUmask);
  runBeforeChildren();
  ignoreStraySignals(log);
}

async function checkMonitorState(state: string): Promise<number> {
  const { checkState } = await import("./monitor/records.ts");
  try {
    checkState(state);
    return 0;
  } catch (error) {
    process.stderr.write(`isulad-ts: ${messageOf(error)}\n`);
    return 1;
  }
}

async function runDaemonCommand(args: string[]): Promise<number> {
  const { parseFlags } = await import("./cli/config.ts");
  const { UsageError } = await import("./cli/options.ts");
  const { loadConfig } = await import("./base/config.ts");
  const { runDaemon } = await import("./daemon.ts");
  try {
    const { file, flags, info } = parseFlags(name, withoutOwn(args));
    if (info === "version") return await runCommand(["--version"]);
    if (info === "help") return await runCommand(["daemon", "--help"]);
    const read = () => loadConfig(file, flags);
    const loaded = read();
    const log = createLog({
      get level() {
        return loaded.config.logLevel; // a reload changes it
      },
      format: loaded.config.logFormat,
      isJournal: isJournal(process.env),
    });
    prepareProcess(log);
    await armFailpoints(args.includes(allowFailpoints), log);
    await runDaemon({ loaded, read, log });
    process.exit(0);
  } catch (error) {
    process.stderr.write(`${name}: ${messageOf(error)}\n`);
    process.exit(error instanceof UsageError ? 2 : 1);
  }
}

async function armFailpoints(areAllowed: boolean, log: Log): Promise<void> {
  const text = process.env["ISULAD_FAILPOINTS"] ?? "";
  if (text !== "" && !areAllowed) {
    throw new Error(`ISULAD_FAILPOINTS is set without ${allowFailpoints}: unset it`);
  }
  const failpoints = await import("./base/failpoints.ts");
  failpoints.armFailpoints(text, (failpoint, action) =>
    log.warn("failpoint", { failpoint, action }),
  );
}
